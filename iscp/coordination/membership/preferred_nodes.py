"""Decide where a shard should be. Only a dispatch makes it so."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from iscp.coordination.protocol.overrides import Overrides
from iscp.core.values.ids import ShardId
from iscp.core.values.ring import Ring

RINGS_KEPT_MAX = 4
"""Sets of nodes whose rings are cached, at 16 MB for 1,000 nodes; others are built again."""


@lru_cache(RINGS_KEPT_MAX)
def ring_of(nodes: frozenset[str]) -> Ring:
    """Return the ring of the nodes, which does not change, and is the same for the same nodes."""
    return Ring(nodes)


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that may take shards, their ring, and the overrides. Replaced when one of these changes.

    Invariant: the ring is that of these nodes, or None: it is still to be built.
    """

    eligible: frozenset[str] = frozenset()
    overrides: Overrides = field(default_factory=Overrides)
    ring: Ring | None = None

    def target(self, shard: ShardId) -> str:
        """Return the node where `shard` should be; empty if no node may take any, or it is not known yet."""
        if self.ring is None or not self.eligible:
            return ""
        pinned = self.overrides.pins.get(shard, "")
        return pinned if pinned in self.eligible else self.ring.preferred(shard)
