"""DuckDB gives Spark's value and type to the bit, or raises: the table of equality, by both engines.

`python -m tests.equality` runs it alone, and finds the witnesses of guards again. It runs with each release of either.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from iscp.spark.session import SparkRuntime
from tests.equality.cases import CASES, SOME, Case, rows_of
from tests.equality.comparison import Table, tables, witnesses


def faults(spark_runtime: SparkRuntime, cases: Iterable[Case]) -> list[str]:
    return [
        f"{verdict.case}: {each}"
        for table in tables(spark_runtime.new_session(), cases)
        for verdict in table.judge()
        for each in verdict.faults
    ]


def test_some_expressions_have_the_same_values(spark_runtime: SparkRuntime) -> None:
    assert faults(spark_runtime, SOME) == []


@pytest.mark.full  # each time: test_some_expressions_have_the_same_values
@pytest.mark.timeout(1_800)
def test_all_expressions_have_the_same_values(spark_runtime: SparkRuntime) -> None:
    assert faults(spark_runtime, CASES) == []


@pytest.mark.slow("each time: tests/unit/algebra/test_duck_aggregates_duck_entries.py, of what this test shows")
def test_witnesses_have_the_values_that_spark_gives(spark_runtime: SparkRuntime) -> None:
    session = spark_runtime.new_session()
    other = {}
    for each in witnesses():
        case = each.case
        table = Table(session, case.shape, rows_of(case.shape, case.types), [case])
        found = repr(table.spark_value(case, each.number))
        if found != each.spark:
            other[each.guard] = (found, each.spark)
    assert other == {}
