"""Wakes the shards whose jobs read a table, as soon as somebody has committed to it and the storage says so.

A notice is a hint, as a user's notify is: the schedule probes the table, and a probe finds what no notice came of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from iscp.coordination.protocol.effects import StartShard, StopAllShards, StopShard, UpdateShard
from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import further_tables
from iscp.core.values.ids import ShardId
from iscp.ports.catalog import LogNotices

NewNotices = Callable[[Callable[[str], None]], LogNotices]
"""Makes notices; they call the function with the URI of a table that may have changed."""

NoticeOrder = StartShard | UpdateShard | StopShard | StopAllShards


class TableNotices:
    """Follows the tables of the shards that run here, and no others. `notify` never waits.

    Orders come on one thread, notices on another one. Invariant: a table is followed as long as a shard reads it.
    """

    def __init__(self, new_notices: NewNotices, notify: Callable[[ShardId], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._tables: dict[ShardId, frozenset[str]] = {}
        self._shards: dict[str, set[ShardId]] = {}
        self._notices = new_notices(self._hear)

    def give(self, order: NoticeOrder) -> None:
        """Take an order of shards; never waits."""
        match order:
            case StartShard(shard, _, jobs) | UpdateShard(shard, _, jobs):
                self._take(shard, frozenset(_tables_of(jobs)))
            case StopShard(shard):
                self._take(shard, frozenset())
            case StopAllShards():
                for shard in list(self._tables):
                    self._take(shard, frozenset())

    def counters(self) -> Mapping[str, int]:
        """Tables that are noticed at once, and those that could be and are not."""
        return self._notices.counters()

    def close(self) -> None:
        self._notices.close()

    def _take(self, shard: ShardId, tables: frozenset[str]) -> None:
        before = self._tables.pop(shard, frozenset())
        if tables:
            self._tables[shard] = tables
        with self._lock:
            added = [uri for uri in tables - before if not self._shards.get(uri)]
            for uri in tables - before:
                self._shards.setdefault(uri, set()).add(shard)
            for uri in before - tables:
                self._shards[uri].discard(shard)
            gone = [uri for uri in before - tables if not self._shards[uri]]
            for uri in gone:
                del self._shards[uri]
        for uri in added:
            self._notices.follow(uri)
        for uri in gone:
            self._notices.leave(uri)

    def _hear(self, uri: str) -> None:
        with self._lock:
            shards = tuple(self._shards.get(uri, ()))
        for shard in shards:
            self._notify(shard)


def _tables_of(jobs: Iterable[JobRow]) -> Iterable[str]:
    for row in jobs:
        if row.drop_at_s is None:
            yield row.table_uri
            yield from further_tables(row)
