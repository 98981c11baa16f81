"""Bring the jobs of one table up to date, by one iteration after another, in this process."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType

from iscp.core.job.iteration import Iteration, JobOutcome, Purpose
from iscp.core.job.job_row import JobRow
from iscp.core.job.usage import joined_needs
from iscp.core.job.verification import VerifyReport
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.run.run_words import words_of_a_run
from iscp.core.run.unit_progress import JobProgress
from iscp.core.values.errors import Canceled, ErrorCode, IscpError, PermanentError
from iscp.core.values.untrusted_values import error_code, named_error
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import IterationRunner
from iscp.ports.source import ChangeSource
from iscp.ports.system import Clock
from iscp.ports.work_timer import UsageTally, working_for
from iscp.runtime.worker.run_guard import RunGuard

log = logging.getLogger(__name__)

NO_ENDS: Mapping[str, int] = MappingProxyType({})
NO_TALLIES: Mapping[str, UsageTally] = MappingProxyType({})


class UnitRunner:
    """Runs iterations without a node. Safe for threads, each of which has units of its own."""

    def __init__(
        self, runner: IterationRunner, source: ChangeSource, clock: Clock, kinds: Callable[[str], ConsumerKind]
    ) -> None:
        self._runner = runner
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
            running = list(self._running.values())
        for iteration, guard in running:
            guard.cancel()
            self._runner.cancel(iteration)

    def _run_one(
        self, rows: Sequence[JobRow], purpose: Purpose, ends: Mapping[str, int] = NO_ENDS
    ) -> tuple[JobOutcome, ...]:
        number, first = next(self._numbers), rows[0]
        uri, end = first.table_uri, ends.get(first.table_uri)
        iteration = Iteration(number, first.key.table_id, uri, tuple(rows), end, purpose=purpose, ends=ends)
        guard = RunGuard(self._clock, lambda epoch: None, 0.0)
        with self._lock:
            self._running[number] = iteration, guard
        try:
            if self._stopped.is_set():
                raise Canceled("the run was ended")
            return self._runner.run(iteration, guard)
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
