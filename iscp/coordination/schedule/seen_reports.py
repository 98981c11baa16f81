"""Report a table's source: up to when it is known, and how far its jobs lie behind."""

from __future__ import annotations

from math import inf

from iscp.coordination.lag import LEAST_S, applied_since_s
from iscp.coordination.protocol.messages import FurtherSeen, SourceSeen, VersionAge
from iscp.coordination.schedule.table_state import TrackedTable
from iscp.core.job.start_rule import ProbeState


def report_seen(table: TrackedTable, now_s: float, at_s: float, every_s: float) -> SourceSeen | None:
    """Return what is known of the source: when it moved, when a lag begins or ends, and if the last probe that was
    reported was `every_s` ago.

    If it cannot be reached, and never was from here, only that is reported.
    """
    unreached = table.overdue or bool(table.fault)
    if table.seen is None or table.probed_s == -inf:
        return _report_unreached(table) if unreached else None
    probed_at_s = at_s - (now_s - table.probed_s)
    further = _see_further(table) if table.further else ()
    ages, own_s = _see_versions(table, table.seen, probed_at_s)
    lag_s = max([own_s, *(each.lag_s for each in further)])
    behind = (job.row.watermark.version for job in table.jobs if job.row.watermark.version >= 0 and not job.row.paused)
    repair = table.seen.repair if min(behind, default=table.seen.repair) < table.seen.repair else 0
    version = table.seen.version
    seen = SourceSeen(table.shard, version, probed_at_s, lag_s, further, repair, unreached, ages, at_s)
    if table.reported and not seen.moved_since(table.reported) and now_s - table.reported_s < every_s:
        return None
    table.reported, table.reported_s = seen, table.probed_s
    return seen


def _report_unreached(table: TrackedTable) -> SourceSeen | None:
    seen = SourceSeen(table.shard, -1 if table.newest is None else table.newest, 0.0, 0.0, unreached=True)
    if table.reported == seen:
        return None
    table.reported = seen
    return seen


def _see_versions(table: TrackedTable, seen: ProbeState, probed_at_s: float) -> tuple[tuple[VersionAge, ...], float]:
    """Return the ages of what jobs have not applied, and that for the slowest job that is built and not paused; 0 if
    there is nothing.
    """
    if all(job.row.watermark.version >= seen.version for job in table.jobs if not job.row.paused):
        table.behind = None
        return (), 0.0
    behind = [job.row for job in table.jobs if not job.row.paused and job.row.watermark.version < seen.version]
    ages: tuple[VersionAge, ...] = ()
    if table.behind:
        table.behind.forget(min(row.watermark.version for row in behind))
        ages = table.behind.ages(table.probed_s)
    built = [row for row in behind if row.watermark.version >= 0]
    if not built:
        return ages, 0.0
    slowest = min(built, key=lambda row: row.watermark.version)
    otherwise_s = table.probed_s - (probed_at_s - applied_since_s(slowest, slowest.watermark, probed_at_s))
    since_s = table.behind.since_s(slowest.watermark.version, otherwise_s) if table.behind else otherwise_s
    return ages, max(LEAST_S, table.probed_s - since_s)


def _see_further(table: TrackedTable) -> tuple[FurtherSeen, ...]:
    built = [job.several for job in table.jobs if job.several and job.row.watermark.version >= 0 and job.runnable]
    return table.further.see(built, table.probed_s) if table.further else ()
