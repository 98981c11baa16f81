"""Report a table's source: up to when it is known, and how far its jobs lie behind."""

from __future__ import annotations

from iscp.coordination.protocol.messages import FurtherSeen, SourceSeen
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.watermark import Watermark


def report_seen(table: TrackedTable, at_s: float, every_s: float) -> SourceSeen | None:
    """Return what is known of the source: when it moved, when a lag begins or ends, and every now and then.

    If it cannot be reached, and never was from here, only that is reported.
    """
    unreached = table.overdue or bool(table.fault)
    if table.seen is None or not table.probed_at_s:
        return _report_unreached(table) if unreached else None
    further = _see_further(table, table.probed_at_s) if table.further else ()
    slowest, version, repair = _slowest(table), table.seen.version, table.seen.repair
    lag_s = max([_lag_s(table, table.seen, slowest), *(each.lag_s for each in further)])
    repair = repair if slowest is not None and slowest.version < repair else 0
    seen = SourceSeen(table.shard, version, table.probed_at_s, lag_s, further, repair, unreached)
    reported = table.reported
    if reported and not seen.moved_since(reported) and 0 <= at_s - reported.checked_at_s < every_s:
        return None
    table.reported = seen
    return seen


def _report_unreached(table: TrackedTable) -> SourceSeen | None:
    seen = SourceSeen(table.shard, -1 if table.newest is None else table.newest, 0.0, 0.0, unreached=True)
    if table.reported == seen:
        return None
    table.reported = seen
    return seen


def _slowest(table: TrackedTable) -> Watermark | None:
    """Return how far the last of its jobs that are built and not paused has come."""
    built = (job.row.watermark for job in table.jobs if job.row.watermark.version >= 0 and not job.row.paused)
    return min(built, key=lambda mark: mark.version, default=None)


def _lag_s(table: TrackedTable, seen: ProbeState, slowest: Watermark | None) -> float:
    """Return the age of the oldest commit not applied by the slowest job; 0 if there is none."""
    if slowest is None or slowest.version >= seen.version:
        table.behind_at_s = 0.0
        return 0.0
    # What is outstanding was committed after what is applied, and with the last change at the latest.
    table.behind_at_s = max(table.behind_at_s or seen.since_s or table.probed_at_s, slowest.at_s)
    return max(0.001, table.probed_at_s - table.behind_at_s)


def _see_further(table: TrackedTable, at_s: float) -> tuple[FurtherSeen, ...]:
    built = [job.several for job in table.jobs if job.several and job.row.watermark.version >= 0 and job.runnable]
    return table.further.see(built, at_s) if table.further else ()
