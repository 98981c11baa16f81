"""Run the jobs of a plan once, in this process: each after what it reads, several side by side."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from iscp.core.api.api_requests import RegisterRequest
from iscp.core.run.run_plan import PlannedJob, RunPlan
from iscp.core.run.run_result import ResultState, RunResult, with_need
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.values.errors import ErrorCode
from iscp.core.values.untrusted_values import error_code, named_error
from iscp.ports.work_timer import UsageTally
from iscp.runtime.local.job_registrar import JobRegistrar, RegisteredJob, RunOrders
from iscp.runtime.local.unit_runner import UnitRunner, fault_words, result_of

log = logging.getLogger(__name__)

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
