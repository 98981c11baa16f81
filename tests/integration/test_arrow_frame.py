"""Spark is handed all rows that are held here, also those that come after a batch without rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import frame_of_arrow

pytestmark = pytest.mark.spark

SCHEMA = T.StructType([T.StructField("a", T.LongType())])


def test_no_rows_have_columns_of_every_type(spark_runtime: SparkRuntime) -> None:
    kind = pa.schema(
        [("a", pa.list_(pa.int64())), ("b", pa.timestamp("us", "UTC")), ("c", pa.struct([("d", pa.int8())]))]
    )
    found = frame_of_arrow(spark_runtime.new_session(), kind.empty_table())
    assert found.collect() == []
    assert found.columns == ["a", "b", "c"]


@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize("sizes", [(), (0,), (0, 2), (2, 0, 3), (0, 0, 1, 0)])
def test_no_row_is_lost(spark_runtime: SparkRuntime, sizes: tuple[int, ...], schema: T.StructType | None) -> None:
    kind = pa.schema([("a", pa.int64())])
    parts = [pa.table({"a": pa.array(range(size), pa.int64())}) for size in sizes]
    rows = pa.concat_tables([kind.empty_table(), *parts])
    found = frame_of_arrow(spark_runtime.new_session(), rows, schema)
    assert [row.a for row in found.collect()] == rows["a"].to_pylist()
