"""At the owner: the jobs that lag, of which a few among very many are worth a closer view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.job.job_row import JobRow
from iscp.ports.system import Clock
from iscp.runtime.admin.job_views import JobViews
from iscp.runtime.owner.owner_loop import OwnerLoop


def lagging_jobs(owner: OwnerLoop, views: JobViews, clock: Clock) -> Callable[[float], Sequence[JobRow]]:
    """Return what finds the jobs that lag by so many seconds at least, those that lag most first.

    It raises NotOwner and Unavailable.
    """

    def found(least_s: float) -> Sequence[JobRow]:
        rows = owner.current_writer().read(_applied_before(clock.now_s() - least_s))
        lags = {view.job_id: view.lag_s for view in views.of(rows) if view.lag_s >= least_s}
        return sorted((row for row in rows if row.job_id in lags), key=lambda row: lags[row.job_id], reverse=True)

    return found


def _applied_before(at_s: float) -> Callable[[JobBook], list[JobRow]]:
    """Return what reads the jobs that may lag since then: no job lags by more than its watermark is old."""

    def read(book: JobBook) -> list[JobRow]:
        rows = (row for row in book.rows() if row.drop_at_s is None)
        return [row for row in rows if row.watermark.version >= 0 and row.watermark.at_s <= at_s]

    return read
