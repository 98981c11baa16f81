"""Runs one iteration: its purpose is dispatched once, here."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from iscp.core.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.core.values.progress import RunProgress
from iscp.ports.system import Guard
from iscp.runtime.iteration.adoption import Adopter, adopts
from iscp.runtime.iteration.apply.applier import Applier
from iscp.runtime.iteration.comparison import Verifier
from iscp.runtime.iteration.iteration_meters import IterationMeter, IterationMeters
from iscp.runtime.iteration.iteration_ports import CONFLICT_TRIES_MAX, IterationPorts
from iscp.runtime.loop.conflict_retries import retry_conflicts


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
        self._meters = IterationMeters(ports.engine, ports.clock)
        self._applier = Applier(ports, bounds, on_committed)
        self._adopter = Adopter(ports)
        self._verifier = Verifier(ports)

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
                adopted = retry_conflicts(lambda: self._adopter.adopt(iteration, guard), CONFLICT_TRIES_MAX)
                return (adopted,) if adopted is not None else self._applier.apply(iteration, guard, meter)
            case Purpose.APPLY:
                return self._applier.apply(iteration, guard, meter)
            case Purpose.VERIFY | Purpose.REPAIR:
                return (retry_conflicts(lambda: self._verifier.verify(iteration, guard), CONFLICT_TRIES_MAX),)
            case _:
                assert_never(iteration.purpose)

    def cancel(self, iteration: Iteration) -> None:
        self._engine.cancel(iteration.label)
