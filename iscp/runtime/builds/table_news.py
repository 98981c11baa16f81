"""Collect what the owner knows of tables that are built, or whose commits are retained or are to be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp.coordination.builds.builder_events import TableSeen
from iscp.coordination.global_checkpoint import counts
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.job.job_row import JobRow
from iscp.runtime.owner.owner_loop import OwnerLoop


def read_table_news(loop: OwnerLoop, table_ids: Collection[str]) -> list[TableSeen]:
    """Return, on the owner's loop, the news of these tables, and of those with a repair that some job has not applied;
    none between terms.
    """
    found: list[TableSeen] = []
    if (writer := loop.writer) is None:
        return found
    for table_id in sorted({*table_ids, *(shard.table_id for shard in loop.sources.repaired)}):
        rows = writer.read(lambda book, table_id=table_id: book.jobs_on(table_id))  # type: ignore[misc]
        probed = [loop.sources.seen[shard] for shard in {row.key.shard for row in rows} if shard in loop.sources.seen]
        found.append(table_seen(table_id, rows, probed))
    return found


def table_seen(table_id: str, rows: Sequence[JobRow], probed: Sequence[SourceSeen]) -> TableSeen:
    """Return the news of a table from its jobs' `rows`. Nobody knows when a job that is paused, or has failed for good,
    goes on: nothing is retained for it.
    """
    tailing = [row for row in rows if row.drop_at_s is None and counts(row)]
    slowest = min(tailing, key=lambda row: row.watermark.version, default=None)
    return TableSeen(
        table_id,
        max((each.source_version for each in probed), default=-1),
        None if slowest is None else slowest.watermark.version,
        max((each.repair_version for each in probed), default=0),
        "" if slowest is None else slowest.table_uri,
    )
