"""One job of a program: its target is brought up to date when the program says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from iscp.bootstrap.local.local_engine import LocalEngine
from iscp.core.job.verification import VerifyReport
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.run.job_selection import JobSelection
from iscp.core.run.run_forecast import JobForecast
from iscp.core.run.run_plan import RunPlan
from iscp.core.run.run_result import RunResult
from iscp.core.run.wanted import Wanted
from iscp.core.values.errors import ErrorCode, JobFailed
from iscp.runtime.local.job_registrar import RunOrders
from iscp.runtime.local.local_run import RunListener

if TYPE_CHECKING:
    from iscp.runtime.local.local_run import RequestedJob


Around = Callable[[], AbstractContextManager[None]]
"""A function that returns the context within which work is done on the caller's thread."""


class LocalJob:
    """A job on one table, with one target. What it has to know is in the target: nothing is kept anywhere else."""

    def __init__(self, engine: LocalEngine, wanted: Wanted, around: Around) -> None:
        self._engine = engine
        self._wanted = wanted
        self._around = around

    @property
    def name(self) -> str:
        return self._wanted.request.job.name

    def __repr__(self) -> str:
        return f"<iscp job {self.name!r} on {self._wanted.request.job.table}>"

    def refresh(self, *, full: bool = False, take_over: bool = False) -> RunResult:
        """Bring the target to the newest version of its tables, and return what was done.

        The target is made if it is not there. `full`: its rows are built again from all rows of its tables.
        `take_over`: it may be taken from the cluster that keeps it. Raises JobFailed with the fault's code and remedy;
        what was committed before that stays.
        """
        with self._around():
            jobs, plan = self._planned()
            (result,) = self._engine.run(jobs, plan, RunOrders(full, take_over), RunListener(), 1).run()
        if not result.ok:
            raise JobFailed(result.error, code=ErrorCode(result.error_code))
        return result

    def forecast(self, *, full: bool = False, take_over: bool = False) -> JobForecast:
        """Return what `refresh` would do, and why. Nothing is written."""
        with self._around():
            jobs, plan = self._planned()
            (found,) = self._engine.forecast(jobs, plan, RunOrders(full, take_over))
        return found

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Compare the target with its tables at the version that it is at, row by row; with `repair` make it equal.

        Raises IscpError where they cannot be compared.
        """
        with self._around():
            return self._engine.verify(self._wanted.request, repair=repair)

    def explain(self) -> QueryExplanation:
        """Return how a view's query is kept, operator by operator. Raises InvalidRequest for other jobs."""
        with self._around():
            return self._engine.explain(self._wanted.request)

    def _planned(self) -> tuple[list[RequestedJob], RunPlan]:
        jobs = self._engine.jobs([self._wanted])
        return jobs, self._engine.plan([self._wanted], jobs, JobSelection(), fail_fast=False)
