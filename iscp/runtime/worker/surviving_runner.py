"""Keeps a job that kills the node's process from killing it for ever.

A job of whose work the process has died runs alone of its table's and of all others of which it has: so that the next
death says whose work it is. After `DEATHS_MAX` of them in a row the job does not run any more: its iterations end at
once, with an error that says so, until a person has it tried again. An account whose jobs do that one after the other
has all of them run alone, and then none for a day.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.job.job_deaths import ACCOUNT_DEATHS_FEARED, Deaths
from iscp.core.job.job_row import JobRow, Reason
from iscp.core.values.errors import ErrorCode, IscpError, NodeKilled
from iscp.ports.engine import IterationRunner, JobDeaths
from iscp.ports.system import Guard
from iscp.runtime.iteration.job_outcomes import record_failure
from iscp.runtime.reads.work_for_jobs import refuse_deadly

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
