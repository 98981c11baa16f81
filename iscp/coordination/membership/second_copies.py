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
        self._held: dict[Holder, dict[ShardId, None]] = {}

    def __len__(self) -> int:
        """How many shards have any."""
        return sum(len(shards) for shards in self._tables.values())

    def __iter__(self) -> Iterator[tuple[ShardId, Holder]]:
        return ((shard, holder) for holder, shards in self._held.items() for shard in shards)

    def add(self, shard: ShardId, holder: Holder) -> None:
        self._tables.setdefault(shard.table_id, {}).setdefault(shard, set()).add(holder)
        self._held.setdefault(holder, {})[shard] = None

    def end(self, shard: ShardId, holder: Holder) -> bool:
        """The node has stopped it; whether it had it."""
        held = self._held.get(holder, {})
        if shard not in held:
            return False
        del held[shard]
        if not held:
            del self._held[holder]
        shards = self._tables[shard.table_id]
        shards[shard].discard(holder)
        if not shards[shard]:
            del shards[shard]
        if not shards:
            del self._tables[shard.table_id]
        return True

    def at(self, holder: Holder) -> list[ShardId]:
        return list(self._held.get(holder, ()))

    def in_the_way(self, shard: ShardId) -> ShardId | None:
        """A shard with a second copy that shares keys with this one."""
        alike = self._tables.get(shard.table_id, ())
        return next((each for each in alike if overlaps(each.range_id, shard.range_id)), None)
