"""Rows that Spark keeps are given to the query that they were kept for, and to no other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame

from iscp.consumers.source_rows import find_shared_keys
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import cached, release
from tests.integration.conftest import nothing_kept

pytestmark = pytest.mark.spark


def test_two_versions_of_a_table_are_kept_beside_each_other(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    uri = str(tmp_path)
    frames: list[DataFrame] = []
    for number in range(3):
        write_deltalake(uri, pa.table({"id": [number]}), mode="append")
        read = spark_runtime.new_session().read.format("delta")
        frames += [cached(read.load(uri)), cached(read.option("versionAsOf", number).load(uri))]
    assert [frame.count() for frame in frames] == [1, 1, 2, 2, 3, 3]
    assert [len(frame.collect()) for frame in frames] == [1, 1, 2, 2, 3, 3]
    for frame in frames:
        release(frame)
    assert nothing_kept(spark_runtime.root)


def test_keys_that_rows_share_are_counted_again_each_time(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, pa.table({"id": [1, 1, 2]}))
    rows = spark_runtime.new_session().read.format("delta")
    first = find_shared_keys(rows.load(uri), ["id"])
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    second = find_shared_keys(rows.load(uri), ["id"])
    assert first is not None
    assert second is not None
    assert (first.rows, second.rows) == (2, 4)
    own, shared = second.split(rows.load(uri), ["id"])
    assert (own.count(), shared.count()) == (0, 4)
    first.release()
    second.release()
    write_deltalake(uri, pa.table({"id": [1, 2, 3]}), mode="overwrite")
    assert find_shared_keys(rows.load(uri), ["id"]) is None
    assert nothing_kept(spark_runtime.root)


def test_keys_of_rows_that_cannot_be_read_are_not_kept(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, pa.table({"id": [1, 1]}))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    rows = spark_runtime.new_session().read.format("delta").load(uri)
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        find_shared_keys(rows, ["id"])
    assert nothing_kept(spark_runtime.root)
