"""The side of the job log's writer that other threads use: what they submit, and the jobs as they read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar, overload

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_requests import Pause, Register, Request, Resume, Unregister, Update
from iscp.coordination.report_outbox import merge_reports
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_of_ranges import combined
from iscp.core.job.job_row import JobReport, JobRow, apply_report
from iscp.core.values.errors import IscpError, QueueFull, Unavailable
from iscp.core.values.ids import JobKey
from iscp.ports.job_log import JobLog
from iscp.ports.system import Threads
from iscp.runtime.owner.log.history_writer import HistoryWriter
from iscp.runtime.owner.log.log_limits import LogLimits

T = TypeVar("T")


class LogIntake:
    """Requests and reports wait here for the writer's thread, which `_wake` wakes.

    Lock order: `_book_lock`, which guards the book, before `_wake`, which guards what waits. Reports go from the one to
    the other under both, so that whoever reads a job finds them in one of the two.
    """

    def __init__(
        self, joblog: JobLog, book: JobBook, history: HistoryWriter, limits: LogLimits, threads: Threads
    ) -> None:
        self._log = joblog
        self._book = book
        self._history = history
        self._limits = limits
        (self._wake,) = threads.conditions(1)
        self._book_lock = Lock()
        self._requests: deque[tuple[Request, Future[Any]]] = deque()
        self._reports: dict[tuple[str, bool], JobReport] = {}
        self._closing = False
        self._stopped: IscpError | None = None

    @overload
    def submit(self, request: Register) -> Future[tuple[RegisterResult, ...]]: ...
    @overload
    def submit(self, request: Unregister | Pause | Resume | Update) -> Future[bool]: ...
    @overload
    def submit(self, request: Request) -> Future[Any]: ...
    def submit(self, request: Request) -> Future[Any]:
        """Answered once it is in the log.

        Raises QueueFull, NotOwner, Unavailable (closing). The future fails with InvalidRequest or JobNotFound, with
        StorageError (nothing was written), NotOwner, or OutcomeUnknown if the writer is closed before it could check.
        """
        (future,) = self.submit_all([request])
        return future

    def submit_all(self, requests: Sequence[Request]) -> list[Future[Any]]:
        """As `submit`, each for itself; where that raises, none was taken."""
        futures: list[Future[Any]] = [Future() for _ in requests]
        with self._wake:
            self._refuse_if_ended()
            if len(self._requests) + len(requests) > self._limits.requests_max:
                raise QueueFull(f"{len(self._requests)} requests wait for the job log", remedy="Try again later")
            self._requests.extend(zip(requests, futures, strict=True))
            self._wake.notify_all()
        return futures

    def report(
        self,
        reports: Iterable[JobReport],
        history: Sequence[HistoryEntry] = (),
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Take reports of progress; never blocks, and says nothing once the writer has ended.

        `on_written` is called once the history is in its table. Statuses are not waited for: the sinks know the
        position of every job, and the next report sets its row right.
        """
        with self._wake:
            self._keep_reports(reports)
            self._wake.notify_all()
        # Without the lock: it may call `on_written` at once.
        self._history.add(history, on_written)

    def read(self, query: Callable[[JobBook], T]) -> T:
        """What `query` finds in the book, which does not change meanwhile; it must be quick and keep no reference."""
        with self._book_lock:
            return query(self._book)

    def job(self, key: JobKey) -> JobRow | None:
        """The job as the last reports have it, also those that wait for a commit to end."""
        return combined(rows) if (rows := self.rows(key)) else None

    def rows(self, key: JobKey) -> list[JobRow]:
        """As `job`, one for each range of its table."""
        with self._book_lock:
            return [self._newest(row) for row in self._book.rows_of(key)]

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Newest first, what is not written yet too. Raises StorageError."""
        entries = [*self._history.pending(job_id), *self._log.history(job_id, limit)]
        # One may have been written between the two reads; the table keeps microseconds.
        return list({(entry.seq, round(entry.end_at_s * 1e6)): entry for entry in entries}.values())[:limit]

    def _newest(self, row: JobRow) -> JobRow:
        with self._wake:
            waiting = [self._reports.get((row.job_id, only_moved)) for only_moved in (False, True)]
        for report in filter(None, waiting):
            row = apply_report(row, report) or row
        return row

    def _keep_reports(self, reports: Iterable[JobReport]) -> None:
        """Of a job the last one with a state and the last one without it are enough, in the order they came."""
        for report in reports:
            key = (report.job_id, report.state is None and report.reason is None and report.status is None)
            self._reports[key] = merge_reports(self._reports.pop(key, None), report)

    def _refuse_if_ended(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._closing:
            raise Unavailable("the job log's writer is closing")

    def _stop(self, error: IscpError) -> bool:
        """Take nothing more and fail what waits; False if it was stopped already."""
        with self._wake:
            if self._stopped is not None:
                return False
            self._stopped = error
            waiting = list(self._requests)
            self._requests.clear()
            self._reports.clear()
            self._wake.notify_all()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        return True
