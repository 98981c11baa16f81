"""Few changes are put in the order of a changefeed without Spark, where that is certain."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from iscp.delta.rows.net_changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from iscp.delta.rows.row_keys import key_hashes
from iscp.delta.source.change_set import DeltaChangeSet, RowsAfter
from iscp.model.values.watermark import Watermark
from iscp.ports.source import SourceRange

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CHANGES: list[tuple[int | None, str, str, int]] = [
    (2, "b", "insert", 6),
    (1, "new", "update_postimage", 5),
    (1, "old", "update_preimage", 5),
    (None, "n", "insert", 5),
    (2, "b", "delete", 5),
    (3, "c", "insert", 5),
]
IN_ORDER = ["n", "old", "new", "b", "c", "b"]


def change_set(schema: T.StructType | None = None, steps: int = 0) -> DeltaChangeSet:
    rows = pa.table(
        {
            "id": pa.array([each[0] for each in CHANGES], pa.int64()),
            "v": [each[1] for each in CHANGES],
            CHANGE_TYPE: [each[2] for each in CHANGES],
            COMMIT_VERSION: pa.array([each[3] for each in CHANGES], pa.int64()),
            COMMIT_TIMESTAMP: pa.array([AT] * len(CHANGES)),
        }
    )
    columns = schema or T.StructType([T.StructField("id", T.LongType()), T.StructField("v", T.StringType())])
    span = SourceRange(4, Watermark(6, AT.timestamp()), "t", steps=steps)
    return DeltaChangeSet(cast(Any, None), columns, span, RowsAfter(lambda: cast(Any, None)), rows=rows)


def test_changes_are_in_order_of_version_key_and_what_was_before() -> None:
    found = change_set().ordered(["ID"], [], hashed=False)
    assert found is not None
    assert found["v"].to_pylist() == IN_ORDER
    assert found.column_names == ["id", "v", CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]


def test_conditions_hold_for_each_and_hashes_go_with_their_keys() -> None:
    found = change_set().ordered(["id"], ["id > 1", "v <> 'c'"], hashed=True)
    assert found is not None
    assert list(zip(found["id"].to_pylist(), found[CHANGE_TYPE].to_pylist(), strict=True)) == [
        (2, "delete"),
        (2, "insert"),
    ]
    hashes = key_hashes(found, ["id"])
    assert hashes is not None
    assert found["_key_hash"].to_pylist() == hashes.to_pylist()


@pytest.mark.parametrize("where", ["substring(v, 1, 1) = 'x'", "id + 1 > 2", "v RLIKE 'x'"])
def test_conditions_of_spark_are_left_to_it(where: str) -> None:
    assert change_set().ordered(["id"], [where], hashed=False) is None


def test_steps_and_types_that_arrow_has_otherwise_are_left_to_spark() -> None:
    assert change_set(steps=4).ordered(["id"], [], hashed=False) is None
    nested = T.StructType(
        [T.StructField("id", T.LongType()), T.StructField("v", T.MapType(T.StringType(), T.LongType()))]
    )
    assert change_set(nested).ordered(["id"], [], hashed=False) is None
    doubles = T.StructType([T.StructField("id", T.DoubleType()), T.StructField("v", T.StringType())])
    assert change_set(doubles).ordered(["id"], [], hashed=False) is None
