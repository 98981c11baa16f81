"""End a refresh by changes that has taken as long as a recomputation is expected to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from iscp.adapters.delta.spark.spark_engine import JobBudget
from iscp.adapters.system.late_imports import E
from iscp.core.query.refresh_choice import RefreshChoice
from iscp.core.values.errors import Canceled, EngineError
from iscp.ports.system import Guard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RefreshAbandonedError(Exception):
    """The changes of the result have taken longer to compute than they were given, and nothing was committed."""


class _EndingGuard:
    """A guard that lets what is about to be committed take its time: it is computed."""

    def __init__(self, guard: Guard, budget: JobBudget) -> None:
        self._guard = guard
        self._budget = budget

    def check(self) -> None:
        self._budget.end()
        self._guard.check()


@contextmanager
def abandoning_after(session: SparkSession, guard: Guard, choice: RefreshChoice) -> Iterator[Guard]:
    """Give what computes within the choice's budget of Spark, until it checks the yielded guard.

    Raises RefreshAbandonedError.
    """
    with JobBudget(session, choice.budget_s) as budget:
        try:
            yield _EndingGuard(guard, budget)
        except (Canceled, EngineError, E.PySparkException, Py4JJavaError) as error:
            # A cancelled job shows in as many ways as there are things that need it.
            if not budget.spent:
                raise
            raise RefreshAbandonedError from error
