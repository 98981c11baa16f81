"""Keep the jobs of a plan fresh for as long as this process runs: a node's schedule, without the node. The page of a
watch is shown its jobs and its builds.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, get_args

from iscp.cluster.requests.job_views import view_of
from iscp.model.api.api_requests import JobView
from iscp.model.build.build_progress import BuildStage, BuildView
from iscp.model.job.iteration import HistoryEntry, JobOutcome, SparkNeed, joined_needs
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, apply_report, with_own_table_id
from iscp.model.protocol.events import Reports, Seen, StartShard, UpdateShard
from iscp.model.protocol.messages import SourceSeen
from iscp.model.run.run_plan import ResultState, RunPlan, RunResult, with_need, words_of_a_run
from iscp.model.values.errors import PERMANENT_FROM, ErrorCode, JobNotFound, TableNotFound, TemporaryError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.progress import UNKNOWN, RunProgress
from iscp.model.values.watermark import Position
from iscp.ports.engine import UsageTally, working_for
from iscp.ports.system import Clock
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance
from iscp.schedule.schedule_events import VerifyAnswered, WorkerNews
from iscp.schedule.scheduler import Scheduler, TableNotices
from iscp.standalone.local_run import (
    JobRegistrar,
    RegisteredJob,
    RequestedJob,
    RunListener,
    RunOrders,
    failed,
    result_of,
)

if TYPE_CHECKING:
    from iscp.cluster.read_services import RetentionWatch
    from iscp.ports.admin import Searching

log = logging.getLogger(__name__)


# --- jobs as the page shows them --------------------------------------------------------------------------------------
# Whoever views the page of a watch is shown the jobs' rows, their tables and their last iterations.

HISTORY_MAX = 40
"""Iterations of one job that are remembered, the newest ones."""

ENTRIES_MAX = 40_000
"""Iterations that are remembered of all jobs together. Of more than a thousand jobs each has fewer than HISTORY_MAX,
though at least one.
"""


@dataclass(frozen=True, slots=True)
class _JobKnown:
    """All that is known of one job: `row` and `seen` once it is taken in, before that what was wrong with it."""

    job: RequestedJob
    row: JobRow | None
    seen: SourceSeen | None
    fault: RunResult | None
    again: bool


class WatchedJobs:
    """The jobs by their numbers in the plan. Safe for threads; nothing in it waits.

    `node_id` is the name by which iterations call this process, and for `silent_s` seconds nothing need be heard of a
    table that does not move. `retained_s` says for how long a job's sources retain what was removed.
    """

    def __init__(
        self,
        jobs: Mapping[int, RequestedJob],
        node_id: str,
        clock: Clock,
        retained_s: Callable[[JobRow], float] = lambda row: 0.0,
    ) -> None:
        self.node_id = node_id
        self._jobs = jobs
        self._named: dict[str, list[int]] = {}
        for number, job in sorted(jobs.items()):
            self._named.setdefault(job.planned.name, []).append(number)
        self._clock = clock
        self._retained_s = retained_s
        self._began_at_s = clock.now_s()
        self._history_max = max(1, min(HISTORY_MAX, ENTRIES_MAX // max(1, len(jobs))))
        self._faults: dict[int, tuple[RunResult, bool]] = {}
        self._keys: dict[int, JobKey] = {}
        self._rows: dict[JobKey, JobRow] = {}
        self._seen: dict[ShardId, SourceSeen] = {}
        self._history: dict[JobKey, deque[HistoryEntry]] = {}
        self._lock = threading.Lock()

    # --- what the watch says ---------------------------------------------------------------------------------------

    def refuse(self, number: int, fault: RunResult, *, again: bool) -> None:
        """Note why a job could not be taken in. `again`: that is tried again."""
        with self._lock:
            self._faults[number] = fault, again

    def take(self, number: int, row: JobRow, position: Position | None = None) -> None:
        """Note that a job is taken in. `position` is what its target said, from which the job goes on."""
        if position is not None and row.watermark.version >= 0:
            status = JobStatus(dead_letters=position.dead.rows, sources=position.sources)
            row = row._replace(status_json=status.to_json())
        with self._lock:
            self._faults.pop(number, None)
            self._keys[number], self._rows[row.key] = row.key, row
            self._history[row.key] = deque(maxlen=self._history_max)

    def hear_seen(self, news: Seen) -> None:
        """Note what the schedule has seen of a table."""
        with self._lock:
            self._seen[news.seen.shard] = news.seen

    def hear_reports(self, news: Reports) -> None:
        """Note what the schedule reports of jobs, and of their iterations."""
        with self._lock:
            for report in news.reports:
                if (row := self._rows.get(report.key)) is not None:
                    self._rows[report.key] = apply_report(row, report) or row
            for entry in news.history:
                key = JobKey(entry.account, entry.table_id, entry.job_name)
                if key in self._history:
                    self._history[key].append(entry)

    # --- what is shown ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._jobs)

    def views(self) -> list[JobView]:
        """Return all jobs, in the order in which they are written."""
        numbers = sorted(self._jobs)
        with self._lock:
            known = [self._known(number) for number in numbers]
        return list(map(self._view, numbers, known))

    def view(self, table: str, name: str, account: str) -> JobView:
        """Return one job, by the id, the name or the place of its table. Raises JobNotFound."""
        with self._lock:
            number = self._number(table, name, account)
            known = self._known(number)
        return self._view(number, known)

    def row(self, table: str, name: str, account: str) -> JobRow | None:
        """Return the job's row, by which its target is read; None as long as it is not taken in. Raises JobNotFound."""
        with self._lock:
            key = self._keys.get(self._number(table, name, account))
            return None if key is None else self._rows[key]

    def rows(self) -> list[JobRow]:
        """Return the rows of all jobs that are taken in, in the order in which they are written."""
        with self._lock:
            return [self._rows[self._keys[number]] for number in sorted(self._keys)]

    def at(self, target: str) -> list[JobRow]:
        """Return the rows of the jobs that keep the target at this place, as it is normalized."""
        with self._lock:
            numbers = [number for number in sorted(self._keys) if self._jobs[number].planned.target == target]
            return [self._rows[self._keys[number]] for number in numbers]

    def lagging(self, least_s: float) -> list[JobRow]:
        """Return the rows of the jobs that lag by so many seconds at least, those that lag most first."""
        lags = {view.job_id: view.lag_s for view in self.views() if view.applied_version >= 0}
        found = [row for row in self.rows() if lags.get(row.job_id, -1.0) >= least_s]
        return sorted(found, key=lambda row: lags[row.job_id], reverse=True)

    def requested(self, table: str, name: str, account: str) -> RequestedJob:
        """Return the job as files want it. Raises JobNotFound."""
        with self._lock:
            return self._jobs[self._number(table, name, account)]

    def history(self, table: str, name: str, account: str, limit: int) -> Sequence[HistoryEntry]:
        """Return the job's last iterations, the newest first. Raises JobNotFound."""
        with self._lock:
            key = self._keys.get(self._number(table, name, account))
            return [] if key is None else list(reversed(self._history[key]))[:limit]

    def _number(self, table: str, name: str, account: str) -> int:
        for number in self._named.get(name, ()):
            job, key = self._jobs[number], self._keys.get(number)
            tables = {job.planned.reads[0], job.request.job.table, key.table_id if key is not None else ""}
            if table in tables and account in ("", job.planned.account):
                return number
        raise JobNotFound(f"is none of the jobs of this run: {name!r}", field="job", remedy="See the list of jobs")

    def _known(self, number: int) -> _JobKnown:
        key, (fault, again) = self._keys.get(number), self._faults.get(number, (None, True))
        row, seen = (None, None) if key is None else (self._rows[key], self._seen.get(key.shard))
        return _JobKnown(self._jobs[number], row, seen, fault, again)

    def _view(self, number: int, known: _JobKnown) -> JobView:
        """Return the view; it takes long for ten thousand jobs, and so is made while nobody waits for the lock."""
        if known.row is not None:
            view = view_of(known.row, known.seen, self.node_id, self._clock.now_s())
            return replace(view, retained_s=self._retained_s(known.row))
        job, fault, again = known.job, known.fault, known.again
        status = JobStatus(error_code=fault.error_code, error_msg=fault.error) if fault is not None else JobStatus()
        table = job.planned.reads[0]
        return JobView(
            account=job.planned.account,
            table_id=table,
            table=table,
            name=job.planned.name,
            job_id=f"job-{number}",  # there is none, and boards need what distinguishes it
            spec_json=job.request.spec_json,
            state=JobState.COMPLETED if again else JobState.ERROR,
            reason=Reason.RETRYING if fault is not None and again else Reason.NONE,
            applied_version=-1,
            applied_at_s=0.0,
            source_version=-1,
            checked_at_s=0.0,
            lag_s=-1.0,
            lag_least_s=-1.0,
            seq=0,
            status=status,
            create_at_s=self._began_at_s,
            node_id=self.node_id,
        )


# --- needs of Spark ---------------------------------------------------------------------------------------------------
# Why the jobs of a watch needed Spark is collected until their next result says so.


class SparkNeeds:
    """The needs of jobs by their ids; safe for threads. What a failed iteration needed is not among them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._needs: dict[str, SparkNeed] = {}

    @contextmanager
    def noting(self) -> Iterator[UsageTally]:
        """Charge what this thread does within to the tally that is returned, whose need may be added afterwards."""
        tally = UsageTally()
        with working_for(self._clock, [tally]):
            yield tally

    def hear(self, outcome: JobOutcome) -> None:
        """Add what an iteration needed Spark for."""
        self.add(outcome.row.job_id, outcome.spark)

    def add(self, job_id: str, need: SparkNeed | None) -> None:
        with self._lock:
            if (both := joined_needs(self._needs.get(job_id), need)) is not None:
                self._needs[job_id] = both

    def take(self, job_id: str) -> SparkNeed | None:
        """Return what the job needed Spark for since this was last called; None: it needed none."""
        with self._lock:
            return self._needs.pop(job_id, None)


# --- the watch --------------------------------------------------------------------------------------------------------
# A job is registered once its tables are there. From then on the schedule probes them, and runs iterations by the jobs'
# triggers, with retries by backoff; commits to local tables are noticed at once.

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
    """The server of a page, as `iscp.server.page` has it."""

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


# --- first snapshots --------------------------------------------------------------------------------------------------
# A watch builds first snapshots in its process; they are shown as a cluster's builds are.

_STAGES = {JobState.RUNNING: BuildStage.BUILDING, JobState.PENDING: BuildStage.WAITING}


def watched_builds(rows: Iterable[JobRow], progress: Callable[[str], RunProgress | None]) -> list[BuildView]:
    """Return the builds of the jobs that have no position yet, and run or wait for a slot: what runs comes first.

    Jobs of one table that are built together are one build. `progress` returns that of a job's iteration.
    """
    together: dict[tuple[object, ...], list[JobRow]] = {}
    for row in rows:
        if row.watermark.version < 0 and row.state in _STAGES:
            key = row.key.account, row.key.table_id, row.state, row.status.to_version, row.status.start_at_s
            together.setdefault(key, []).append(row)
    builds = [_build(each, progress) for each in together.values()]
    return sorted(builds, key=lambda build: build.state is BuildStage.WAITING)


def _build(rows: Sequence[JobRow], progress: Callable[[str], RunProgress | None]) -> BuildView:
    first = rows[0]
    stage = _STAGES[first.state]
    waits = BuildView(
        first.table_uri,
        first.key.table_id,
        first.key.account,
        tuple(sorted(row.key.job_name for row in rows)),
        first.status.to_version if stage is BuildStage.BUILDING else -1,
        stage,
    )
    found = progress(first.job_id) if stage is BuildStage.BUILDING else None
    return waits if found is None else _measured(waits, found)


def _measured(build: BuildView, found: RunProgress) -> BuildView:
    """Return the build with what is written of it; rows are read more than once, as they are sorted in between.

    How many rows there are in all is not known of a query.
    """
    total = found.rows_total
    written = min(found.rows_written, total) if total >= 0 else UNKNOWN
    return replace(
        build,
        began_at_s=found.started_at_s,
        rows_total=total,
        done_share=written / total if total > 0 else 0.0,
        rows_per_s=found.rows_per_s,
        left_s=found.left_s,
        rows_done=written,
    )
