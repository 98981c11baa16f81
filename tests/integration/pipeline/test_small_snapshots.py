"""Small tables are copied without Spark, but only where all of their rows come out as Spark has them."""

from __future__ import annotations

import datetime as dt
import json
import math
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.arrow_read import SNAPSHOT_FILE_BYTES, SNAPSHOT_FILES_MAX
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.model.job.iteration import JobOutcome
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.spec.spec import OnDuplicate
from tests.integration.pipeline.conftest import DIRECTLY, Pipeline, rows

pytestmark = pytest.mark.spark

UTC = dt.UTC
MANY, MANY_S = 3_000, 6.0
"""Files, and the processor time that reading them must not take; Spark takes ten times as long as Arrow."""
EVERY_TYPE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "tiny": pa.array([-128, 127, None], pa.int8()),
        "small": pa.array([-32_768, 32_767, None], pa.int16()),
        "number": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "yes": [True, False, None],
        "single": pa.array([1.5, -0.0, None], pa.float32()),
        "double": [1e300, -0.0, None],
        "price": pa.array([Decimal("-99999.99"), Decimal("0.01"), None], pa.decimal128(7, 2)),
        "text": ["", "ü\n\0", None],
        "bytes": [b"", b"\xff\0", None],
        "day": [dt.date(1900, 1, 1), dt.date(9999, 12, 31), None],
        "at": pa.array([dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2038, 1, 19, 3, 14, 8, 1, UTC), None]),
        "wall": pa.array([dt.datetime(1970, 1, 1), dt.datetime(2038, 1, 19, 3, 14, 8, 1), None], pa.timestamp("us")),
    }
)


def written(*tables: pa.Table, **options: Any) -> Callable[[str], None]:
    def write(uri: str) -> None:
        for table in tables:
            write_deltalake(uri, table, mode="append", **options)

    return write


def partitioned(uri: str) -> None:
    days = [dt.date(2026, 1, 1), dt.date(1, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)]
    table = pa.table({"id": [1, 2, 3, 4], "n": [-1, 0, 0, 2**62], "s": ["a", "007", "a.b", "Z9"], "d": days})
    write_deltalake(uri, table, partition_by=["n", "s", "d"])


def changed(uri: str) -> None:
    write_deltalake(uri, rows(range(20)))
    write_deltalake(uri, rows(range(20, 40)), mode="append")
    DeltaTable(uri).delete("id % 3 = 0")
    DeltaTable(uri).update(predicate="id = 1", new_values={"v": "new"})
    DeltaTable(uri).create_checkpoint()
    write_deltalake(uri, rows(range(100, 103)), mode="append")


def widened(uri: str) -> None:
    write_deltalake(uri, rows(range(3)))
    more = rows(range(3, 6)).append_column("more", pa.array(["x", None, "y"]))
    write_deltalake(uri, more, mode="append", schema_mode="merge")


READ_HERE = {
    "every type": written(EVERY_TYPE),
    "partitions": partitioned,
    "rows that were changed": changed,
    "columns that came later": widened,
    "no rows": written(rows([])),
    "no rows any more": lambda uri: (write_deltalake(uri, rows([1])), DeltaTable(uri).delete()),
}


@pytest.mark.parametrize("make", READ_HERE.values(), ids=READ_HERE)
def test_rows_are_those_that_spark_reads(pipeline: Pipeline, make: Callable[[str], None]) -> None:
    uri = f"{pipeline.root}/small"
    make(uri)
    with pipeline.engine.session() as session:
        version = DeltaTable(uri).version()
        small = DeltaChangeSource(DIRECT_BYTES_MAX, pipeline.by_spark).small_snapshot(uri, version)
        assert small is not None
        by_spark = session.read.format("delta").load(uri)
        assert small.schema == by_spark.schema
        assert spelled(small.rows) == spelled(by_spark.toArrow())


def spelled(table: pa.Table) -> list[str]:
    """Rows in no order; a negative zero is no zero."""
    return sorted(map(str, table.to_pylist()))


def partition_of(value: str | None) -> pa.Table:
    return pa.table({"id": [1], "g": pa.array([value], pa.string())})


LEFT_TO_SPARK = {
    "vectors": "CREATE TABLE SOURCE (id BIGINT) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)",
    "mapped": "CREATE TABLE SOURCE (id BIGINT) USING delta TBLPROPERTIES (delta.columnMapping.mode = 'name')",
    "nested": "CREATE TABLE SOURCE (id BIGINT, s STRUCT<a: INT>) USING delta",
    "padded": "CREATE TABLE SOURCE (id BIGINT, c CHAR(3)) USING delta",
    "v2 checkpoints": "CREATE TABLE SOURCE (id BIGINT) USING delta TBLPROPERTIES (delta.checkpointPolicy = 'v2')",
}


def test_other_tables_are_left_to_spark(pipeline: Pipeline) -> None:
    source = DeltaChangeSource(DIRECT_BYTES_MAX, pipeline.by_spark)
    with pipeline.engine.session():
        for name, statement in LEFT_TO_SPARK.items():
            pipeline.source = f"{pipeline.root}/{name}"
            pipeline.sql(statement)
            assert source.small_snapshot(pipeline.source, 0) is None, name
        odd = f"{pipeline.root}/odd"
        write_deltalake(odd, partition_of("a b"), partition_by=["g"])
        assert source.small_snapshot(odd, 0) is None, "paths that are spelled otherwise in the log"
        for name, value in ("null", None), ("empty", ""):
            write_deltalake(f"{pipeline.root}/{name}", partition_of(value), partition_by=["g"])
            assert source.small_snapshot(f"{pipeline.root}/{name}", 0) is None, name
        few = f"{pipeline.root}/few"
        draw = Random(3)
        for _ in range(3):
            values = [draw.getrandbits(60) for _ in range(10_000)]
            write_deltalake(few, pa.table({"id": range(10_000), "v": values}), mode="append")
        sizes = pa.table(DeltaTable(few).get_add_actions())["size_bytes"].to_pylist()
        counted = sum(sizes) - 3 * SNAPSHOT_FILE_BYTES
        assert min(sizes) > SNAPSHOT_FILE_BYTES
        assert DeltaChangeSource(counted - 1).small_snapshot(few, 2) is None, "many bytes"
        assert DeltaChangeSource(counted).small_snapshot(few, 2) is not None
        assert DeltaChangeSource(0).small_snapshot(few, 0) is None, "all through Spark"
        next(Path(few).glob("*.parquet")).unlink()
        assert source.small_snapshot(few, 2) is None, "Spark names the lost file"


def many_files(uri: str, count: int, *, there: bool = True) -> None:
    """A table of files of one row each, in one commit; `there`: whether the files are."""
    write_deltalake(uri, pa.table({"id": pa.array([-1], pa.int64())}))
    actions: list[dict[str, object]] = [{"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "WRITE"}}]
    for number in range(count):
        path = f"part-{number:05}.parquet"
        if there:
            pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), f"{uri}/{path}")
        add = {"path": path, "partitionValues": {}, "size": 500, "modificationTime": 0, "dataChange": True}
        actions.append({"add": add | {"stats": '{"numRecords": 1}'}})
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    Path(uri, "_delta_log", f"{1:020}.json").write_text(lines)


def test_a_table_of_thousands_of_small_files_needs_no_spark(pipeline: Pipeline) -> None:
    """To Spark a file costs some milliseconds of processor time, each time that it is read."""
    source = DeltaChangeSource(DIRECT_BYTES_MAX, pipeline.by_spark)
    many, more = f"{pipeline.root}/many", f"{pipeline.root}/more"
    many_files(many, MANY)
    many_files(more, SNAPSHOT_FILES_MAX, there=False)
    with pipeline.engine.session():
        began_s = time.process_time()
        held = source.small_snapshot(many, 1)
        assert time.process_time() - began_s < MANY_S
        assert held is not None
        assert sorted(held.rows["id"].to_pylist()) == [*range(-1, MANY)]
        assert held.rows["id"].num_chunks == 1
        assert source.small_snapshot(more, 1) is None, "too many files"


def writers(uri: str) -> set[str]:
    """Who wrote a table's files: "delta-rs" or "parquet-mr"."""
    files = DeltaTable(uri).file_uris()
    return {str(pq.read_metadata(file).created_by).partition(" ")[0] for file in files}


def built(outcomes: list[JobOutcome]) -> list[str]:
    return [outcome.error_msg for outcome in outcomes]


@DIRECTLY
def test_a_small_table_is_copied_without_spark(pipeline: Pipeline) -> None:
    jobs = (
        pipeline.job("keyed", key=("id",)),
        pipeline.job("columns", key=("id",), columns=("g", "id")),
        pipeline.job("all"),
    )
    assert built(pipeline.run(*jobs)) == ["", "", ""]
    for name in ("keyed", "all"):
        pipeline.assert_equal(name)
    assert set(DeltaTable(pipeline.target("columns")).to_pyarrow_table().column_names) == {"id", "g"}
    assert {name for job in jobs for name in writers(job.spec.consumer.target)} == {"delta-rs"}


@DIRECTLY
def test_what_deltalake_would_write_otherwise_is_written_by_spark(pipeline: Pipeline) -> None:
    pipeline.source = f"{pipeline.root}/numbers"
    table = pa.table({"id": [1, 2], "x": [math.nan, 1.0]})
    write_deltalake(pipeline.source, table, configuration={"delta.enableChangeDataFeed": "true"})
    assert built(pipeline.run(pipeline.job("nan", key=("id",)))) == [""]
    assert writers(pipeline.target("nan")) == {"parquet-mr"}
    pipeline.assert_equal_by_spark("nan")


@DIRECTLY
def test_rows_that_share_a_key_are_found_without_spark_and_left_out_by_it(pipeline: Pipeline) -> None:
    write_deltalake(pipeline.source, rows([1, 1]), mode="append")
    (outcome,) = pipeline.run(pipeline.job("letters", key=("id",)))
    assert (outcome.error_msg, outcome.dead_letters) == ("", 3)
    (stopped,) = pipeline.run(pipeline.job("stops", key=("id",), policies={"on_duplicate": OnDuplicate.STOP}))
    assert "share a key" in stopped.error_msg
