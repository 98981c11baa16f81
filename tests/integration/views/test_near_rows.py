"""Rows that differ in the last digits of their doubles, and those that differ."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.delta.rows.net_changes import are_near, has_doubles
from iscp.spark.session import SparkRuntime
from tests.selection import in_full

pytestmark = pytest.mark.spark
NAN = float("nan")


CASES: tuple[tuple[list[Any], list[Any], bool], ...] = (
    ([("a", 1.0), ("b", None), (None, NAN)], [(None, NAN), ("b", None), ("a", 1.0)], True),
    ([("a", 0.1 + 0.2)], [("a", 0.3)], True),
    ([("a", 1.0)], [("a", 1.0 + 1e-6)], False),
    ([("a", 1.0)], [("a", 1.0), ("a", 1.0)], False),
    ([("a", None)], [("a", 0.0)], False),
    ([("a", 1.0), ("a", 2.0)], [("a", 2.0), ("a", 1.0 + 1e-12)], True),
    ([("a", 1e300)], [("a", 1e300 * (1 + 1e-12))], True),
    ([("a", 0.0)], [("a", -0.0)], True),
    ([("a", 1.0)], [], False),
    ([("a", 1.0)], [("b", 1.0)], False),
    ([("a", NAN)], [("a", 0.0)], False),
    ([("a", float("inf"))], [("a", 1.0)], False),
)


@pytest.mark.parametrize(("wanted", "held", "near"), in_full(CASES, but=5, unpack=True))
def test_small_differences_of_doubles_alone_do_not_count(
    spark_runtime: SparkRuntime, wanted: list[Any], held: list[Any], near: bool
) -> None:
    session, schema = spark_runtime.new_session(), "k string, x double"
    one, other = (session.createDataFrame(rows, schema) for rows in (wanted, held))
    assert has_doubles(one)
    assert are_near(one, other) is near
