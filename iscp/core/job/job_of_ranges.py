"""Show a job whose table is cut into ranges, with a row for each of them, as the one job that its users see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iscp.core.job.job_row import JobRow, JobState, Reason


def combined(rows: Sequence[JobRow]) -> JobRow:
    """Return a job's rows, one for each range of its table, as the one job that its users see.

    It has come as far as the range that lags most, and its state is the worst of theirs, whose status it has, with the
    rows and bytes of all.
    """
    worst = max(rows, key=lambda row: (_BADNESS.index(row.state), _REASONS.index(row.reason)))
    if len(rows) == 1 and worst.key.range_id == 1:
        return worst._replace(job_id=worst.origin) if worst.origin else worst
    lowest = min(rows, key=lambda row: (row.watermark.version, row.watermark.step))
    return worst._replace(
        key=worst.key.job,
        job_id=worst.registration,
        watermark=lowest.watermark,
        seq=max(row.seq for row in rows),
        status_json=_status_of_all(worst, rows),
    )


def _status_of_all(worst: JobRow, rows: Sequence[JobRow]) -> str:
    statuses = [row.status for row in rows]
    given = {name: sum(getattr(each, name) for each in statuses) for name in ("rows", "bytes", "dead_letters")}
    return replace(worst.status, **given).to_json() if any(row.status_json for row in rows) else ""


_BADNESS = (JobState.COMPLETED, JobState.PENDING, JobState.RUNNING, JobState.CANCELED, JobState.ERROR)
_REASONS = (Reason.NONE, Reason.BUILDING, Reason.RETRYING, Reason.QUOTA, Reason.QUARANTINED, Reason.PAUSED)
