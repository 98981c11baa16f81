"""Reports what becomes of each job's part in an iteration, as a run of OpenLineage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from iscp.core.job.iteration import Iteration, JobOutcome, Purpose
from iscp.core.job.job_row import JobRow
from iscp.core.lineage.run_events import JobRunState, RunState, state_of
from iscp.core.values.untrusted_values import error_code, named_error
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Clock, Guard

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
        self._building: OrderedDict[str, str] = OrderedDict()

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
        if (building := self._building.pop(row.job_id, "")) != "":
            return building
        run_id = self._draw_id()
        self._emit(JobRunState(run_id, RunState.START, self._clock.now_s(), row))
        return run_id

    def _end(self, run_id: str, outcome: JobOutcome) -> None:
        state = state_of(outcome)
        if state is RunState.RUNNING:
            self._building[outcome.row.job_id] = run_id
            if len(self._building) > BUILDING_MAX:
                self._building.popitem(last=False)
        self._emit(JobRunState(run_id, state, self._clock.now_s(), outcome.row, outcome))
