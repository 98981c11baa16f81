"""Store what operators have decided of nodes and shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.core.values.ids import ShardId


@dataclass(frozen=True, slots=True)
class Overrides:
    """The operators' decisions, which outlive owners and the nodes' lives.

    `cordoned` nodes take no further shards, `draining` ones also give up those that they have. `pins`: the node that a
    shard should be on whatever the ring says.
    """

    cordoned: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    pins: Mapping[ShardId, str] = field(default_factory=dict)

    @property
    def closed(self) -> frozenset[str]:
        return self.cordoned | self.draining
