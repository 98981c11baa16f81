"""Hashes of keys without Spark are those that Spark has."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from iscp.delta.rows.row_keys import key_hashes
from iscp.model.rows.key_ranges import hash_sql

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

TEXTS = ["", " ", "none", "1-2", "1.2.3", "0x1", "item 7", "ü€𝄞", "3f2b8c1e-0000", "e5", "1e", "d", "inf-", "x" * 99]
NUMBERS = ["0", "-1", "42", "999999999999999", "-100000000000000"]
DATES = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]
KEYS: dict[str, pa.Array] = {
    "texts": pa.array([*TEXTS, *NUMBERS, None, "2026-01-01 00:00:00"]),
    "longs": pa.array([0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 123_456_789_012_345_678, None], pa.int64()),
    "bytes": pa.array([0, 127, -128, None], pa.int8()),
    "days": pa.array([*DATES, None], pa.date32()),
    "flags": pa.array([True, False, None]),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_hash_is_the_one_of_spark(spark_runtime: SparkRuntime, name: str) -> None:
    keys = KEYS[name]
    seconds = pa.array([None if number % 3 == 0 else f"s{number}" for number in range(len(keys))], pa.string())
    rows = pa.table({"k": keys, "other": seconds})
    for key in (["k"], ["K", "other"], ["other", "k"]):
        wanted = spark_runtime.root.createDataFrame(rows).selectExpr(f"{hash_sql(key)} AS h").toArrow()["h"]
        found = key_hashes(rows, key)
        assert found is not None
        assert found.to_pylist() == wanted.to_pylist()
