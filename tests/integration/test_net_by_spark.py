"""Spark reduces changes as Arrow does, and knows when each row tells its key's net change by itself."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from iscp.adapters.delta.net import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    DOUBTFUL,
    OP,
    each_by_itself,
    each_key,
    net_by_arrow,
    net_by_spark,
)
from iscp.ports.pipeline import ChangesUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from iscp.adapters.delta.session import SparkRuntime

pytestmark = pytest.mark.spark

KEY = ("case", "id")
TYPES = ("insert", "delete", "update_preimage", "update_postimage")
CASES = 2_000

Net = set[tuple[int, str, int | None]]
"""Keys, their ops, and which row it is, where there still is one."""


@pytest.fixture(scope="module")
def changes() -> pa.Table:
    """Changes of many cases, some of which no table could have had."""
    drawn = random.Random(7)
    rows = [
        (case, drawn.randrange(2), drawn.choice(TYPES), drawn.choice((1, 1, 2, 3)))
        for case in range(CASES)
        for _ in range(drawn.randint(1, 5))
    ]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    names = [*KEY, CHANGE_TYPE, COMMIT_VERSION]
    return pa.table([*columns, pa.array(range(len(rows)))], names=[*names, "row"])


@pytest.fixture(scope="module")
def by_arrow(changes: pa.Table) -> dict[int, Net | None]:
    """By case; None where its rows share a key."""
    found: dict[int, Net | None] = {}
    for case in range(CASES):
        try:
            net = net_by_arrow(changes.filter(pa.compute.equal(changes["case"], case)), KEY)
        except ChangesUnavailable:
            found[case] = None
        else:
            found[case] = told(net.to_pylist()).get(case, set())
    return found


@pytest.fixture(scope="module")
def raw(spark_runtime: SparkRuntime, changes: pa.Table) -> DataFrame:
    return spark_runtime.root.createDataFrame(changes).repartition(3)


def told(rows: list[dict[str, Any]]) -> dict[int, Net]:
    cases: dict[int, Net] = {}
    for row in rows:
        cases.setdefault(row["case"], set()).add((row["id"], row[OP], None if row[OP] == "d" else row["row"]))
    return cases


def doubtful(frame: DataFrame) -> set[int]:
    return {row["case"] for row in frame.where(DOUBTFUL).collect()}


def test_one_sort_finds_what_arrow_finds(raw: DataFrame, by_arrow: dict[int, Net | None]) -> None:
    net = net_by_spark(raw, KEY)
    assert doubtful(net) == {case for case, found in by_arrow.items() if found is None}
    found = told([row.asDict() for row in net.where(f"NOT {DOUBTFUL}").collect()])
    for case, expected in by_arrow.items():
        if expected is not None:
            assert found.get(case, set()) == expected, case


def test_rows_that_tell_by_themselves_tell_what_arrow_finds(raw: DataFrame, by_arrow: dict[int, Net | None]) -> None:
    keys = each_key(raw, KEY)
    left = set(by_arrow) - doubtful(keys)
    assert len(left) > CASES / 20
    ops = {(row["case"], row["id"], row[OP]) for row in keys.collect() if row["case"] in left}
    found = told([row.asDict() for row in each_by_itself(raw).collect() if row["case"] in left])
    for case in left:
        assert found.get(case, set()) == by_arrow[case], case
        assert {(key, op) for key, op, _ in found[case]} == {(key, op) for at, key, op in ops if at == case}
