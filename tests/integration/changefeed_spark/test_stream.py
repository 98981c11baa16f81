"""Spark's streams of a changefeed: each change comes once, whatever happens to the query and to the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException, StreamingQueryException

from iscp.changefeed.model.ulid import Cursor
from iscp.changefeed.spark.stream import read
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import purge_files
from tests.fakes.s3 import FakeS3
from tests.integration.changefeed_spark.conftest import SCHEMA, Appended, appender, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WAIT_S = 120


class Sink:
    """A Delta table into which each batch goes once; it may break off before or after it has written one."""

    def __init__(self, directory: Path) -> None:
        self.uri = str(directory / "copy")
        self.checkpoint = str(directory / "checkpoint")
        self.batches: list[int] = []
        self.break_off = ""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self.break_off == "before":
            raise RuntimeError("broken off before")
        rows = batch.persist()
        try:
            self.batches.append(rows.count())
            rows.write.format("delta").mode("append").option("txnAppId", self.checkpoint).option(
                "txnVersion", batch_id
            ).save(self.uri)
        finally:
            rows.unpersist()
        if self.break_off == "after":
            raise RuntimeError("broken off after")

    def ids(self, spark: SparkSession) -> list[int]:
        return sorted(row[0] for row in spark.read.format("delta").load(self.uri).select("row.id").collect())


def run(spark: SparkSession, uri: str, sink: Sink, form: str = "changefeed", **options: Any) -> None:
    """All that is there, until the end."""
    stream = spark.readStream.format(form).options(**options).load(uri)
    writer = stream.writeStream.option("checkpointLocation", sink.checkpoint).foreachBatch(sink.write)
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def test_each_change_comes_once_through_kills_compactions_and_vacuums(
    spark: SparkSession, uri: str, append: Appended, tmp_path: Path
) -> None:
    sink = Sink(tmp_path)
    for shard in (0, 1):
        append(shard, [10 * shard + each for each in range(5)])
    for sink.break_off in ("before", "after"):
        with pytest.raises(StreamingQueryException, match=f"broken off {sink.break_off}"):
            run(spark, uri, sink)
        append(0, [20 if sink.break_off == "before" else 21])
        DeltaTable(uri).optimize.compact()
        DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    sink.break_off = ""
    run(spark, uri, sink)  # what was broken off
    assert sink.ids(spark) == [*range(5), *range(10, 15)]
    run(spark, uri, sink)
    assert sink.ids(spark) == [*range(5), *range(10, 15), 20, 21]
    copied = spark.read.format("delta").load(sink.uri)
    assert copied.exceptAll(read(spark, uri)).count() == 0


@pytest.mark.full
def test_a_compaction_with_a_vacuum_or_a_purge_ends_deltas_own_stream_but_not_this_one(
    spark: SparkSession, uri: str, append: Appended, tmp_path: Path
) -> None:
    ours, deltas = Sink(tmp_path / "ours"), Sink(tmp_path / "deltas")
    first = append(0, [1, 2])
    run(spark, uri, ours)
    run(spark, uri, deltas, "delta")
    append(0, [3])
    append(0, [4])
    purge_files(opened(uri), {0: first}, 1)
    run(spark, uri, ours)
    assert ours.ids(spark) == [1, 2, 3, 4]
    with pytest.raises(StreamingQueryException, match=r"DELTA_SOURCE_IGNORE_DELETE|Detected deleted data"):
        run(spark, uri, deltas, "delta")
    append(0, [5])
    append(0, [6])
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    run(spark, uri, ours)
    assert ours.ids(spark) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(StreamingQueryException, match=r"FILE_NOT_EXIST|does not exist"):
        run(spark, uri, deltas, "delta", ignoreDeletes=True)


@pytest.mark.full
def test_a_stream_that_falls_behind_the_purge_fails_and_says_where_to_begin(
    spark: SparkSession, uri: str, append: Appended, tmp_path: Path
) -> None:
    sink = Sink(tmp_path / "behind")
    append(0, [1])
    run(spark, uri, sink)
    append(0, [2])
    purged = append(0, [3])
    append(0, [4])
    purge_files(opened(uri), {0: purged}, 1)
    left = Cursor(opened(uri).description.feed_id, {0: purged})
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, uri, sink)
    assert left.text in str(caught.value)
    assert sink.ids(spark) == [1]
    anew = Sink(tmp_path / "anew")
    run(spark, uri, anew, startingCursor=left.text)
    assert anew.ids(spark) == [4]


@pytest.mark.full
def test_a_batch_has_so_many_rows_at_most_and_a_restart_goes_on_behind_it(
    spark: SparkSession, uri: str, append: Appended, tmp_path: Path
) -> None:
    sink = Sink(tmp_path)
    append(0, range(10))
    append(1, range(100, 104))

    def all_available() -> None:
        stream = spark.readStream.format("changefeed").option("maxRowsPerTrigger", 4).load(uri)
        writer = stream.writeStream.option("checkpointLocation", sink.checkpoint).foreachBatch(sink.write)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    all_available()
    assert sink.batches == [4, 4, 4, 2]
    append(0, range(10, 15))
    all_available()
    assert sink.batches == [4, 4, 4, 2, 4, 1]
    assert sink.ids(spark) == [*range(15), *range(100, 104)]
    append(0, range(15, 20))
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    try:
        with pytest.raises(StreamingQueryException, match="Leave it out"):
            run(spark, uri, sink, maxRowsPerTrigger=4)
        run(spark, uri, sink)
    finally:
        spark.conf.unset("spark.sql.streaming.triggerAvailableNowWrapper.enabled")
    assert sink.ids(spark) == [*range(20), *range(100, 104)]


@pytest.mark.further  # each time: test_frames.py
def test_the_format_reads_batches_too(spark: SparkSession, uri: str, append: Appended) -> None:
    assert spark.read.format("changefeed").load(uri).count() == 0
    last = append(0, [1, 2])
    append(0, [3])
    frame = spark.read.format("changefeed").load(uri)
    assert frame.exceptAll(read(spark, uri)).count() == 0
    assert frame.count() == 3
    behind = Cursor(opened(uri).description.feed_id, {0: last})
    rest = spark.read.format("changefeed").option("startingCursor", behind.text).load(uri)
    assert [row.row.id for row in rest.collect()] == [3]
    # Where Python is may be another place than where the JVM is.
    with pytest.raises(PySparkException, match="relative to nothing that is known"):
        spark.read.format("changefeed").load("feed").count()


@pytest.mark.full
def test_on_s3_too(spark: SparkSession, s3: FakeS3, tmp_path: Path) -> None:
    uri = s3.uri("feeds/streamed", "other")
    create_feed_table(uri, SCHEMA, 1)
    append = appender(uri)
    append(0, [1, 2])
    sink = Sink(tmp_path)
    for _ in range(2):
        run(spark, uri, sink)
        append(0, [3])
    assert sink.ids(spark) == [1, 2, 3]
    assert read(spark, uri).count() == 4
