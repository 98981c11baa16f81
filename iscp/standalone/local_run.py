"""Run the jobs of a plan once, in this process, or find out what a run would do."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from iscp.cluster.requests.job_maker import JobMaker, check_names
from iscp.engine.iteration_ports import IterationPorts
from iscp.model.access.authorization import TARGET_FIELD
from iscp.model.api.api_requests import RegisterRequest
from iscp.model.job.iteration import Iteration, JobOutcome, Purpose, joined_needs
from iscp.model.job.job_row import JobRow, tables_of
from iscp.model.job.registration_id import parse_job_id, spec_mark
from iscp.model.job.start_rule import VerifyReport
from iscp.model.run.run_plan import (
    BY_ALL_ROWS,
    Forecast,
    JobForecast,
    JobProgress,
    PlannedJob,
    ResultState,
    RunPlan,
    RunResult,
    TargetStanding,
    forecast_action,
    job_id_for_run,
    standing_for_run,
    with_need,
    words_of_a_run,
)
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import Canceled, ErrorCode, InvalidRequest, IscpError, PermanentError, TableNotFound
from iscp.model.values.untrusted_values import error_code, named_error
from iscp.model.values.watermark import Position, Watermark, committed_apart
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import IterationRunner, UsageTally, working_for
from iscp.ports.source import ChangeSource, SourceRange, TableDescription
from iscp.ports.system import Clock

if TYPE_CHECKING:
    from iscp.schedule.runner import RunGuard

log = logging.getLogger(__name__)


# --- jobs without a job log -------------------------------------------------------------------------------------------
# The job of each request is found by its target, which says whose it is, and how far it has come.


@dataclass(frozen=True, slots=True)
class RunOrders:
    """The orders of a run say what it may do.

    `full_refresh`: targets are built from nothing. `take_over`: those that a cluster keeps are taken from it.
    """

    full_refresh: bool = False
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class RegisteredJob:
    """A job of a run, how its target stands to it, and the position of that. With `full` its rows are built again."""

    row: JobRow
    standing: TargetStanding
    position: Position
    full: bool = False
    warning: str = ""

    @property
    def applied(self) -> int:
        """Return the version of its own table that the target is at, and is gone on from; -1: at none."""
        return -1 if self.full else self.position.watermark.version


class JobRegistrar:
    """Registers jobs for the time of a run. Nothing is written by it."""

    def __init__(
        self,
        maker: JobMaker,
        kinds: Callable[[str], ConsumerKind],
        ports: IterationPorts,
        clock: Clock,
        newest: Callable[[str], Watermark],
    ) -> None:
        """`newest` returns a table's newest version and when it was committed, without opening the table."""
        self._maker = maker
        self._kinds = kinds
        self._ports = ports
        self._clock = clock
        self._newest = newest

    def plan(self, request: RegisterRequest, place: str) -> PlannedJob:
        """Return what the job reads and makes, whether or not that is there.

        Raises InvalidRequest, also for names that no job can have: nothing of a run is begun then.
        """
        spec, catalog = parse_spec(request.spec_json), self._maker.catalog(request.job.account)
        self._maker.check_named(request.job, spec)
        kind = self._kinds(spec.consumer.kind)
        own = catalog.locate(request.job.table)
        tables = dict.fromkeys(kind.tables(spec.consumer, catalog).values()) if kind.tables else {}
        reads = (own, *(uri for uri in tables if uri != own))
        target = kind.target_of(spec.consumer, catalog)
        alone = kind.tables is not None
        return PlannedJob(request.job.name, request.job.account, reads, target, place, kind.shared_target, alone)

    def built_by_spark(self, request: RegisterRequest) -> bool:
        """Return whether Spark computes all rows of the job's target where that is built."""
        return self._kinds(parse_spec(request.spec_json).consumer.kind).needs.built_by_spark

    def newest_version(self, uri: str) -> int:
        """Return the newest version of a table. Raises TableNotFound, StorageError."""
        return self._newest(uri).version

    def find_current(self, request: RegisterRequest) -> RegisteredJob | None:
        """Return the job if its target is at the newest commits of all that it reads, and nothing else is due; None: it
        is to be registered, and an iteration finds out.

        No table is opened for that: to open one takes memory and time with the number of its files.
        """
        try:
            return self._find_current(request)
        except Exception:  # noqa: BLE001  (whoever registers the job meets it again, and says so)
            return None

    def _find_current(self, request: RegisterRequest) -> RegisteredJob | None:
        job = request.job
        check_names(job)
        kind, catalog = self._kinds(parse_spec(request.spec_json).consumer.kind), self._maker.catalog(job.account)
        catalog.refuse_links(job.table)
        source = _unopened(job.table, catalog.locate(job.table))
        row = self._maker.make(job, request.spec_json, source, source.table_id, check=False).row
        self._ports.require_places(row)
        if kind.settled_at is None or kind.held(row.spec.consumer):
            return None
        position = kind.settled_at(row, self._ports.environment)
        if position is None:
            return None
        standing = standing_for_run(position, spec_mark(row.table_uri, row.spec.consumer))
        if standing is not TargetStanding.SAME or not self._is_newest(row, position):
            return None
        key = row.key._replace(table_id=position.source_id)
        row = row._replace(key=key, job_id=position.job_id, watermark=position.watermark, seq=position.seq)
        return RegisteredJob(row, standing, position)

    def _is_newest(self, row: JobRow, position: Position) -> bool:
        """Return whether the position is at the newest commit of each table of the job."""
        at = {row.table_uri: position.watermark} | {uri: mark.watermark for uri, mark in position.sources.items()}
        if position.watermark.steps or not at.keys() >= {*tables_of(row).values()}:
            return False
        found = ((self._newest(uri), mark) for uri, mark in at.items())
        return all(now.version == mark.version and not committed_apart(now.at_s, mark.at_s) for now, mark in found)

    def register(self, request: RegisterRequest, orders: RunOrders, *, rebuild: bool = False) -> RegisteredJob:
        """Return the job as its target has it, or a new one. `rebuild`: its target may be built by another spec.

        All of a request is checked unless a run keeps the target under this very spec. Raises IscpError.
        """
        job = request.job
        check_names(job)
        source = self._maker.describe(job.account, job.table)
        item = self._maker.make(job, request.spec_json, source, source.table_id, check=False)
        row, mark = item.row, spec_mark(item.row.table_uri, item.row.spec.consumer)
        position = self._ports.open(row).position(row)
        standing = standing_for_run(position, mark)
        if standing is TargetStanding.SAME and not orders.full_refresh:
            row = row._replace(job_id=position.job_id, watermark=position.watermark, seq=position.seq)
            return RegisteredJob(row, standing, position, warning=item.warning)
        full = self._builds(standing, position, mark, orders, rebuild=rebuild)
        self._maker.check(job, parse_spec(request.spec_json), source)
        if standing is TargetStanding.NEW:
            self._maker.refuse_rebuild(row)
        row = row._replace(job_id=job_id_for_run(position, mark, self._clock.now_s(), full=full))
        return RegisteredJob(row, standing, position, full, item.warning)

    def _builds(
        self, standing: TargetStanding, position: Position, mark: str, orders: RunOrders, *, rebuild: bool
    ) -> bool:
        """Return whether rows that a target has are to be built again.

        Raises InvalidRequest if the user has to agree.
        """
        if standing is TargetStanding.NEW:
            return False
        former = parse_job_id(position.job_id)
        if standing is TargetStanding.KEPT_BY_CLUSTER and not orders.take_over:
            raise InvalidRequest(
                f"is kept by a job of a cluster (registration {position.job_id or 'unknown'})",
                field=TARGET_FIELD,
                remedy="Delete or pause that job and run with --take-over; or choose another target",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        if orders.full_refresh or (rebuild and former.mark != mark):
            return True
        if former.mark != mark:
            raise InvalidRequest(
                "holds rows that were made by another spec (another table, query, key, filter or columns)",
                field=TARGET_FIELD,
                remedy="Run with --full-refresh: the target is built again, and readers see the old rows until then",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        return False


def _unopened(table: str, uri: str) -> TableDescription:
    """Return what is known of a table before it is opened: its place."""
    return TableDescription(table_id="", name=table, uri=uri, version=-1, committed_at_s=0.0)


# --- the jobs of one table --------------------------------------------------------------------------------------------
# They are brought up to date by one iteration after another, in this process.

NO_ENDS: Mapping[str, int] = MappingProxyType({})
NO_TALLIES: Mapping[str, UsageTally] = MappingProxyType({})


class UnitRunner:
    """Runs iterations without a node. Safe for threads, each of which has units of its own."""

    def __init__(
        self,
        runner: Callable[[], IterationRunner],
        source: ChangeSource,
        clock: Clock,
        kinds: Callable[[str], ConsumerKind],
    ) -> None:
        """`runner` makes what carries out iterations, once at most: a run may have none."""
        self._make_runner = runner
        self._runner: IterationRunner | None = None
        self._kinds = kinds
        self._source = source
        self._clock = clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[int, tuple[Iteration, RunGuard]] = {}
        self._stopped = threading.Event()

    def working_for(self, tally: UsageTally) -> AbstractContextManager[None]:
        """Charge what this thread does within, besides iterations, to `tally`."""
        return working_for(self._clock, [tally])

    def bring_up(
        self,
        rows: Sequence[JobRow],
        tallies: Mapping[str, UsageTally] = NO_TALLIES,
        ends: Mapping[str, int] = NO_ENDS,
    ) -> list[RunResult]:
        """Bring jobs of one table and account to the version that is its newest one now, or to that of `ends`, which
        are of tables by their URIs; return a result for each.

        `tallies` has for a `job_id` the one that gets to know why the job needed Spark.
        """
        uri = rows[0].table_uri
        try:
            goal = ends[uri] if uri in ends else self._source.newest(uri).to.version
        except Exception as error:
            if not isinstance(error, IscpError):
                log.exception("table.unreadable", extra={"table": uri})
            return [_not_begun(row, error) for row in rows]
        jobs = {row.job_id: JobProgress(row, goal, result_of(row)) for row in rows}
        while going := [each for each in jobs.values() if not each.ended]:
            if (pause_s := max(each.retry_s for each in going)) and self._stopped.wait(pause_s):
                _end_all(going, ErrorCode.CANCELED, "the run was ended before another try")
                break
            began_s = self._clock.monotonic_s()
            try:
                outcomes = self._run_one([each.row for each in going], Purpose.APPLY, ends)
            except IscpError as error:
                _end_all(going, error.code, str(error))
                break
            for outcome in outcomes:
                if (tally := tallies.get(outcome.row.job_id)) is not None:
                    tally.spark = joined_needs(tally.spark, outcome.spark)
                jobs[outcome.row.job_id].take(outcome, self._clock.monotonic_s() - began_s)
        return [self._maintained(row, jobs[row.job_id].result) for row in rows]

    def verify(self, row: JobRow, *, repair: bool) -> VerifyReport:
        """Compare a job's target with its source, and with `repair` make it equal. Raises IscpError."""
        purpose = Purpose.REPAIR if repair else Purpose.VERIFY
        try:
            (outcome,) = self._run_one([row], purpose)
        except IscpError as error:
            error.remedy = words_of_a_run(error.remedy)
            raise
        if not outcome.ok or outcome.verified is None:
            why = words_of_a_run(outcome.error_msg) or "nothing was compared"
            raise PermanentError(why, code=ErrorCode(outcome.error_code))
        if repair and (words := self._left_unmaintained(row)):
            log.warning("target.unmaintained: %s", words)
        return outcome.verified

    def _maintained(self, row: JobRow, result: RunResult) -> RunResult:
        """Wait for the maintenance of a target that was changed: the process may end after this."""
        if not result.iterations or not (words := self._left_unmaintained(row)):
            return result
        return replace(result, warning=f"{result.warning}; {words}" if result.warning else words)

    def _left_unmaintained(self, row: JobRow) -> str:
        kind = self._kinds(row.spec.consumer.kind)
        return kind.maintained(row, self._stopped.is_set) if kind.maintained is not None else ""

    def stop(self) -> None:
        """Have what runs end before its next commit, and begin nothing more."""
        self._stopped.set()
        with self._lock:
            running, runner = list(self._running.values()), self._runner
        for iteration, guard in running:
            guard.cancel()
            if runner is not None:
                runner.cancel(iteration)

    def _run_one(
        self, rows: Sequence[JobRow], purpose: Purpose, ends: Mapping[str, int] = NO_ENDS
    ) -> tuple[JobOutcome, ...]:
        from iscp.schedule.runner import RunGuard  # a run with nothing to do has no iteration

        number, first = next(self._numbers), rows[0]
        uri, end = first.table_uri, ends.get(first.table_uri)
        iteration = Iteration(number, first.key.table_id, uri, tuple(rows), end, purpose=purpose, ends=ends)
        guard = RunGuard(self._clock, lambda epoch: None, 0.0)
        with self._lock:
            self._running[number] = iteration, guard
            runner = self._runner = self._runner or self._make_runner()
        try:
            if self._stopped.is_set():
                raise Canceled("the run was ended")
            return runner.run(iteration, guard)
        except IscpError:
            raise
        except Exception as error:
            log.exception("iteration.broken", extra={"table": first.table_uri})
            raise IscpError(named_error(error), code=error_code(error)) from error
        finally:
            with self._lock:
                del self._running[number]


def result_of(row: JobRow) -> RunResult:
    """Return the result of a job that has done nothing yet."""
    consumer = row.spec.consumer
    return RunResult(
        name=row.key.job_name,
        account=row.key.account,
        kind=consumer.kind,
        table=row.table_uri,
        target=consumer.target,
        state=ResultState.CURRENT,
        from_version=row.watermark.version,
        to_version=row.watermark.version,
    )


def _not_begun(row: JobRow, error: Exception) -> RunResult:
    code = int(error_code(error))
    return replace(result_of(row), state=ResultState.FAILED, error_code=code, error=fault_words(error))


def fault_words(error: Exception) -> str:
    """Return an error as a result says it: with its remedy, or, of what others raised, with its class."""
    return words_of_a_run(str(error)) if isinstance(error, IscpError) else named_error(error)


def _end_all(jobs: Iterable[JobProgress], code: int, error: str) -> None:
    for each in jobs:
        each.end_by(code, error)


# --- the run ----------------------------------------------------------------------------------------------------------
# Each job is run after what it reads, several side by side.

INTERRUPTED = "the run was interrupted before its turn"

BROKEN_OFF = "the run broke off"

SUPERSEDED_TRIES_MAX = 3
"""Times that a job of a run goes on after another run has claimed its target at the same time."""


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job that files want. `rebuild`: its target may be built again by another spec than it has."""

    request: RegisterRequest
    planned: PlannedJob
    rebuild: bool = False


class RunListener:
    """Hears of each job as it is begun and as it ends, on the thread that runs the plan. This one ignores all."""

    def begin(self, number: int) -> None: ...

    def end(self, number: int, result: RunResult) -> None: ...


class LocalRun:
    """One run. `parallel`: units at work at once."""

    def __init__(
        self,
        registrar: JobRegistrar,
        units: UnitRunner,
        jobs: Sequence[RequestedJob],
        plan: RunPlan,
        orders: RunOrders,
        listener: RunListener,
        parallel: int,
    ) -> None:
        self._registrar = registrar
        self._units = units
        self._jobs = jobs
        self._plan = plan
        self._orders = orders
        self._listener = listener
        self._parallel = parallel
        self._done: queue.SimpleQueue[dict[int, RunResult] | None] = queue.SimpleQueue()
        self._results: dict[int, RunResult] = {}
        self._stopped = threading.Event()
        self._shared = plan.tables_on_several_ways()
        self._ends: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self) -> list[RunResult]:
        """Run all chosen jobs, and return their results in the order of the files.

        Raises KeyboardInterrupt, and what the listener raises, once all has ended: what is committed stays.
        """
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="iscp-run") as pool:
            try:
                self._run_all(pool)
            except BaseException:
                self.stop()  # the pool waits for what is at work; nothing may be left to a listener that has failed
                raise
        return [self._results[number] for number in sorted(self._results)]

    def stop(self) -> None:
        """End the run: what is at work ends before its next commit. From any thread, or a handler of a signal."""
        self._stopped.set()
        self._units.stop()
        self._done.put(None)

    def _run_all(self, pool: ThreadPoolExecutor) -> None:
        while True:
            if self._stopped.is_set():
                self._skip(self._plan.stop(INTERRUPTED))
            for unit in self._plan.begin():
                for number in unit:
                    self._listener.begin(number)
                pool.submit(self._work, unit)
            if self._plan.over:
                return
            for number, result in (self._done.get() or {}).items():
                self._results[number] = result
                self._listener.end(number, result)
                self._skip(self._plan.end(number, failed=not result.ok))

    def _skip(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            code = ErrorCode.CANCELED if self._stopped.is_set() else ErrorCode.JOB_FAILED
            result = unregistered(self._jobs[number], ResultState.SKIPPED, code, self._plan.skipped[number])
            self._results[number] = result
            self._listener.end(number, result)

    def _work(self, unit: Sequence[int]) -> None:
        try:
            results = self._run_unit(unit)
        except BaseException as error:  # also what is none, as a panic of Rust's: the run waits for results
            log.exception("run.broken", extra={"table": self._jobs[unit[0]].planned.reads[0]})
            why = f"{BROKEN_OFF}: {named_error(error)}"
            results = {
                number: unregistered(self._jobs[number], ResultState.FAILED, ErrorCode.INTERNAL, why) for number in unit
            }
        self._done.put(results)

    def _run_unit(self, unit: Sequence[int]) -> dict[int, RunResult]:
        self._set_ends(unit)
        tallies = {number: UsageTally() for number in unit}
        found = self._find_results(unit, tallies)
        return {number: with_need(result, tallies[number].spark) for number, result in found.items()}

    def _set_ends(self, unit: Sequence[int]) -> None:
        """Have the whole run read each table that a job reads on several ways as it is when the run comes to it."""
        reads = {uri for number in unit for uri in self._jobs[number].planned.reads}
        with self._lock:
            for uri in (reads & self._shared) - self._ends.keys():
                with suppress(Exception):  # whoever reads the table meets it again, and says so
                    self._ends[uri] = self._registrar.newest_version(uri)

    def _find_results(self, unit: Sequence[int], tallies: Mapping[int, UsageTally]) -> dict[int, RunResult]:
        results = {} if self._orders.full_refresh else self._find_current(unit, tallies)
        left, tries = [number for number in unit if number not in results], 0
        while left and tries < SUPERSEDED_TRIES_MAX:
            tries += 1
            registered: dict[int, RegisteredJob] = {}
            for number in left:
                try:
                    registered[number] = self._register(self._jobs[number], tallies[number])
                except Exception as error:  # noqa: BLE001  (one job's fault is its own)
                    results[number] = failed(self._jobs[number], error)
            if registered:
                results |= self._bring_up(registered, tallies)
            # Another run has claimed it at the same time, by the same files: it is gone on with under that claim.
            left = [number for number in registered if results[number].error_code == ErrorCode.SUPERSEDED]
        return results

    def _find_current(self, unit: Sequence[int], tallies: Mapping[int, UsageTally]) -> dict[int, RunResult]:
        """Return the results of the jobs that have nothing to do, as their targets and the tables' logs show."""
        found = {}
        for number in unit:
            with self._units.working_for(tallies[number]):
                job = self._registrar.find_current(self._jobs[number].request)
            if job is not None:
                found[number] = replace(result_of(job.row), dead_letters=_dead_letters(job))
        return found

    def _register(self, job: RequestedJob, tally: UsageTally) -> RegisteredJob:
        with self._units.working_for(tally):
            return self._registrar.register(job.request, self._orders, rebuild=job.rebuild)

    def _bring_up(
        self, registered: Mapping[int, RegisteredJob], tallies: Mapping[int, UsageTally]
    ) -> dict[int, RunResult]:
        by_id = {job.row.job_id: tallies[number] for number, job in registered.items()}
        results = self._units.bring_up([job.row for job in registered.values()], by_id, dict(self._ends))
        return {
            number: replace(
                result,
                from_version=job.applied,
                warning=result.warning or job.warning,
                dead_letters=result.dead_letters or (_dead_letters(job) if result.state is ResultState.CURRENT else 0),
            )
            for (number, job), result in zip(registered.items(), results, strict=True)
        }


def _dead_letters(job: RegisteredJob) -> int:
    """Return how many rows the target left out when the job was registered; where nothing is written, it still does."""
    return job.position.dead.rows


def failed(job: RequestedJob, error: Exception) -> RunResult:
    """Return the result of a job that could not be begun."""
    return unregistered(job, ResultState.FAILED, error_code(error), fault_words(error))


def unregistered(job: RequestedJob, state: ResultState, code: int, error: str) -> RunResult:
    """Return the result of a job of which no more is known than its request says."""
    planned = job.planned
    return RunResult(
        name=planned.name,
        account=planned.account,
        kind=parse_spec(job.request.spec_json).consumer.kind,
        table=planned.reads[0],
        target=planned.target,
        state=state,
        error_code=int(code),
        error=error,
    )


# --- the forecast -----------------------------------------------------------------------------------------------------
# A forecast goes through a plan as a run does, and finds out what the run would do.

_WRITES = (Forecast.CREATE, Forecast.UPDATE, Forecast.REBUILD, Forecast.TAKE_OVER)


def forecast_run(
    registrar: JobRegistrar, source: ChangeSource, jobs: Sequence[RequestedJob], plan: RunPlan, orders: RunOrders
) -> list[JobForecast]:
    """Return what a run would do to each chosen job, in the order of the files. Nothing is written."""
    found: dict[int, JobForecast] = {}
    written: dict[str, str] = {}
    while not plan.over:
        for number in (number for unit in plan.begin() for number in unit):
            job = jobs[number]
            upstream = [written[uri] for uri in job.planned.reads if uri in written]
            each = _forecast(registrar, source, job, orders, upstream)
            if each.action in BY_ALL_ROWS and registrar.built_by_spark(job.request):
                each = replace(each, spark=f"all rows are computed ({each.why})")
            found[number] = each
            if each.action in _WRITES:
                written[job.planned.target] = job.planned.name
            for skipped in plan.end(number, failed=each.action is Forecast.REFUSED):
                found[skipped] = _of(jobs[skipped], Forecast.SKIPPED, plan.skipped[skipped])
    return [found[number] for number in sorted(found)]


def _forecast(
    registrar: JobRegistrar, source: ChangeSource, job: RequestedJob, orders: RunOrders, upstream: Sequence[str]
) -> JobForecast:
    try:
        registered = registrar.register(job.request, orders, rebuild=job.rebuild)
        newest = {uri: source.newest(uri) for uri in _tables(registered.row)}
    except TableNotFound as error:
        if upstream:  # it is the target of a job that would be created
            return _of(job, Forecast.CREATE, f"once {', '.join(repr(each) for each in upstream)} is there")
        return _of(job, Forecast.REFUSED, fault_words(error))
    except Exception as error:  # noqa: BLE001  (one job's fault is its own)
        return _of(job, Forecast.REFUSED, fault_words(error))
    versions = _versions(registered, newest)
    action, why = forecast_action(
        registered.standing,
        versions,
        full=registered.full,
        void=registered.position.void,
        upstream=upstream,
        replaced=_replaced(registered, newest),
    )
    return _of(job, action, why, versions)


def _tables(row: JobRow) -> Iterable[str]:
    return dict.fromkeys((row.table_uri, *tables_of(row).values()))


def _versions(job: RegisteredJob, newest: Mapping[str, SourceRange]) -> dict[str, tuple[int, int]]:
    """Return for each table the version that the target is at, and the newest."""
    marks = {uri: mark.watermark.version for uri, mark in job.position.sources.items()}
    marks[job.row.table_uri] = job.applied
    return {uri: (marks.get(uri, -1), now.to.version) for uri, now in newest.items()}


def _replaced(job: RegisteredJob, newest: Mapping[str, SourceRange]) -> list[str]:
    """Return the tables that have another id than those whose rows the target has."""
    ids = {uri: mark.table_id for uri, mark in job.position.sources.items()}
    ids[job.row.table_uri] = job.position.source_id
    return [uri for uri, now in newest.items() if ids.get(uri) and ids[uri] != now.table_id]


def _of(
    job: RequestedJob, action: Forecast, why: str, versions: Mapping[str, tuple[int, int]] | None = None
) -> JobForecast:
    planned = job.planned
    return JobForecast(planned.name, planned.account, planned.reads[0], planned.target, action, why, versions or {})
