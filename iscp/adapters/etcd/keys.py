"""Which keys there are in etcd, below one prefix (docs/etcd-keys.md describes their values).

nodes/<node_id>               a registered node, on its lease
epochs/<node_id>              the last epoch given to a life of this node
election/owner/<lease id>     a candidate for owner, on its lease; the oldest one leads
"""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.errors import ConfigurationError

DEFAULT_PREFIX = "/iscp/"


@dataclass(frozen=True, slots=True)
class Keys:
    """The layout; `prefix` separates clusters that share an etcd, and ends in `/`."""

    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        if not self.prefix.endswith("/"):
            raise ConfigurationError(
                f"{self.prefix!r} does not end in '/'", field="etcd.prefix", remedy="Add a '/' at its end"
            )

    @property
    def nodes(self) -> str:
        return f"{self.prefix}nodes/"

    def node(self, node_id: str) -> str:
        return f"{self.nodes}{node_id}"

    def epoch(self, node_id: str) -> str:
        return f"{self.prefix}epochs/{node_id}"

    @property
    def candidates(self) -> str:
        return f"{self.prefix}election/owner/"

    def candidate(self, lease_id: int) -> str:
        return f"{self.candidates}{lease_id:016x}"
