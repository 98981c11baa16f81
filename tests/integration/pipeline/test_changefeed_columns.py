"""Columns, and fields of nested ones, that come to a feed's source and go: a replay of the feed still is the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.changefeed import open as open_feed
from iscp.model.job.iteration import DataType
from iscp.model.values.errors import ErrorCode
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline
from .feeding import Feed

pytestmark = pytest.mark.spark

WITH_FEED = "delta.enableChangeDataFeed=true"
MAPPED = "delta.columnMapping.mode = 'name', delta.minReaderVersion = 2, delta.minWriterVersion = 5"
NESTED = (
    "id BIGINT, s STRUCT<x: INT, t: STRUCT<u: STRING>>, a ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>, "
    "k MAP<STRUCT<x: INT>, INT>"
)


def nested(number: int) -> str:
    """A row of those columns, as SQL."""
    return (
        f"({number}, named_struct('x', {number}, 't', named_struct('u', 'u{number}')), "
        f"array(named_struct('x', 1), null), map('a', named_struct('x', {number}), 'b', null), "
        f"map(named_struct('x', 1), {number}))"
    )


def wider(number: int) -> str:
    """A row with the fields that come later, too."""
    return (
        f"({number}, named_struct('x', {number}, 't', named_struct('u', 'u', 'w', {number}), 'y', 'y{number}'), "
        f"array(named_struct('x', 1, 'y', {number})), map('a', named_struct('x', 1, 'y', {number})), "
        f"map(named_struct('x', 1, 'y', 2), {number}))"
    )


def made(pipeline: Pipeline, columns: str, *values: str, properties: str = WITH_FEED) -> None:
    pipeline.source = f"{pipeline.root}/of_columns"
    pipeline.sql(f"CREATE TABLE SOURCE ({columns}) USING delta TBLPROPERTIES ({properties})")
    pipeline.sql(f"INSERT INTO SOURCE VALUES {', '.join(values)}")


def row_type(feed: Feed) -> dict[str, Any]:
    """The types of the feed's row by name, as Delta has them."""
    fields = json.loads(DeltaTable(feed.uri).schema().to_json())["fields"]
    (row,) = [each for each in fields if each["name"] == "row"]
    return {each["name"]: each["type"] for each in row["type"]["fields"]}


def names(kind: dict[str, Any]) -> list[str]:
    return [field["name"] for field in kind["fields"]]


@pytest.mark.slow
def test_fields_that_come_to_nested_columns_are_followed(pipeline: Pipeline) -> None:
    made(pipeline, NESTED, *map(nested, range(4)), "(4, null, null, null, null)")
    feed = Feed(pipeline)
    assert feed.run().ok
    pipeline.sql(f"INSERT INTO SOURCE VALUES {nested(5)}")
    pipeline.sql(
        "ALTER TABLE SOURCE ADD COLUMNS (s.y STRING, s.t.w INT, a.element.y INT, m.value.y INT, k.key.y INT, more INT)"
    )
    pipeline.sql(f"INSERT INTO SOURCE SELECT *, 1 FROM VALUES {wider(6)}, {wider(7)}")
    pipeline.sql("DELETE FROM SOURCE WHERE id IN (0, 4)")
    outcome = feed.run()
    assert (outcome.data_type, outcome.error_msg) == (DataType.TAIL, "")
    kinds = row_type(feed)
    assert names(kinds["s"]) == ["x", "t", "y"]
    assert names(kinds["s"]["fields"][1]["type"]) == ["u", "w"]
    of_nested = (kinds["a"]["elementType"], kinds["m"]["valueType"], kinds["k"]["keyType"])
    assert [names(each) for each in of_nested] == [["x", "y"]] * 3
    feed.assert_equal()
    pipeline.sql("UPDATE SOURCE SET s.y = 'new', s.t.w = 9 WHERE id < 3 OR id = 7")
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed=false)")
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (s.t.z INT)")
    pipeline.sql("UPDATE SOURCE SET s.t.z = 3 WHERE id = 1")
    outcome = feed.run()
    assert (outcome.data_type, outcome.error_msg) == (DataType.DIFFERENCE, "")
    feed.assert_equal()
    assert read_in_order(feed) == [(each["operation"], each["row"]) for each in feed.changes()]


def read_in_order(feed: Feed) -> list[tuple[str, dict[str, Any]]]:
    """As an application reads it, in small pages over old files and new."""
    found, cursor = [], None
    with open_feed(feed.uri) as opened:
        while len((page := opened.read(cursor, limit=3)).rows):
            found += [(each["operation"], each["row"]) for each in page.rows.to_pylist()]
            cursor = page.cursor
    return found


def test_a_nested_column_of_another_type_stops_the_job_and_so_does_a_key_with_more_fields(pipeline: Pipeline) -> None:
    made(pipeline, "id STRUCT<a: INT>, s STRUCT<x: INT>", "(named_struct('a', 1), named_struct('x', 2))")
    feed = Feed(pipeline, key=("id",))
    assert feed.run().ok
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (id.b INT)")
    pipeline.sql("INSERT INTO SOURCE VALUES (named_struct('a', 1, 'b', 3), named_struct('x', 2))")
    outcome = feed.run()
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
    assert "column id is of type struct<a: int32, b: int32> now, the feed has struct<a: int32>" in outcome.error_msg


@SPARK_IN_FULL
@pytest.mark.slow
def test_a_deletion_has_all_that_was_there_also_where_the_table_was_restored_to_before_a_column(
    pipeline: Pipeline,
) -> None:
    pipeline.insert([1, 1, 2], "again")  # rows that share a key, too
    feed = Feed(pipeline)
    feed.run()
    before = DeltaTable(pipeline.source).version()
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (more INT)")
    pipeline.sql("INSERT INTO SOURCE VALUES (101, 'wide', 1, 5), (102, 'wide', 1, null), (1, 'wide', 1, 7)")
    pipeline.sql("UPDATE SOURCE SET more = 6 WHERE id IN (2, 3)")
    assert feed.run().ok
    feed.assert_equal()
    pipeline.sql(f"RESTORE TABLE SOURCE TO VERSION AS OF {before}")
    pipeline.sql("INSERT INTO SOURCE VALUES (103, 'later', 1)")
    outcome = feed.run()
    assert (outcome.data_type, outcome.error_msg) == (DataType.DIFFERENCE, "")
    feed.assert_equal()
    gone = [(each["row"]["id"], each["row"]["more"]) for each in feed.changes() if each["operation"] == "delete"]
    assert sorted(gone, key=str) == [(1, 7), (101, 5), (102, None), (2, 6), (2, 6)]
    pipeline.delete("id = 103")
    assert feed.run().data_type is DataType.TAIL
    feed.assert_equal()


@pytest.mark.parametrize(
    "change", in_full(["DROP COLUMN v", "DROP COLUMN s.y", "RENAME COLUMN v TO w", "RENAME COLUMN s.y TO z"], but=2)
)
@pytest.mark.slow(but=1)
def test_what_a_column_or_a_field_held_that_goes_is_taken_out_of_the_feed(pipeline: Pipeline, change: str) -> None:
    columns, values = "id BIGINT, v STRING, s STRUCT<x: INT, y: INT>", "({0}, 'v{0}', named_struct('x', 1, 'y', {0}))"
    made(pipeline, columns, *map(values.format, range(4)), properties=f"{WITH_FEED}, {MAPPED}")
    feed = Feed(pipeline)
    assert feed.run().ok
    pipeline.sql(f"ALTER TABLE SOURCE {change}")
    pipeline.sql("DELETE FROM SOURCE WHERE id = 1")
    assert (feed.run().error_msg, feed.run().error_msg) == ("", "")
    feed.assert_equal()
    pipeline.sql("DELETE FROM SOURCE WHERE id = 2")
    assert feed.run().ok
    feed.assert_equal()


def test_a_job_that_is_to_stop_where_columns_go_stops_where_a_field_goes(pipeline: Pipeline) -> None:
    made(
        pipeline,
        "id BIGINT, s STRUCT<x: INT, y: INT>",
        "(1, named_struct('x', 1, 'y', 2))",
        properties=f"{WITH_FEED}, {MAPPED}",
    )
    feed = Feed(pipeline, {"on_schema_change": "stop"})
    assert feed.run().ok
    pipeline.sql("ALTER TABLE SOURCE DROP COLUMN s.y")
    outcome = feed.run()
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED, outcome.error_msg
    assert "the source has no column s.y any more" in outcome.error_msg
