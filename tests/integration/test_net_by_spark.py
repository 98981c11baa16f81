"""Net changes by Spark equal their definition; and it is known where each row is its key's net change by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from iscp.delta.rows.net_changes import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DOUBTFUL,
    OP,
    contradicted,
    each_by_itself,
    each_key,
    net_by_spark,
)
from iscp.model.rows.key_ranges import Op
from tests.fakes.bags import Bag, Change, history_of, key_of, left, net

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

KEY = ("case", "id")
HISTORIES = 300

Case = tuple[list[Change], Bag]
"""Changes of a range, and the rows after it."""
Net = dict[int, tuple[str, str]]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Every range of many histories, in which rows share keys more often than not."""
    draw, found = Random(7), []
    for _ in range(HISTORIES):
        history = history_of(draw)
        found += [(history.changes(begin, end), history.bags[end]) for begin, end in history.ranges()]
    return found


@pytest.fixture(scope="module")
def expected(cases: list[Case]) -> list[Net | None]:
    return [net(changes) for changes, _ in cases]  # type: ignore[misc]


@pytest.fixture(scope="module")
def raw(spark_runtime: SparkRuntime, cases: list[Case]) -> DataFrame:
    rows = [
        (number, change.key, change.value, change.kind, change.version)
        for number, (changes, _) in enumerate(cases)
        for change in changes
    ]
    return _frame(spark_runtime, rows, [*KEY, "v", CHANGE_TYPE, COMMIT_VERSION]).repartition(3).localCheckpoint()


def _frame(runtime: SparkRuntime, rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> DataFrame:
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return runtime.root.createDataFrame(pa.table(columns, names=list(names)))


def by_case(frame: DataFrame, cases: int) -> list[Net]:
    found: list[Net] = [{} for _ in range(cases)]
    for row in frame.collect():
        assert row["id"] not in found[row["case"]]
        found[row["case"]][row["id"]] = row[OP], left(row[OP], row["v"])
    return found


def doubtful(frame: DataFrame) -> set[int]:
    return {row["case"] for row in frame.where(DOUBTFUL).collect()}


def test_one_sort_finds_what_the_definition_says(raw: DataFrame, expected: list[Net | None]) -> None:
    found = net_by_spark(raw, KEY)
    doubts = {number for number, each in enumerate(expected) if each is None}
    assert doubtful(found) == doubts
    for number, each in enumerate(by_case(found.where(~found["case"].isin(doubts)), len(expected))):
        assert number in doubts or each == expected[number], number


def test_rows_that_decide_by_themselves_say_what_the_definition_says(
    raw: DataFrame, cases: list[Case], expected: list[Net | None]
) -> None:
    keys = each_key(raw, KEY)
    more = doubtful(keys)
    assert len(more) < len(cases) * 0.9
    found = by_case(each_by_itself(raw.where(~raw["case"].isin(more))), len(cases))
    ops = {(row["case"], row["id"], row[OP]) for row in keys.collect()}
    for number in set(range(len(cases))) - more:
        assert found[number] == expected[number], number
        assert {(number, key, op) for key, (op, _) in found[number].items()} <= ops


def test_what_the_source_contradicts_are_keys_that_rows_share(
    spark_runtime: SparkRuntime, cases: list[Case], expected: list[Net | None]
) -> None:
    """Each case for itself, as one answer is given for all keys."""
    told: set[bool] = set()
    for (_, after), found in [*zip(cases, expected, strict=True)][:200:8]:
        if found:
            of_key = Counter(key_of(row) for row in after.elements())
            wrong = any(of_key[key] != (op in (Op.INSERT, Op.UPDATE)) for key, (op, _) in found.items())
            changes = _frame(spark_runtime, [(key, op) for key, (op, _) in found.items()], ["id", OP])
            rows = spark_runtime.root.createDataFrame([*after.elements()], "id long, v string")
            assert contradicted(changes, rows, ("id",)) == wrong
            told.add(wrong)
    assert told == {False, True}
