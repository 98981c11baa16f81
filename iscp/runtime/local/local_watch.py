"""Keep the jobs of a plan fresh for as long as this process runs: a node's schedule, without the node.

A job is registered once its tables are there. From then on the schedule probes them, and runs iterations by the jobs'
triggers, with retries by backoff; commits to local tables are noticed at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, get_args

from iscp.coordination.jobs.table_copies import with_own_table_id
from iscp.coordination.protocol.effects import StartShard, UpdateShard
from iscp.coordination.protocol.events import Reports, Seen
from iscp.coordination.schedule.schedule_events import VerifyAnswered, WorkerNews
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport, JobRow, JobState
from iscp.core.run.run_plan import RunPlan
from iscp.core.run.run_result import ResultState, RunResult, with_need
from iscp.core.run.run_words import words_of_a_run
from iscp.core.values.errors import PERMANENT_FROM, ErrorCode, TableNotFound, TemporaryError
from iscp.core.values.ids import JobKey, TableEpoch
from iscp.core.values.progress import RunProgress
from iscp.runtime.local.job_registrar import JobRegistrar, RegisteredJob, RunOrders
from iscp.runtime.local.local_run import RequestedJob, RunListener, failed
from iscp.runtime.local.spark_needs import SparkNeeds
from iscp.runtime.local.unit_runner import result_of
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.maintenance import Maintenance
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.table_notices import TableNotices

if TYPE_CHECKING:
    # These are of a page alone.
    from iscp.ports.target_reading import Searching
    from iscp.runtime.admin.retention_watch import RetentionWatch
    from iscp.runtime.local.watched_jobs import WatchedJobs

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks for tables that were not there, and whether Spark still runs."""

SCHEDULER_WAIT_S = 5.0
"""Seconds that the schedule's thread may take to end."""


@dataclass(frozen=True, slots=True)
class WatchParts:
    """The parts that run iterations. `notices` wakes the jobs of tables that have changed.

    `needs` hears of each outcome before the schedule does.
    """

    registrar: JobRegistrar
    scheduler: Scheduler
    executor: Executor
    maintenance: Maintenance
    notices: TableNotices
    alive: Callable[[], bool]
    progress: Callable[[str], RunProgress | None]
    needs: SparkNeeds


class PageServes(Protocol):
    """The server of a page, as `iscp.page` has it."""

    def ready(self) -> None: ...

    def stop(self, grace_s: float = ...) -> None: ...


@dataclass(frozen=True, slots=True)
class WatchPage:
    """A page on which a watch is seen: its server, which has taken the port of `address`, and what it shows.

    `retention` finds out what sources retain, and `searches` answers searches of indexes.
    """

    server: PageServes
    address: str
    shown: WatchedJobs
    retention: RetentionWatch
    searches: Searching

    def begin(self) -> None:
        self.retention.start()
        self.server.ready()

    def end(self) -> None:
        self.searches.close()
        self.retention.close()
        self.server.stop(0.0)


@dataclass(slots=True)
class _Watched:
    """A `_Watched` is what is watched by now."""

    rows: dict[JobKey, JobRow] = field(default_factory=dict)
    numbers: dict[JobKey, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


class LocalWatch:
    """Watches the jobs of one plan. `listener` hears of each commit, and of each fault once."""

    def __init__(
        self,
        parts: WatchParts,
        jobs: Sequence[RequestedJob],
        plan: RunPlan,
        orders: RunOrders,
        listener: RunListener,
        page: WatchPage | None = None,
    ) -> None:
        self._parts = parts
        self.page = page
        self._jobs = jobs
        self._orders = orders
        self._listener = listener
        self._waiting = sorted(plan.chosen)
        self._told: dict[int, str] = {}
        self._watched = _Watched()
        self._lock = threading.Lock()
        self._stopped = False
        self._end: queue.SimpleQueue[None] = queue.SimpleQueue()  # an Event's lock stops the handler of a signal
        parts.scheduler.reports.subscribe(self._hear, *get_args(WorkerNews))
        parts.scheduler.reports.subscribe(lambda answer: None, VerifyAnswered)
        if page is not None:
            parts.scheduler.reports.subscribe(page.shown.hear_reports, Reports)
            parts.scheduler.reports.subscribe(page.shown.hear_seen, Seen)

    def run(self, stop_s: float) -> bool:
        """Keep the jobs fresh until `stop`; then let what runs end, for `stop_s` seconds at the most.

        Return False if Spark has ended by itself.
        """
        parts = self._parts
        parts.scheduler.start(parts.executor)
        parts.maintenance.start()
        try:
            if self.page is not None:
                self.page.begin()
            while not self._stopped and parts.alive():
                self._register_waiting()
                with suppress(queue.Empty):
                    self._end.get(timeout=LOOK_S)
            return self._stopped
        finally:
            if self.page is not None:
                self.page.end()
            parts.notices.close()
            parts.maintenance.close(SCHEDULER_WAIT_S)
            parts.executor.close(drain=True, wait_s=stop_s)
            parts.scheduler.close(SCHEDULER_WAIT_S)

    def stop(self) -> None:
        """End the watch; from any thread, or a handler of a signal."""
        self._stopped = True
        self._end.put(None)

    def _register_waiting(self) -> None:
        taken = [number for number in self._waiting if not self._stopped and self._register(number)]
        if not taken:
            return
        self._waiting = [number for number in self._waiting if number not in taken]

    def _register(self, number: int) -> bool:
        """Take a job in; return False if it is to be tried again later."""
        job = self._jobs[number]
        with self._parts.needs.noting() as tally:
            try:
                registered = self._parts.registrar.register(job.request, self._orders, rebuild=job.rebuild)
            except (TableNotFound, TemporaryError) as error:
                self._refuse(number, with_need(failed(job, error), tally.spark), again=True)
                return False
            except Exception as error:  # noqa: BLE001  (one job's fault is its own)
                self._refuse(number, with_need(failed(job, error), tally.spark), again=False)
                return True
        self._parts.needs.add(registered.row.job_id, tally.spark)
        self._take(number, registered)
        return True

    def _take(self, number: int, registered: RegisteredJob) -> None:
        with self._lock:
            watched = self._watched
            row = with_own_table_id(registered.row, watched.rows.get, watched.places.get)
            shard, new = row.key.shard, row.key.table_id not in watched.places
            watched.places[row.key.table_id] = row.table_uri
            watched.rows[row.key], watched.numbers[row.key] = row, number
            jobs = tuple(each for each in watched.rows.values() if each.key.shard == shard)
        self._listener.begin(number)
        if self.page is not None:
            self.page.shown.take(number, row, registered.position)
        epoch = TableEpoch(1, len(jobs))
        order = StartShard(shard, epoch, jobs) if new else UpdateShard(shard, epoch, jobs)
        self._parts.scheduler.post(order)
        self._parts.maintenance.give(order)
        self._parts.notices.give(order)

    def _refuse(self, number: int, fault: RunResult, *, again: bool) -> None:
        if self.page is not None:
            self.page.shown.refuse(number, fault, again=again)
        self._say_once(number, fault)

    def _hear(self, news: object) -> None:
        if not isinstance(news, Reports):
            return
        for entry in news.history:
            self._hear_commit(entry)
        for report in news.reports:
            self._hear_report(report)

    def _hear_commit(self, entry: HistoryEntry) -> None:
        with self._lock:
            key = JobKey(entry.account, entry.table_id, entry.job_name)
            number, row = self._watched.numbers.get(key), self._watched.rows.get(key)
        if number is None or row is None or entry.error_code:
            return
        self._told.pop(number, None)
        result = replace(
            result_of(row),
            state=ResultState.UPDATED,
            strategy=entry.data_type,
            reason=entry.reason,
            from_version=entry.from_version,
            to_version=entry.to_version,
            rows=entry.rows,
            bytes=entry.bytes,
            seconds=round(entry.end_at_s - entry.start_at_s, 4),
            iterations=1,
        )
        self._listener.end(number, with_need(result, self._parts.needs.take(entry.job_id)))

    def _hear_report(self, report: JobReport) -> None:
        """Note how far the job has come, and say what is wrong with it."""
        with self._lock:
            number, row = self._watched.numbers.get(report.key), self._watched.rows.get(report.key)
            if number is None or row is None or row.job_id != report.job_id:
                return
            self._watched.rows[report.key] = row = row._replace(watermark=report.watermark, seq=report.seq)
        status = report.status
        if status is None or report.state is JobState.RUNNING or status.error_code == ErrorCode.OK:
            return
        error = words_of_a_run(status.error_msg)
        fault = replace(result_of(row), state=ResultState.FAILED, error_code=int(status.error_code), error=error)
        self._say_once(number, fault)

    def _say_once(self, number: int, result: RunResult) -> None:
        """Have the listener hear of a fault, unless it has heard of it last, or the end may be why."""
        if self._stopped and result.error_code < PERMANENT_FROM:
            return
        if self._told.get(number) != result.error:
            self._told[number] = result.error
            self._listener.end(number, result)
