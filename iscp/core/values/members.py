"""The members of a cluster, as etcd has them."""

from __future__ import annotations

from dataclasses import dataclass

WIRE_FORMAT = 3
"""The format in which owner and nodes speak to each other. A change that the format before cannot read adds 1."""

BUILDS_WIRE_FORMAT = 3
"""The first format in which a node can be called to work on ranges of a build."""


def understands(one: int, other: int) -> bool:
    """Return whether two wire formats go together.

    They may be one apart, so that a cluster can be upgraded node by node.
    """
    return abs(one - other) <= 1


NODES_MAX = 1_000
"""Nodes of a cluster, as an owner has a stream to each; one more is refused when it registers."""

TTL_RATIO_MAX = 10.0
"""How many times longer than another's a node's lease may last; a node beyond it is refused, as its work would wait for
so long once it is lost.
"""


def ttls_fit(one_s: float, other_s: float) -> bool:
    """Return whether leases go together in a cluster; 0 stands for a node that does not say."""
    if 0.0 in (one_s, other_s):
        return True
    shorter_s, longer_s = sorted((one_s, other_s))
    return longer_s <= TTL_RATIO_MAX * shorter_s


@dataclass(frozen=True, slots=True, order=True)
class NodeRecord:
    """One registered node: `epoch` is one process life, `lease_id` the etcd lease that its key hangs on.

    With `leaving` it stops in order, and waits until others have what it runs. `ttl_s` is the lease's TTL as etcd has
    granted it, which may be longer than was requested; 0: the node is of a version that does not say. With
    `authenticates` its callers have to be known; those of a version that does not say need not.
    """

    node_id: str
    epoch: int
    address: str
    pid: int = 0
    version: str = ""
    started_at_s: float = 0.0
    lease_id: int = 0
    wire_format: int = WIRE_FORMAT
    leaving: bool = False
    ttl_s: float = 0.0
    authenticates: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A moment of etcd as one process has seen it; later ones are greater.

    `restores` counts how often the process has seen the store go back, as one that was restored from a backup does: its
    `revision`s mean something else then. `breaks` counts how often it has lost sight of it: it cannot know who came and
    went meanwhile.
    """

    restores: int = 0
    revision: int = 0
    breaks: int = 0


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the election key; `revision` is the key's create revision, which fences its writes."""

    node_id: str
    revision: int
