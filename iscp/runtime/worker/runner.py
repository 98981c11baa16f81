"""Runs one iteration: its purpose is dispatched once, here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, assert_never

from iscp.core.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.core.values.errors import Conflict
from iscp.core.values.progress import RunProgress
from iscp.ports.system import Guard
from iscp.ports.work_timer import charge_by_now, working_for
from iscp.runtime.iteration.adoption import Adopter, adopts
from iscp.runtime.iteration.apply.applier import Applier
from iscp.runtime.iteration.comparison import Verifier
from iscp.runtime.iteration.iteration_meters import IterationMeter, IterationMeters
from iscp.runtime.iteration.iteration_ports import CONFLICT_TRIES_MAX, IterationPorts
from iscp.runtime.iteration.target_removal import TargetRemover
from iscp.runtime.loop.conflict_retries import retry_conflicts

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
