"""A frame after a cursor has every later row exactly once, and opens no file without such rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from iscp.changefeed.model.ulid import Cursor
from iscp.changefeed.spark.stream import read
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import purge_files
from iscp.model.values.errors import ConfigurationError, CursorBehind, InvalidRequest, TableNotFound
from tests.integration.changefeed_spark.conftest import SCHEMA, Appended, appender, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def ids(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("row.id").collect())


def cursor(uri: str, ulids: dict[int, str]) -> Cursor:
    return Cursor(opened(uri).description.feed_id, ulids)


def test_each_shard_goes_on_from_its_own_ulid_and_skips_its_own_files(
    spark: SparkSession, uri: str, append: Appended
) -> None:
    """An idle shard's ulid is an old one, and must not have the others' files read again."""
    idle = append(2, [1, 2])
    ends = [append(0, [10 * number, 10 * number + 1]) for number in range(1, 6)]
    other = append(1, [90])
    append(1, [91])
    behind = cursor(uri, {2: idle, 0: ends[3], 1: other})
    frame = read(spark, uri, behind)
    assert ids(frame) == [50, 51, 91]
    assert len(frame.inputFiles()) == 2
    assert ids(read(spark, Path(uri), behind.text)) == [50, 51, 91]
    middle = read(spark, uri).where("row.id = 40").first()
    assert middle is not None
    within = read(spark, uri, cursor(uri, {**behind, 0: middle.ulid_text}))
    assert ids(within) == [41, 50, 51, 91]
    assert len(within.inputFiles()) == 3
    assert ids(read(spark, uri, cursor(uri, {0: ends[4]}))) == [1, 2, 90, 91]
    assert len(ids(read(spark, uri))) == 14


def test_a_frame_is_of_the_moment_in_which_it_was_requested(spark: SparkSession, uri: str, append: Appended) -> None:
    last = append(0, [1])
    frame = read(spark, uri, cursor(uri, {0: last}))
    assert frame.schema == spark.read.format("delta").load(uri).schema
    append(0, [2])
    assert ids(frame) == []
    assert ids(read(spark, uri, cursor(uri, {0: last}))) == [2]


def test_a_compaction_changes_nothing(spark: SparkSession, uri: str, append: Appended) -> None:
    ends = [append(0, [number, number + 100]) for number in range(3)]
    spark.sql(f"OPTIMIZE delta.`{uri}`")
    assert len(DeltaTable(uri).file_uris()) == 1
    assert ids(read(spark, uri, cursor(uri, {0: ends[1]}))) == [2, 102]


def test_who_is_behind_the_purge_gets_an_error(spark: SparkSession, uri: str, append: Appended) -> None:
    ends = [append(0, [number]) for number in range(4)]
    purge_files(opened(uri), {0: ends[1]}, 1)
    with pytest.raises(CursorBehind) as caught:
        read(spark, uri, cursor(uri, {0: ends[0]}))
    assert ids(read(spark, uri, caught.value.first_cursor)) == ids(read(spark, uri)) == [2, 3]


def test_foreign_cursors_and_tables_are_refused(
    spark: SparkSession, uri: str, tmp_path: Path, append: Appended
) -> None:
    append(0, [1])
    other = str(tmp_path / "other")
    create_feed_table(other, SCHEMA, 1)
    last = appender(other)(0, [1])
    for refused in (cursor(other, {0: last}), cursor(uri, {7: last}), "none", cursor(uri, {0: "x"})):
        with pytest.raises(InvalidRequest, match="cursor"):
            read(spark, uri, refused)
    plain = str(tmp_path / "plain")
    spark.range(1).write.format("delta").save(plain)
    with pytest.raises(ConfigurationError, match="is no changefeed"):
        read(spark, plain)
    with pytest.raises(TableNotFound):
        read(spark, str(tmp_path / "nothing"))
