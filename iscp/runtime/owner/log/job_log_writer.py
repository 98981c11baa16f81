"""The thread that writes the job log: group commit, and the maintenance of log and book.

One commit carries all that has gathered while the one before it ran. Requests go first and are answered when they are
in the log; the rows of status reports are batched behind them, and nothing waits for those.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar, overload

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_changes import PendingChanges
from iscp.coordination.jobs.job_requests import EndDeleted, Pause, Register, Request, Resume, Unregister, Update
from iscp.coordination.report_outbox import merge_reports
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_of_ranges import combined
from iscp.core.job.job_row import JobReport, JobRow, apply_report
from iscp.core.settings.config import JobLogConfig
from iscp.core.values.errors import (
    InvariantBroken,
    IscpError,
    NotOwner,
    OutcomeUnknown,
    QueueFull,
    TemporaryError,
    Unavailable,
)
from iscp.core.values.ids import JobKey
from iscp.ports.job_log import JobLog
from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.loop.timer import Timer
from iscp.runtime.owner.log.history_writer import HistoryWriter
from iscp.runtime.owner.log.log_batch import LogBatch
from iscp.runtime.owner.log.log_hooks import LogHooks
from iscp.runtime.owner.log.log_limits import LogLimits

log = logging.getLogger(__name__)
T = TypeVar("T")


class LogWriter:
    """Owns the book and writes the log, for one term. Requests and reports of other threads wait for its own.

    Lock order: `_book_lock`, which guards the book, before `_wake`, which guards what waits. Reports go from the one to
    the other under both, so that whoever reads a job finds them in one of the two.
    """

    def __init__(
        self,
        joblog: JobLog,
        book: JobBook,
        clock: Clock,
        config: JobLogConfig,
        hooks: LogHooks,
        limits: LogLimits = LogLimits(),  # noqa: B008  (frozen)
        threads: Threads = THREADS,
    ) -> None:
        self._log = joblog
        self._book = book
        self._history = HistoryWriter(joblog, clock, limits.retry_s, limits.tidy_every_s, threads)
        self._limits = limits
        self._clock = clock
        self._config = config
        self._hooks = hooks
        (self._wake,) = threads.conditions(1)
        self._book_lock = Lock()
        self._requests: deque[tuple[Request, Future[Any]]] = deque()
        self._reports: dict[tuple[str, bool], JobReport] = {}
        self._closing = False
        self._stopped: IscpError | None = None
        self._unconfirmed: LogBatch | None = None
        self._taken: list[Future[Any]] = []
        self._failures = 0
        now_s = clock.monotonic_s()
        self._status_due_s: float | None = None
        self._retry_at_s = now_s
        self._flush = Timer(config.flush_interval_s, now_s)
        self._collect = Timer(config.collect_interval_s, now_s)
        self._compact = Timer(config.compact_interval_s, now_s)
        self._compaction_wanted = False
        self._thread = threads.thread("iscp-log", self._run)

    def start(self) -> None:
        self._history.start()
        self._thread.start()

    def close(self) -> None:
        """Refuse what is new, write what is pending, and end, within a bounded time."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.is_alive() and not self._thread.is_current():
            self._thread.join(self._limits.close_s)
        self._stop(Unavailable("the job log's writer is closed"))
        self._history.close()

    @overload
    def submit(self, request: Register) -> Future[tuple[RegisterResult, ...]]: ...
    @overload
    def submit(self, request: Unregister | Pause | Resume | Update) -> Future[bool]: ...
    @overload
    def submit(self, request: Request) -> Future[Any]: ...
    def submit(self, request: Request) -> Future[Any]:
        """Submit a request; its future is answered once the request is in the log.

        Raises QueueFull, NotOwner, Unavailable (closing). The future fails with InvalidRequest or JobNotFound, with
        StorageError (nothing was written), NotOwner, or OutcomeUnknown if the writer is closed before it could check.
        """
        (future,) = self.submit_all([request])
        return future

    def submit_all(self, requests: Sequence[Request]) -> list[Future[Any]]:
        """Submit each request as `submit` does; if that raises, none was taken."""
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
        """Return what `query` finds in the book, which does not change meanwhile; it must be quick and store no
        reference.
        """
        with self._book_lock:
            return query(self._book)

    def job(self, key: JobKey) -> JobRow | None:
        """Return the job as the last reports have it, also those that wait for a commit to end."""
        return combined(rows) if (rows := self.rows(key)) else None

    def rows(self, key: JobKey) -> list[JobRow]:
        """Return rows as `job` does, one for each range of its table."""
        with self._book_lock:
            return [self._newest(row) for row in self._book.rows_of(key)]

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first, what is not written yet too. Raises StorageError."""
        entries = [*self._history.pending(job_id), *self._log.history(job_id, limit)]
        # One may have been written between the two reads; the table keeps microseconds.
        return list({(entry.seq, round(entry.end_at_s * 1e6)): entry for entry in entries}.values())[:limit]

    @property
    def quarantined(self) -> int:
        """Return how many entries of the history were dead-lettered."""
        return self._history.quarantined

    def _newest(self, row: JobRow) -> JobRow:
        with self._wake:
            waiting = [self._reports.get((row.job_id, only_moved)) for only_moved in (False, True)]
        for report in filter(None, waiting):
            row = apply_report(row, report) or row
        return row

    def _keep_reports(self, reports: Iterable[JobReport]) -> None:
        """Store reports until they are written: the last one of a job with a state, and the last one without it, are
        enough, in the order they came.
        """
        for report in reports:
            key = (report.job_id, report.state is None and report.reason is None and report.status is None)
            self._reports[key] = merge_reports(self._reports.pop(key, None), report)

    def _refuse_if_ended(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._closing:
            raise Unavailable("the job log's writer is closing")

    # --- the writer's thread -------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Do all that is due; answers after how many seconds there may be more to do (0: at once)."""
        now_s = self._clock.monotonic_s()
        if self._unconfirmed is None:
            self._take_reports(now_s)
            self._look_after_book(now_s)
            batch = self._gather(now_s)
            if batch.answers or batch.entries():
                self._write(batch, now_s)
        elif now_s >= self._retry_at_s or self._closing:
            self._write(self._unconfirmed, now_s)
        if self._unconfirmed is None and self._stopped is None and now_s >= self._retry_at_s:
            self._compact_if_wanted(now_s)
        return self._pause_s()

    def _take_reports(self, now_s: float) -> None:
        with self._book_lock:
            with self._wake:
                reports, self._reports = self._reports, {}
            if not reports:
                return
            change = self._book.apply(reports.values())
        self._plan_statuses(now_s + self._config.status_batch_s)
        if change.rows:
            self._hooks.on_committed(change)

    def _plan_statuses(self, at_s: float) -> None:
        if not self._book.due(1):
            self._status_due_s = None
        elif self._status_due_s is None:
            self._status_due_s = at_s

    def _look_after_book(self, now_s: float) -> None:
        if self._flush.fires(now_s) or self._closing:  # a timer that stays due would have it turn without rest
            with self._book_lock:
                self._book.flush_watermarks()
            self._plan_statuses(now_s)
        if self._collect.fires(now_s):
            with self._book_lock:
                gone = self._book.collect(self._clock.now_s() - self._config.keep_dropped_s)
            self._compaction_wanted |= gone > 0
        if self._compact.fires(now_s):
            self._compaction_wanted |= self._log.commits_since_compaction > 1

    def _gather(self, now_s: float) -> LogBatch:
        batch = LogBatch(PendingChanges(self._book, self._clock.now_s()))
        with self._wake:
            taken = [self._requests.popleft() for _ in range(min(len(self._requests), self._limits.batch_requests_max))]
        taken = [(request, future) for request, future in taken if future.set_running_or_notify_cancel()]
        self._taken = [future for _, future in taken]
        for request, future in taken:
            try:
                batch.answers.append((future, batch.draft.decide(request)))
            except IscpError as error:
                if batch.draft.entries:  # it may follow from what the log does not have yet
                    batch.answers.append((future, error))
                else:
                    future.set_exception(error)
        if now_s >= self._retry_at_s:
            for row in self._book.deleted():
                batch.draft.decide(EndDeleted(row.key, row.job_id))
        due = self._status_due_s is not None and (now_s >= self._status_due_s or self._closing)
        if due and now_s >= self._retry_at_s:
            decided = {entry.row.key for entry in batch.draft.entries}
            statuses = self._book.due(self._limits.batch_statuses_max)
            batch.statuses = [row for row in statuses if row.key not in decided]
        return batch

    def _write(self, batch: LogBatch, now_s: float) -> None:
        entries = batch.entries()
        try:
            if entries:
                self._log.append(entries)
        except OutcomeUnknown as error:
            # Repeated before anything else is written: the log recognizes it by its commit id.
            self._unconfirmed = batch
            self._back_off(now_s, error)
        except NotOwner as error:
            self._depose(error)
            self._unconfirmed = None
        except TemporaryError as error:  # nothing was written
            self._unconfirmed = None
            self._back_off(now_s, error)
            self._fail_taken(error)
        else:
            self._unconfirmed = None
            if entries:
                self._failures = 0
                self._hooks.on_written(self._log.version)
            self._apply_commit(batch, now_s)

    def _apply_commit(self, batch: LogBatch, now_s: float) -> None:
        with self._book_lock:
            change = self._book.commit(batch.draft.entries)
            self._book.mark_logged(batch.statuses)
        self._status_due_s = None
        self._plan_statuses(now_s)
        try:
            if change.rows:
                self._hooks.on_committed(change)
        finally:
            # Whatever a hook raises: the changes are in the log.
            for future, answer in batch.answers:
                if isinstance(answer, IscpError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _compact_if_wanted(self, now_s: float) -> None:
        if not self._compaction_wanted and self._log.commits_since_compaction < self._config.compact_commits:
            return
        # Without the lock: this thread alone changes the book.
        rows = self._book.rows()
        try:
            self._log.compact(rows)
        except NotOwner as error:
            self._depose(error)
        except TemporaryError as error:
            self._back_off(now_s, error)
        else:
            self._hooks.on_written(self._log.version)
            with self._book_lock:
                self._book.mark_logged(rows)
            self._compaction_wanted = False
            self._status_due_s = None
            log.info("log.compacted", extra={"rows": len(rows)})

    def _back_off(self, now_s: float, error: IscpError) -> None:
        pause_s = min(self._limits.retry_s * 2.0 ** min(self._failures, 16), self._limits.retry_max_s)
        self._failures += 1
        self._retry_at_s = now_s + pause_s
        log.warning("log.failed", extra={"error": str(error), "retry_in_s": pause_s})

    def _pause_s(self) -> float:
        now_s = self._clock.monotonic_s()
        if self._unconfirmed is not None:
            return max(0.0, self._retry_at_s - now_s)
        with self._wake:
            if self._requests or self._reports:
                return 0.0
        due_s = [self._flush.due_s, self._collect.due_s, self._compact.due_s]
        if self._status_due_s is not None:
            due_s.append(max(self._status_due_s, self._retry_at_s))
        if self._book.deleted():
            due_s.append(self._retry_at_s)
        if self._compaction_wanted or self._log.commits_since_compaction >= self._config.compact_commits:
            due_s.append(self._retry_at_s)
        return max(0.0, min(due_s) - now_s)

    def _run(self) -> None:
        try:
            while self._stopped is None:
                pause_s = self.turn()
                with self._wake:
                    if self._drained():
                        return
                    # Checked again under the lock: what came since the turn has woken nobody.
                    if pause_s > 0 and not (self._unconfirmed is None and (self._requests or self._reports)):
                        self._wake.wait(min(pause_s, self._limits.retry_s) if self._closing else pause_s)
        except Exception as error:
            log.exception("log.broken")
            self._depose(InvariantBroken(f"the job log's writer broke: {error}"))
        finally:
            self._fail_taken(self._stopped or Unavailable("the job log's writer is closed"))

    def _drained(self) -> bool:
        """Closing, and nothing is left that could still be written."""
        if not self._closing or self._unconfirmed is not None or self._requests or self._reports:
            return False
        return self._failures > 0 or not self._book.due(1)

    def _depose(self, error: IscpError) -> None:
        self._fail_taken(error)
        if self._stop(error):
            log.warning("log.deposed", extra={"error": str(error)})
            self._hooks.on_deposed(error)

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

    def _fail_taken(self, error: IscpError) -> None:
        """Fail what the current batch has not answered; only ever called from the writer's thread."""
        if self._unconfirmed is not None:
            error = OutcomeUnknown(
                "the job log did not say whether this was written", remedy="Retry with the same request_id"
            )
        for future in self._taken:
            if not future.done():
                future.set_exception(error)
