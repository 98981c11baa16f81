"""The thread that writes the job log by group commits, and maintains log and book.

The module also has what belongs to it: marks about the log outside of it, the writer of the history, and the writer's
batches, hooks and limits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar, overload

from iscp.cluster.jobs.job_book import BookChange, JobBook
from iscp.cluster.jobs.job_changes import (
    Answer,
    EndDeleted,
    Pause,
    PendingChanges,
    Register,
    Request,
    Resume,
    Unregister,
    Update,
)
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow, LogEntry, apply_report, combined
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import (
    HistoryDamaged,
    InvalidRequest,
    InvariantBroken,
    IscpError,
    NotOwner,
    OutcomeUnknown,
    QueueFull,
    TemporaryError,
    Unavailable,
    no_etcd,
)
from iscp.model.values.ids import JobKey, Leader
from iscp.model.values.untrusted_values import error_text, shown
from iscp.ports.cluster import LogMarks
from iscp.ports.engine import JobLog
from iscp.ports.system import Clock, Threads
from iscp.schedule.reports import merge_reports
from iscp.system.batch_writer import BatchLimits, BatchWriter, Chore, Outlet
from iscp.system.inbox import Timer
from iscp.system.threads import THREADS

# --- marks about the job log, outside of it ---------------------------------------------------------------------------

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least seconds between two records in etcd of how far the job log has come."""

LAST_WAIT_S = 2.0
"""Seconds that a node that ends waits for etcd to take the last record; then the next owner reads the log without
it.
"""

ASK_PAUSE_S = 5.0
"""Pause before the log's fault is read from etcd again after it did not answer."""


class LogMarker:
    """Keeps outside the job log what is to be known once it is damaged: its last version, and why nobody can claim it.

    No commit waits for the marks: a thread that may wait for etcd writes them, and after a pause where one commit
    follows another. `due_s` says when to call `advance` (None: the last version is saved, or on its way).

    `note` and `fault` may be called from any thread, all else belongs to the owner loop's.
    """

    def __init__(self, marks: LogMarks, clock: Clock, etcd: Executor) -> None:
        self._marks = marks
        self._clock = clock
        self._etcd = etcd
        self._version = self._saved = -1
        self._saved_at_s = self._ask_at_s = float("-inf")
        self._asking = threading.Lock()
        self._reported = (0, "")
        self._heard: IscpError | None = None
        self.due_s: float | None = None

    def note(self, version: int) -> bool:
        """Note that the log was written, or claimed, at this version, and return whether that made something due."""
        self._version = version
        if self.due_s is not None:
            return False
        self.due_s = max(self._clock.monotonic_s(), self._saved_at_s + EVERY_S)
        return True

    def advance(self, leader: Leader | None) -> None:
        now_s = self._clock.monotonic_s()
        if leader is None or self.due_s is None or self.due_s > now_s:
            return
        self.due_s, self._saved_at_s = None, now_s
        self._etcd.submit(self._save, leader)

    def close(self, leader: Leader | None) -> None:
        """Save the last version, if that is not done; wait for etcd, but not for long."""
        if leader is not None and self._saved != self._version:
            wait([self._etcd.submit(self._save, leader)], LAST_WAIT_S)

    def report(self, leader: Leader, fault: IscpError | None) -> None:
        """Report to all nodes why the log cannot be claimed; None if it was claimed."""
        report = leader.revision, str(fault or "")
        # What an earlier term has reported is gone with its lease.
        if report == self._reported or (fault is None and leader.revision != self._reported[0]):
            return
        self._reported = report
        self._etcd.submit(self._report, leader, fault)

    def fault(self) -> IscpError | None:
        """Return what the node that leads has reported, or that etcd does not answer; one thread at a time waits for
        it.
        """
        # The others are given what was heard last: no call of a user waits for etcd behind another.
        if self._asking.acquire(blocking=False):
            try:
                if self._clock.monotonic_s() >= self._ask_at_s:
                    self._heard = self._marks.fault()
            except IscpError as error:
                self._heard, self._ask_at_s = no_etcd(error), self._clock.monotonic_s() + ASK_PAUSE_S
                log.warning("owner.fault_not_known", extra={"error": str(error)})
            finally:
                self._asking.release()
        return self._heard

    def _save(self, leader: Leader) -> None:
        version = self._version
        try:
            self._marks.save(leader, version)
            self._saved = version
        except IscpError as error:
            log.warning("owner.log_not_marked", extra={"error": str(error)})
            if not isinstance(error, NotOwner):
                self.due_s = self._saved_at_s + EVERY_S

    def _report(self, leader: Leader, fault: IscpError | None) -> None:
        try:
            self._marks.report_fault(leader, fault)
        except IscpError as error:
            self._reported = leader.revision, "?"  # the next attempt to claim the log reports it again
            log.warning("owner.fault_not_reported", extra={"error": str(error)})


# --- the history of iterations ----------------------------------------------------------------------------------------

BATCH_MAX = 10_000
"""History entries in one commit; the others follow in further commits."""

CLOSE_S = 5.0
"""Seconds that the end of a term waits for the history's thread; then it is left."""

WAITING_WHILE_DAMAGED_MAX = 10_000
"""Entries that wait in memory while the history is damaged; beyond them the oldest are dropped, and logged."""

DAMAGED_RETRY_S = 10.0
"""Least seconds until a damaged history is tried again."""


class HistoryWriter:
    """The thread that writes the history of iterations and deletes the log's old files: nobody waits for either.

    Entries are batched for about a second; while the storage fails they wait. While the history is damaged nobody waits
    for them: a person has to repair it, and jobs must not stop until then.
    """

    def __init__(
        self, joblog: JobLog, clock: Clock, retry_s: float, tidy_every_s: float, threads: Threads = THREADS
    ) -> None:
        self.quarantined = 0
        """Entries that were dead-lettered."""
        self._log = joblog
        self._damage = ""
        outlet = Outlet(append=self._append, refuse=self._quarantine, on_failure=self._take_failure)
        # The queue is bounded by what nodes keep unacknowledged (coordination.outbox.HISTORY_MAX each).
        limits = BatchLimits(BATCH_MAX, retry_s, retry_s, CLOSE_S)
        self._batches = BatchWriter("history", outlet, limits, Chore(self._tidy, tidy_every_s, clock), threads)

    def start(self) -> None:
        self._batches.start()

    def close(self) -> None:
        """Write what is pending, once, and end."""
        self._batches.close()

    def turn(self) -> bool:
        """Write one batch; return False if the storage failed, and the batch waits."""
        return self._batches.turn()

    def add(self, entries: Sequence[HistoryEntry], on_written: Callable[[], None]) -> None:
        """Add entries; `on_written` is called, from any thread, once these and all before them are in the table."""
        self._batches.add(entries, on_written)

    def pending(self, job_id: str) -> list[HistoryEntry]:
        """Return what is not in the table yet, newest first."""
        return [entry for entry in reversed(self._batches.waiting()) if entry.job_id == job_id]

    def _append(self, entries: Sequence[HistoryEntry]) -> None:
        self._log.append_history(entries)
        self._damage = ""

    def _tidy(self) -> None:
        log.info("log.tidied", extra={"files": self._log.tidy()})

    def _take_failure(self, error: IscpError) -> float:
        if not isinstance(error, HistoryDamaged):
            log.warning("history.failed", extra={"error": str(error)})
            return 0.0
        if str(error) != self._damage:
            log.error("history.damaged", extra={"error": str(error)})
        self._damage = str(error)
        if dropped := self._batches.delay(WAITING_WHILE_DAMAGED_MAX):
            log.error("history.dropped", extra={"entries": dropped, "error": self._damage})
        return DAMAGED_RETRY_S

    def _quarantine(self, entry: HistoryEntry, error: InvalidRequest) -> None:
        """Dead-letter an entry that no table can hold, as nobody could wait for it."""
        self.quarantined += 1
        log.error("history.quarantined", extra={"entry": shown(entry), "error": error_text(error)})


# --- batches, hooks and limits of the writer --------------------------------------------------------------------------


@dataclass(slots=True)
class LogBatch:
    """A batch is what one commit to the job log carries: the rows of the changes, statuses behind them, and whom to
    answer.
    """

    draft: PendingChanges
    answers: list[tuple[Future[Any], Answer | IscpError]] = field(default_factory=list)
    statuses: list[JobRow] = field(default_factory=list)

    def entries(self) -> list[LogEntry]:
        return [*self.draft.entries, *map(LogEntry, self.statuses)]


@dataclass(frozen=True, slots=True)
class LogHooks:
    """The hooks by which the job log's writer notifies others. All are called from the writer's thread.

    `on_committed` after each commit, before its requests are answered, and when a report has moved rows; `on_deposed`
    once, when another owner was seen or an invariant was found broken: everything pending has failed by then;
    `on_written` with the log's version after each of its commits.
    """

    on_committed: Callable[[BookChange], None]
    on_deposed: Callable[[IscpError], None]
    on_written: Callable[[int], None] = lambda version: None


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds and intervals of the log's writer, beside the settings of the section `log`; all in seconds or counts."""

    requests_max: int = 20_000
    """Requests that wait for the log; one more is refused with QUEUE_FULL."""

    batch_requests_max: int = 2_000
    """Requests in one commit; the others follow in further commits."""

    batch_statuses_max: int = 5_000
    """Statuses in one commit; the others follow in further commits."""

    retry_s: float = 0.5
    """Pause after a failed commit; it doubles up to `retry_max_s`."""

    retry_max_s: float = 30.0
    """Longest pause after a failed commit."""

    tidy_every_s: float = 3_600.0
    """Time after which files that no version of the log needs are deleted."""

    close_s: float = 10.0
    """Seconds that the end of a term waits for the thread; then it is left, and the fence refuses its commits."""


# --- the writer -------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class LogWriter:
    """Owns the book and writes the log, for one term. Requests and reports of other threads wait for its own.

    One commit carries all that has gathered while the one before it ran. Requests go first and are answered when they
    are in the log; the rows of status reports are batched behind them, and nothing waits for those.

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
        limits: LogLimits = LogLimits(),
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
