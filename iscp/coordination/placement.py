"""Which node a shard is dispatched to. A policy sees only what it is given, and decides for one shard at a time."""

from __future__ import annotations

from iscp.core.ids import ShardId
from iscp.core.ring import Ring


def basic(shard: ShardId, ring: Ring) -> str:
    """A shard that nobody runs goes to its preferred node; what runs stays where it is."""
    return ring.preferred(shard)
