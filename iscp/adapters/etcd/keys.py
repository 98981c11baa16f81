"""Which keys there are in etcd, below one prefix (docs/etcd-keys.md describes their values).

nodes/<node_id>               a registered node, on its lease
epochs/<node_id>              the last epoch given to a life of this node
election/owner/<lease id>     a candidate for owner, on its lease; the oldest one leads
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "/iscp"


@dataclass(frozen=True, slots=True)
class Keys:
    """The layout below `prefix`, which separates clusters that share an etcd; a `/` at its end is immaterial."""

    prefix: str = DEFAULT_PREFIX

    @property
    def nodes(self) -> str:
        return self._below("nodes/")

    def node(self, node_id: str) -> str:
        return f"{self.nodes}{node_id}"

    def epoch(self, node_id: str) -> str:
        return self._below(f"epochs/{node_id}")

    @property
    def candidates(self) -> str:
        return self._below("election/owner/")

    def candidate(self, lease_id: int) -> str:
        return f"{self.candidates}{lease_id:016x}"

    def _below(self, rest: str) -> str:
        return f"{self.prefix.rstrip('/')}/{rest}"
