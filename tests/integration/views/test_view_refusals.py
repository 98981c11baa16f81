"""Queries that Spark's own optimizer fails on are refused when a view is registered: no retry would help."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.model.values.errors import InvalidRequest

from .conftest import ViewBench

pytestmark = pytest.mark.spark

BOTH = "(select q1.a as a from t q1 union all select q2.a as a from t q2)"
BROKEN = (
    f"select * from (select q.a as a from {BOTH} q order by q.a, q.a limit 3 offset 1)",
    "select q.a as a, q.m as m, q.x as x, rank() over (order by q.m) as r from (select p.a as a, "
    "avg(p.a) over (order by p.a rows between 1 preceding and current row) as m, max(2.2) over () as x "
    f"from {BOTH} p) q",
)


@pytest.mark.parametrize("sql", BROKEN)
def test_a_query_that_plain_spark_fails_on_is_refused(new_view: Callable[..., ViewBench], sql: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        new_view(sql, tables=("t",))
    error = refused.value
    assert error.field == "spec.iteration.consumer.options.sql"
    assert "PLAN_VALIDATION_FAILED" in error.message
    assert "without iscp too" in error.message
    assert "\n" not in error.message
    assert "another way" in error.remedy
