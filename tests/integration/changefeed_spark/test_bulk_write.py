"""Rows that Spark writes are in the requested order, with ulids that follow one another, each row once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from iscp.changefeed.model.ulid import UlidPlace, begin, ulid_text
from iscp.changefeed.spark.bulk_write import write_files
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.file_writer import FILE_PREFIX, GROUP_ROWS
from iscp.changefeed.table.page_reader import READ_ROWS_MAX, PageReader
from iscp.delta.log.table_opening import open_delta
from iscp.model.values.errors import EngineError, InvalidRequest, IscpError
from tests.fakes.s3 import FakeS3
from tests.integration.changefeed_spark.conftest import DRAWN, SCHEMA, Appended, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Order = Sequence[str | tuple[str, str]]


def commit(uri: str, frame: DataFrame, order_by: Order = (), shard: int = 0, operation: str = "insert") -> int:
    """Appends a frame as a transaction does; how many rows."""
    feed = opened(uri)
    seen = feed.state(shard)
    first = begin(seen.place, max(1_000, seen.place.time_ms + 1), DRAWN)
    with feed.draft() as draft:
        order = [each if isinstance(each, tuple) else (each, "ascending") for each in order_by]
        adds, count = write_files(frame, uri, feed.description, shard, first, order, operation)
        if count:
            draft.adopt(shard, first, count, adds)
            feed.commit(draft, {shard: seen})
    return count


def read(uri: str) -> pa.Table:
    table = open_delta(uri)
    return PageReader(opened(uri).uri).page(table, {}, READ_ROWS_MAX).rows


def ids(uri: str) -> list[int]:
    return [row["id"] for row in read(uri)["row"].to_pylist()]


def files(uri: str) -> list[str]:
    return [
        path.relative_to(uri).as_posix()
        for path in Path(uri).rglob("*")
        if path.is_file() and "_delta_log" not in path.parts
    ]


def frame_of(spark: SparkSession, count: int, partitions: int = 5) -> DataFrame:
    """Rows in no order, in partitions of which some are empty."""
    rows = spark.range(0, count, numPartitions=2).select("id", F.concat(F.lit("n"), F.col("id")).alias("name"))
    return rows.repartition(partitions, F.col("id") % 3)


def test_rows_are_sorted_whatever_their_partitions_and_numbered_without_a_gap(spark: SparkSession, uri: str) -> None:
    assert commit(uri, frame_of(spark, 1_000), ["id"], operation="loaded") == 1_000
    rows = read(uri)
    assert [row["id"] for row in rows["row"].to_pylist()] == list(range(1_000))
    first = begin(UlidPlace(0, 0), 1_000, DRAWN)
    assert rows["ulid"].to_pylist() == [first.ulid(number) for number in range(1_000)]
    assert rows["ulid_text"].to_pylist() == [ulid_text(first.ulid(number)) for number in range(1_000)]
    assert set(rows["operation"].to_pylist()) == {"loaded"}
    assert set(rows["version"].to_pylist()) == {None}
    assert set(rows["net"].to_pylist()) == {False}
    assert {(row["feed"], row["shard"]) for row in rows.to_pylist()} == {(opened(uri).description.feed_id, 0)}
    assert all(path.rpartition("/")[2].startswith(FILE_PREFIX) for path in files(uri))
    assert opened(uri).state(0).place == first.after(1_000)


def test_files_are_in_order_with_small_row_groups_and_the_log_says_what_they_hold(
    spark: SparkSession, uri: str
) -> None:
    count = 3 * GROUP_ROWS + 5
    commit(uri, frame_of(spark, count).coalesce(1), ["id"])
    actions = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    assert sum(action["num_records"] for action in actions) == count
    for action in actions:
        found = pq.read_metadata(Path(uri) / action["path"])
        assert max(found.row_group(n).num_rows for n in range(found.num_row_groups)) <= GROUP_ROWS
        texts = pq.read_table(Path(uri) / action["path"], columns=["ulid_text"], partitioning=None)[
            "ulid_text"
        ].to_pylist()
        assert texts == sorted(texts)
        assert (texts[0], texts[-1]) == (action["min.ulid_text"], action["max.ulid_text"])
        assert action["null_count.ulid_text"] == 0
        assert action["size_bytes"] == (Path(uri) / action["path"]).stat().st_size


def test_without_an_order_rows_stay_in_that_of_the_partitions(spark: SparkSession, uri: str) -> None:
    commit(uri, spark.range(0, 100, numPartitions=4).selectExpr("99 - id AS id", "'x' AS name"))
    assert ids(uri) == list(range(99, -1, -1))


@pytest.mark.further  # each time: sorted rows above
def test_nulls_come_last_and_orders_may_descend(spark: SparkSession, uri: str) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None), (3, "b"), (4, "a"), (5, None)], "id bigint, name string")
    commit(uri, frame.select("name", "id"), [("name", "descending"), "id"])
    assert ids(uri) == [3, 1, 4, 2, 5]


def test_appends_of_spark_and_without_it_follow_one_another(spark: SparkSession, uri: str, append: Appended) -> None:
    append(0, [20, 21])
    commit(uri, frame_of(spark, 10), ["id"])
    append(0, [30])
    append(1, [40])
    assert opened(uri).state(0).seq == 3
    assert [number for number in ids(uri) if number != 40] == [20, 21, *range(10), 30]
    assert spark.read.format("delta").load(uri).count() == 14


def test_rows_that_change_with_each_read_are_taken_once(spark: SparkSession, uri: str) -> None:
    drawn = spark.range(0, 20_000, numPartitions=4).where("rand() < 0.3").selectExpr("id", "string(rand()) AS name")
    count = commit(uri, drawn.repartition(3), ["name"])
    rows = read(uri)["row"].to_pylist()
    assert len({row["id"] for row in rows}) == len(rows) == count
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)


@pytest.mark.full
def test_a_large_sorted_file_is_written_by_several_tasks(spark: SparkSession, uri: str) -> None:
    """Each has a part of it, and none the count of the others."""
    wide = spark.range(0, 900_000, numPartitions=1).selectExpr(
        "id", "sha2(string(id), 512) || sha2(string(-id), 512) || sha2(string(id + 1), 512) AS name"
    )
    commit(uri, wide)
    assert len(files(uri)) > 1
    assert ids(uri) == list(range(900_000))


def test_no_rows_are_no_files(spark: SparkSession, uri: str) -> None:
    for partitions in (1, 4):
        assert commit(uri, frame_of(spark, 0, partitions), ["id"]) == 0
    assert files(uri) == []
    assert DeltaTable(uri).version() == 0


TYPES = {
    "b": ("boolean", pa.bool_()),
    "i": ("int", pa.int32()),
    "d": ("decimal(20,4)", pa.decimal128(20, 4)),
    "f": ("double", pa.float64()),
    "day": ("date", pa.date32()),
    "at": ("timestamp", pa.timestamp("us", "UTC")),
    "then": ("timestamp_ntz", pa.timestamp("us")),
    "raw": ("binary", pa.binary()),
    "list": ("array<struct<x:int,y:string>>", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
    "map": ("map<string,array<int>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
    "_metadata": ("string", pa.string()),
}
VALUES = {
    "b": "true",
    "i": "7",
    "d": "1234567890.1234",
    "f": "double('NaN')",
    "day": "date'1500-01-01'",
    "at": "timestamp'1500-01-01 00:00:00.123456'",
    "then": "timestamp_ntz'1500-01-01 00:00:00.123456'",
    "raw": "X'00FF'",
    "list": "array(named_struct('x', 1, 'y', null), null)",
    "map": "map('a', array(1, null), 'b', null)",
    "_metadata": "'m'",
}


def test_every_type_comes_through_with_the_key_in_a_column_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "typed")
    create_feed_table(uri, pa.schema([(name, kind) for name, (_, kind) in TYPES.items()]), 1, ["i", "at"])
    select = [f"cast({VALUES[name]} AS {kind}) AS `{name}`" for name, (kind, _) in TYPES.items()]
    nulls = [f"cast(null AS {kind}) AS `{name}`" for name, (kind, _) in TYPES.items()]
    with_null = spark.sql(f"SELECT {', '.join(select)}").union(spark.sql(f"SELECT {', '.join(nulls)}"))
    commit(uri, with_null, ["i"])
    plain, empty = read(uri).to_pylist()
    assert plain["key"] == {"i": 7, "at": plain["row"]["at"]}
    assert (plain["row"]["day"], plain["row"]["list"]) == (date(1500, 1, 1), [{"x": 1, "y": None}, None])
    assert set(empty["row"].values()) == {None}
    by_spark = spark.read.format("delta").load(uri).orderBy("ulid").select("row.*")
    texts = [frame.select(F.to_json(F.struct("*"))).collect() for frame in (by_spark, with_null)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id"], "the rows have the columns id bigint. Cast them to the feed's: id bigint, name string"),
        (["id", "name", "id AS more"], "more bigint"),
        (["int(id) AS id", "name"], "id int"),
        (["id", "name AS Name"], "Name string"),
        (["id", "name", "name"], "name string, name string"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_anything_is_written(
    spark: SparkSession, uri: str, columns: list[str], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        commit(uri, frame_of(spark, 10).selectExpr(*columns))
    assert files(uri) == []


def refusal(spark: SparkSession, uri: str, **given: Any) -> IscpError:
    arguments = {"frame": frame_of(spark, 10), "order_by": [], "shard": 0, **given}
    with pytest.raises(IscpError) as caught:
        commit(uri, **arguments)
    assert files(uri) == []
    return caught.value


def test_streams_and_columns_without_an_order_are_refused(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "'x' AS name")
    assert "are a stream" in refusal(spark, uri, frame=stream).message
    mapped = str(tmp_path / "mapped")
    create_feed_table(mapped, pa.schema([("m", pa.map_(pa.string(), pa.int32()))]), 1)
    error = refusal(spark, mapped, frame=spark.sql("SELECT map('a', 1) AS m"), order_by=["m"])
    assert (error.field, "has no order" in error.message) == ("order_by", True)


def test_nulls_where_the_feed_takes_none_are_refused_and_leave_no_file(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "strict")
    create_feed_table(uri, pa.schema([SCHEMA.field("id"), SCHEMA.field("name").with_nullable(False)]), 1)
    with pytest.raises(InvalidRequest, match="column name has nulls"):
        commit(uri, spark.sql("SELECT 1L AS id, 'a' AS name UNION ALL SELECT 2L, null"))
    assert files(uri) == []
    commit(uri, spark.sql("SELECT 1L AS id, nullif('a', 'b') AS name"))
    assert ids(uri) == [1]


def test_texts_that_nobody_could_read_are_refused(spark: SparkSession, uri: str) -> None:
    broken = spark.sql("SELECT 1L AS id, 'a' AS name UNION ALL SELECT 2L, cast(X'FF61' AS string)")
    error = refusal(spark, uri, frame=broken)
    assert isinstance(error, InvalidRequest)
    assert "column name has texts that are no UTF-8" in error.message


def test_a_failure_that_speaks_of_other_writers_is_the_applications_own(spark: SparkSession, uri: str) -> None:
    words = "java.util.ConcurrentModificationException in a function of mine"
    error = refusal(spark, uri, frame=frame_of(spark, 9).selectExpr("id", f"string(raise_error('{words}')) AS name"))
    assert isinstance(error, EngineError)
    assert words in error.message


def test_times_that_a_setting_cuts_off_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    uri, setting = str(tmp_path / "timed"), "spark.sql.parquet.outputTimestampType"
    create_feed_table(uri, pa.schema([("at", pa.timestamp("us", "UTC"))]), 1)
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    try:
        assert refusal(spark, uri, frame=spark.sql("SELECT current_timestamp() AS at")).field == setting
    finally:
        spark.conf.unset(setting)


@pytest.mark.further  # each time: appends above
def test_the_applications_settings_and_session_stay_out_of_it(spark: SparkSession, uri: str) -> None:
    """Settings of the application hold in all sessions; one here puts sorted files into one task, largest first."""
    frame = spark.range(0, 30, 1, 3).selectExpr("id", "repeat(uuid(), cast(1 + id div 10 * 50 AS int)) AS name")
    shared: Any = spark.sparkContext._jsc.sc().conf()
    settings = {"spark.sql.files.maxPartitionNum": "1", "spark.sql.function.concatBinaryAsString": "true"}
    for name, value in settings.items():
        shared.set(name, value)
    try:
        commit(uri, frame)
    finally:
        for name in settings:
            shared.remove(name)
    ulids = read(uri)["ulid_text"].to_pylist()
    assert (ids(uri), ulids) == (list(range(30)), sorted(ulids))
    assert {pq.read_schema(Path(uri) / path).field("ulid").type for path in files(uri)} == {pa.binary()}
    spark.range(1).createOrReplaceTempView("of_the_application")
    spark.sparkContext.parallelize([(1,)]).toDF(["id"]).createOrReplaceTempView("made_of_an_rdd")
    assert spark.sql("SELECT * FROM made_of_an_rdd CROSS JOIN of_the_application").count() == 1


def test_a_path_with_signs_of_patterns_is_a_path(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "a*1? {b}")
    create_feed_table(uri, SCHEMA, 1)
    commit(uri, frame_of(spark, 10), ["id"])
    assert ids(uri) == list(range(10))


def test_a_failure_leaves_no_file(spark: SparkSession, uri: str) -> None:
    failing = frame_of(spark, 1_000).selectExpr("id", "if(id = 700, raise_error('broken'), name) AS name")
    error = refusal(spark, uri, frame=failing)
    assert isinstance(error, EngineError)
    assert "broken" in error.message


def test_what_is_not_committed_is_deleted(spark: SparkSession, uri: str) -> None:
    feed = opened(uri)
    first = begin(UlidPlace(0, 0), 1_000, DRAWN)
    with feed.draft() as draft:
        order = [("id", "ascending")]
        adds, count = write_files(frame_of(spark, 10), uri, feed.description, 0, first, order, "insert")
        draft.adopt(0, first, count, adds)
        assert files(uri) == [add.path for add in adds]
    assert files(uri) == []
    assert not list(Path(uri).glob("feed=*/*/*")), "nor is a directory left"


@pytest.mark.full
def test_on_s3_too(spark: SparkSession, s3: FakeS3) -> None:
    uri = s3.uri("feeds/large", "acme")
    create_feed_table(uri, SCHEMA, 1)
    for spelling in (uri, uri.replace("s3://", "s3a://")):
        commit(spelling, frame_of(spark, 100), ["id"])
    assert ids(uri) == [*range(100), *range(100)]
    assert spark.read.format("delta").load(uri).count() == 200
