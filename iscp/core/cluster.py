"""The members of a cluster, as etcd has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class NodeRecord:
    """One registered node: `epoch` is one process life, `lease_id` the etcd lease that its key hangs on."""

    node_id: str
    epoch: int
    address: str
    pid: int = 0
    version: str = ""
    started_at_s: float = 0.0
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the election key; `revision` is the key's create revision, which fences its writes."""

    node_id: str
    revision: int
