"""Nodes that run a shard beside the one that holds it, until they have stopped: it is not placed before.

A node that could not be seen for a while may come back with all that it ran, so there may be as many as shards: each
question costs what it is about, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Holder
from iscp.core.rows.key_ranges import overlaps
from iscp.core.values.ids import ShardId


class SecondCopies:
    def __init__(self) -> None:
        self._tables: dict[str, dict[ShardId, set[Holder]]] = {}
        self._copies: dict[Holder, dict[ShardId, None]] = {}

    def __len__(self) -> int:
        """Return how many shards have a second copy."""
        return sum(len(shards) for shards in self._tables.values())

    def __iter__(self) -> Iterator[tuple[ShardId, Holder]]:
        return ((shard, holder) for holder, shards in self._copies.items() for shard in shards)

    def add(self, shard: ShardId, holder: Holder) -> None:
        self._tables.setdefault(shard.table_id, {}).setdefault(shard, set()).add(holder)
        self._copies.setdefault(holder, {})[shard] = None

    def end(self, shard: ShardId, holder: Holder) -> bool:
        """Note that the node has stopped it, and return whether it had it."""
        copies = self._copies.get(holder, {})
        if shard not in copies:
            return False
        del copies[shard]
        if not copies:
            del self._copies[holder]
        shards = self._tables[shard.table_id]
        shards[shard].discard(holder)
        if not shards[shard]:
            del shards[shard]
        if not shards:
            del self._tables[shard.table_id]
        return True

    def at(self, holder: Holder) -> list[ShardId]:
        return list(self._copies.get(holder, ()))

    def in_the_way(self, shard: ShardId) -> ShardId | None:
        """Return a shard with a second copy that shares keys with this one."""
        alike = self._tables.get(shard.table_id, ())
        return next((each for each in alike if overlaps(each.range_id, shard.range_id)), None)
