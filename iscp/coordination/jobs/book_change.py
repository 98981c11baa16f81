"""Rows that go into the book, and what has moved by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iscp.core.job.job_row import JobRow
from iscp.core.values.ids import ShardId


@dataclass(frozen=True, slots=True)
class BookChange:
    """A `BookChange` is what has changed: `rows` as they are now (`drop_at_s` is set where a job was dropped).

    `shards` are those whose set of jobs, or what is wanted of one of them, was decided again; if only progress was
    reported, they are empty. `woken` has the shards of jobs that read a table which one of `rows` has committed to.
    """

    rows: tuple[JobRow, ...] = ()
    shards: tuple[ShardId, ...] = ()
    woken: tuple[ShardId, ...] = ()

    @property
    def decided_shards(self) -> dict[ShardId, bool]:
        """Return the shards of jobs that have changed, and whether they were decided again."""
        return {row.key.shard: False for row in self.rows} | dict.fromkeys(self.shards, True)


def by_shard(rows: Iterable[JobRow]) -> dict[ShardId, tuple[JobRow, ...]]:
    """Return the rows that each shard has to run; dropped ones among `rows` are left out."""
    first: dict[ShardId, tuple[JobRow, ...]] = {}
    more: dict[ShardId, list[JobRow]] = {}  # most tables have one job
    for row in rows:
        if row.drop_at_s is None:
            shard = row.key.shard
            if shard in first:
                more.setdefault(shard, []).append(row)
            else:
                first[shard] = (row,)
    return first | {shard: (*first[shard], *others) for shard, others in more.items()}
