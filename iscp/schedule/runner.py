"""Runners of iterations: one that runs an iteration, and three around it, which report it as a run of OpenLineage, keep
a job that kills the node's process from killing it for ever, and trace it. Each run has a guard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar, assert_never

from iscp.engine.account_turns import refuse_deadly
from iscp.engine.adoption import Adopter, TargetRemover, Verifier, adopts
from iscp.engine.applier import Applier
from iscp.engine.iteration_ports import (
    CONFLICT_TRIES_MAX,
    IterationMeter,
    IterationMeters,
    IterationPorts,
    record_failure,
)
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow, Reason
from iscp.model.job.start_rule import ACCOUNT_DEATHS_FEARED, Deaths
from iscp.model.run_events import JobRunState, RunState, state_of
from iscp.model.values.errors import Canceled, Conflict, ErrorCode, IscpError, NodeKilled, TimedOut
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import error_code, error_text, named_error
from iscp.ports.engine import IterationRunner, JobDeaths, charge_by_now, working_for
from iscp.ports.system import Attribute, Clock, Guard, Span, Tracer
from iscp.system.recent_values import RecentValues
from iscp.system.threads import retry_conflicts

log = logging.getLogger(__name__)

# --- the runner itself ------------------------------------------------------------------------------------------------
# It dispatches the purpose of an iteration, once.

OneOutcome = TypeVar("OneOutcome", JobOutcome, JobOutcome | None)


class Runner:
    """Port IterationRunner. One instance serves all threads of the executor."""

    def __init__(
        self,
        ports: IterationPorts,
        bounds: Bounds,
        on_committed: Callable[[JobOutcome], None] = lambda outcome: None,
    ) -> None:
        """`on_committed` is called for each job as soon as its part is in its sink, on the thread that committed it."""
        self._engine = ports.engine
        self._clock = ports.clock
        self._meters = IterationMeters(ports.engine, ports.clock)
        self._applier = Applier(ports, bounds, on_committed)
        self._adopter = Adopter(ports)
        self._verifier = Verifier(ports)
        self._remover = TargetRemover(ports)

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        self._engine.label(iteration.label)
        with self._meters.running(iteration) as meter:
            return self._run(iteration, guard, meter)

    def progress(self, job_id: str) -> RunProgress | None:
        """Return the job's progress, as `NodeCalls.progress` does. Raises IscpError."""
        return self._meters.progress(job_id)

    def _run(self, iteration: Iteration, guard: Guard, meter: IterationMeter) -> tuple[JobOutcome, ...]:
        match iteration.purpose:
            case Purpose.APPLY if adopts(iteration):
                # None: it is the job's already, as a node died before it could say so, or the job log is older.
                adopted = self._run_one(iteration, meter, lambda: self._adopter.adopt(iteration, guard))
                return (adopted,) if adopted is not None else self._applier.apply(iteration, guard, meter)
            case Purpose.APPLY:
                return self._applier.apply(iteration, guard, meter)
            case Purpose.VERIFY | Purpose.REPAIR:
                verified = self._run_one(iteration, meter, lambda: self._verifier.verify(iteration, guard))
                return (verified,)
            case Purpose.DELETE:
                return (self._run_one(iteration, meter, lambda: self._remover.remove(iteration, guard)),)
            case _:
                assert_never(iteration.purpose)

    def _run_one(self, iteration: Iteration, meter: IterationMeter, attempt: Callable[[], OneOutcome]) -> OneOutcome:
        """Attempt the work of the iteration's one job until nobody else is first, and return its outcome, if any."""
        (row,) = iteration.jobs
        tally = meter.tally(row)

        def attempt_once() -> OneOutcome:
            try:
                return attempt()
            except Conflict:
                tally.conflicts += 1
                raise

        with working_for(self._clock, [tally]):
            outcome = retry_conflicts(attempt_once, CONFLICT_TRIES_MAX)
            charge_by_now()
        return outcome if outcome is None else replace(outcome, usage=tally.usage(outcome.rows), spark=tally.spark)

    def cancel(self, iteration: Iteration) -> None:
        self._engine.cancel(iteration.label)


# --- reports to OpenLineage -------------------------------------------------------------------------------------------
# What becomes of each job's part in an iteration is reported as a run of OpenLineage.

BUILDING_MAX = 10_000
"""Jobs whose first rows are built by ranges, and whose run a node remembers; of those beyond them a later part is
another run.
"""


class LineageRunner:
    """Port IterationRunner, around another one.

    `emit` takes what happened; it never waits, and never raises. `draw_id` returns a UUID.
    """

    def __init__(
        self,
        runner: IterationRunner,
        emit: Callable[[JobRunState], None],
        clock: Clock,
        draw_id: Callable[[], str],
    ) -> None:
        self._runner = runner
        self._emit = emit
        self._clock = clock
        self._draw_id = draw_id
        self._building: RecentValues[str, str] = RecentValues(BUILDING_MAX)

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if iteration.purpose is not Purpose.APPLY:
            return self._runner.run(iteration, guard)
        run_ids = {row.job_id: self._begin(row) for row in iteration.jobs}
        try:
            outcomes = self._runner.run(iteration, guard)
        except BaseException as error:
            for row in iteration.jobs:
                code, message = error_code(error), named_error(error)
                failed = JobOutcome(row, row.watermark, row.seq, error_code=code, error_msg=message)
                self._end(run_ids[row.job_id], failed)
            raise
        for outcome in outcomes:
            self._end(run_ids[outcome.row.job_id], outcome)
        return outcomes

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _begin(self, row: JobRow) -> str:
        """Return the id of the job's run: a new one, or that of a build that goes on."""
        if (building := self._building.take(row.job_id)) is not None:
            return building
        run_id = self._draw_id()
        self._emit(JobRunState(run_id, RunState.START, self._clock.now_s(), row))
        return run_id

    def _end(self, run_id: str, outcome: JobOutcome) -> None:
        state = state_of(outcome)
        if state is RunState.RUNNING:
            self._building.put(outcome.row.job_id, run_id)
        self._emit(JobRunState(run_id, state, self._clock.now_s(), outcome.row, outcome))


# --- jobs that kill the node's process --------------------------------------------------------------------------------
# A job of whose work the process has died runs alone of its table's jobs and of all others of whose work it has died:
# so that the next death says whose work it is. After `DEATHS_MAX` of them in a row the job does not run any more: its
# iterations end at once, with an error that says so, until a person has it tried again. An account whose jobs do that
# one after the other has all of them run alone, and then none for a day.

TURN_LOOK_S = 0.5
"""Pause between two checks of an iteration that waits for another job's to end whether its own end was ordered."""


class SurvivingRunner:
    """Port IterationRunner, around another one."""

    def __init__(self, runner: IterationRunner, deaths: JobDeaths) -> None:
        self._runner = runner
        self._deaths = deaths
        self._turn = threading.Lock()

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        feared = [row for row in iteration.jobs if self._fears(row)]
        if not feared:
            return self._run(iteration, guard)
        outcomes: dict[str, JobOutcome] = {}
        others = tuple(row for row in iteration.jobs if row not in feared)
        if others:
            done = self._run(replace(iteration, jobs=others), guard)
            outcomes |= {outcome.row.job_id: outcome for outcome in done}
        for row in feared:
            outcomes[row.job_id] = self._run_alone(replace(iteration, jobs=(row,)), row, guard)
        return tuple(outcomes[row.job_id] for row in iteration.jobs)

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        with self._deaths.at_work(iteration.jobs):
            outcomes = self._runner.run(iteration, guard)
        for outcome in outcomes:
            if outcome.ok and outcome.build is None and self._deaths.of(outcome.row).some:
                self._deaths.forget(outcome.row.job_id)  # else its work is yet to come
        return outcomes

    def _run_alone(self, iteration: Iteration, row: JobRow, guard: Guard) -> JobOutcome:
        try:
            refuse_deadly(row, self._known(row), self._deaths)
        except NodeKilled as error:
            return record_failure(row, None, error)
        try:
            with self._own_turn(guard.check):
                (outcome,) = self._run(iteration, guard)
        except IscpError as error:  # the other jobs' outcomes count all the same
            return record_failure(row, None, error)
        return outcome

    def _fears(self, row: JobRow) -> bool:
        return self._known(row).feared or self._deaths.of_account(row.key.account) >= ACCOUNT_DEATHS_FEARED

    @contextmanager
    def _own_turn(self, check: Callable[[], None]) -> Iterator[None]:
        while not self._turn.acquire(timeout=TURN_LOOK_S):
            check()
        try:
            yield
        finally:
            self._turn.release()

    def _known(self, row: JobRow) -> Deaths:
        """Return the deaths in a row, since a person has had the job tried again."""
        deaths = self._deaths.of(row)
        if not deaths.some or row.reason is Reason.QUARANTINED:
            return deaths
        status = row.status
        # Resumed: without the reason, the row has the error of when it was reported yet.
        if status.error_code != ErrorCode.NODE_KILLED or status.end_at_s == deaths.forgiven_at_s:
            return deaths
        self._deaths.forgive(row.job_id, status.end_at_s)
        return self._deaths.of(row)


# --- traces -----------------------------------------------------------------------------------------------------------
# An iteration is recorded as a part of what led to it: that it waited, that it ran, and whose commits it has taken in.

LINKS_MAX = 8
"""Commits, the newest of each table first, whose traces an iteration points to; it does not read those before them."""


class TracedRunner:
    """Port IterationRunner, around another one.

    `read_trace` returns the context in the metadata of a table's commit, or an empty text. It raises OSError or
    IscpError.
    """

    def __init__(self, runner: IterationRunner, tracer: Tracer, read_trace: Callable[[str, int], str]) -> None:
        self._runner = runner
        self._tracer = tracer
        self._read_trace = read_trace

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        attributes: dict[str, Attribute] = {
            "iscp.table": iteration.table_uri,
            "iscp.account": iteration.account,
            "iscp.iteration": iteration.number,
            "iscp.purpose": iteration.purpose.value,
            "iscp.jobs": len(iteration.jobs),
        }
        queued_s = iteration.submitted_at_s
        with self._tracer.span("iscp.iteration", attributes, parent=iteration.trace, start_s=queued_s) as span:
            with self._tracer.span("iscp.queue", {}, start_s=queued_s):
                pass
            outcomes = self._runner.run(iteration, guard)
            span.note({"iscp.jobs.failed": sum(not outcome.ok for outcome in outcomes)})
            self._link(span, outcomes)
            return outcomes

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _link(self, span: Span, outcomes: Sequence[JobOutcome]) -> None:
        """Point to the traces in the commits that were taken in; they are read once for all jobs."""
        try:
            for uri, version in islice(_taken_in(outcomes), LINKS_MAX):
                if trace := self._read_trace(uri, version):
                    span.link(trace)
        except Exception as error:  # noqa: BLE001  (what was committed counts, whether or not a link is found)
            log.info("trace.not_linked", extra={"error": error_text(error)})


def _taken_in(outcomes: Sequence[JobOutcome]) -> Iterator[tuple[str, int]]:
    """Yield each commit that an iteration has taken in once, by its table's URI and its version.

    The newest of a table come first. The first rows of a job come of no commit in particular: its newest one stands for
    them.
    """
    spans: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        row, before = outcome.row, outcome.row.sources
        ways = [(row.table_uri, row.watermark.version, outcome.watermark.version)]
        ways += [
            (uri, before[uri].watermark.version if uri in before else -1, mark.watermark.version)
            for uri, mark in outcome.sources.items()
            if uri != row.table_uri
        ]
        for uri, since, to in ways:
            if outcome.ok and to > since:
                first = to - 1 if since < 0 else since
                least, most = spans.get(uri, (first, to))
                spans[uri] = min(least, first), max(most, to)
    # By turns: a table of many commits leaves room for the others.
    left = {uri: iter(range(most, least, -1)) for uri, (least, most) in spans.items()}
    while left:
        for uri in tuple(left):
            if (version := next(left[uri], None)) is None:
                del left[uri]
            else:
                yield uri, version


# --- the guard of a run -----------------------------------------------------------------------------------------------
# The guard checks right before each commit whether the run may still write.

CANCELED = "the iteration was cancelled"
TIMED_OUT = "the iteration took too long"


class RunGuard:
    """Port Guard for one run. Once its end was ordered, or its epoch is over, it never lets anything through again."""

    def __init__(self, clock: Clock, lease_check: Callable[[int], None], timeout_s: float, epoch: int = 0) -> None:
        self._clock = clock
        self._lease_check = lease_check
        self._epoch = epoch
        self._canceled = False
        self.due_s = clock.monotonic_s() + timeout_s if timeout_s > 0 else None

    def cancel(self) -> None:
        self._canceled = True

    @property
    def canceled(self) -> bool:
        return self._canceled

    @property
    def timed_out(self) -> bool:
        return self.due_s is not None and self._clock.monotonic_s() >= self.due_s

    def check(self) -> None:
        if self._canceled:
            raise Canceled(CANCELED)
        if self.timed_out:
            raise TimedOut(TIMED_OUT)
        self._lease_check(self._epoch)
