"""A plan between two cursors covers every row exactly once, and a batch ends at its bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from iscp.changefeed.model.ulid import Cursor, begin, ulid_text
from iscp.changefeed.spark.partition import FeedPart
from iscp.changefeed.spark.stream import PART_FILES_MAX, FeedPlan
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import FeedTable, purge_files
from iscp.changefeed.table.file_writer import FeedRows
from iscp.model.values.errors import CursorBehind, ErrorCode, InvalidRequest
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

SCHEMA = pa.schema([("id", pa.int64())])
DRAWN = b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfe"
"""Of the second half two are negative, and the third is 0."""


class Feed:
    """A feed of three shards, and what was appended: (shard, ulid) of each row, in the order of ulids."""

    def __init__(self, uri: str) -> None:
        create_feed_table(uri, SCHEMA, 3)
        self.uri = uri
        self.table = FeedTable(uri, SystemClock(), EnvironmentFailpoints({}))
        self.rows: list[tuple[str, int]] = []
        self.now_ms = 1_000

    def append(self, shard: int, count: int) -> None:
        self.now_ms += 1
        seen = self.table.state(shard)
        first = begin(seen.place, self.now_ms, DRAWN)
        row = self.table.description.row
        rows = pa.table([pa.array(range(count)).cast(field.type) for field in row], schema=row)
        self.table.append(shard, seen, first, FeedRows(rows, pa.array(["insert"] * count)))
        self.rows += [(ulid_text(first.ulid(number)), shard) for number in range(count)]

    def cursor(self, rows: Iterable[tuple[str, int]]) -> Cursor:
        return Cursor(self.table.description.feed_id, {shard: ulid for ulid, shard in sorted(rows)})

    def read(self, parts: Sequence[FeedPart]) -> list[tuple[str, int]]:
        """What is in the parts."""
        found = []
        for part in parts:
            for path in part.paths:
                ulids = pq.read_table(Path(self.uri) / path, columns=["ulid_text"], partitioning=None)["ulid_text"]
                found += [(ulid, part.shard) for ulid in ulids.to_pylist() if part.after < ulid <= part.upto]
        return found


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(str(tmp_path / "feed"))


@pytest.fixture
def filled(feed: Feed) -> Feed:
    for shard, count in ((0, 5), (1, 3), (0, 1), (2, 4), (1, 6), (0, 2)):
        feed.append(shard, count)
    return feed


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("rows_max", [1, 2, 3, 7, 100])
def test_batches_of_so_many_rows_have_each_row_once(filled: Feed, rows_max: int, compacted: bool) -> None:
    if compacted:
        DeltaTable(filled.uri).optimize.compact()
        filled.append(1, 3)
    plan = FeedPlan(filled.uri)
    found, cursor, more = [], filled.cursor([]), True
    while more:
        end, more = plan.end(cursor, rows_max)
        batch = filled.read(plan.parts(cursor, end))
        assert len(batch) == rows_max or not more
        found += batch
        cursor = end
    assert sorted(found) == filled.rows
    assert cursor == plan.last_cursor() == filled.cursor(filled.rows)
    assert plan.end(cursor, rows_max) == (cursor, False)
    assert plan.parts(cursor, cursor) == []


def test_batches_follow_the_order_of_the_ulids_where_no_files_overlap(filled: Feed) -> None:
    plan = FeedPlan(filled.uri)
    for count in range(1, len(filled.rows)):
        end, more = plan.end(filled.cursor([]), count)
        assert end == filled.cursor(filled.rows[:count])
        assert more


def test_a_shard_that_begins_behind_the_end_has_no_part_though_nobody_knows_its_ulids(feed: Feed) -> None:
    feed.append(0, 2)
    end = feed.cursor(feed.rows)
    feed.append(1, 1)
    feed.append(1, 1)
    DeltaTable(feed.uri).alter.set_table_properties({"delta.dataSkippingStatsColumns": "operation"})
    DeltaTable(feed.uri).optimize.compact()
    plan = FeedPlan(feed.uri)
    assert feed.read(plan.parts(Cursor(end.feed), end)) == feed.rows[:2]
    assert plan.end(Cursor(end.feed), 100) == (feed.cursor(feed.rows), False)


def test_what_lies_between_any_two_cursors_is_planned_whatever_was_compacted(filled: Feed) -> None:
    plan, rows = FeedPlan(filled.uri), filled.rows
    for _ in range(2):
        for first in range(0, len(rows), 4):
            for last in range(first, len(rows) + 1, 3):
                parts = plan.parts(filled.cursor(rows[:first]), filled.cursor(rows[:last]))
                assert sorted(filled.read(parts)) == rows[first:last]
        DeltaTable(filled.uri).optimize.compact()


def test_only_files_that_may_have_such_rows_are_planned(filled: Feed) -> None:
    plan, rows = FeedPlan(filled.uri), filled.rows
    parts = plan.parts(filled.cursor(rows[:8]), filled.cursor(rows[:10]))
    assert [(part.shard, len(part.paths)) for part in parts] == [(0, 1), (2, 1)]


def test_small_files_of_a_shard_are_read_together_and_not_too_many(feed: Feed) -> None:
    for _ in range(PART_FILES_MAX + 1):
        feed.append(0, 1)
    feed.append(1, 1)
    plan = FeedPlan(feed.uri)
    parts = plan.parts(feed.cursor([]), plan.last_cursor())
    assert [(part.shard, len(part.paths)) for part in parts] == [(0, PART_FILES_MAX), (0, 1), (1, 1)]


def test_a_cursor_that_is_ahead_stays_where_it_is(filled: Feed) -> None:
    """As after the table was restored to an earlier version."""
    plan = FeedPlan(filled.uri)
    ahead = Cursor(filled.table.description.feed_id, {0: "7" + "Z" * 25})
    end, _ = plan.end(ahead, None)
    assert end[0] == ahead[0]
    assert not any(part.shard == 0 for part in plan.parts(ahead, end))


def test_cursors_of_other_feeds_are_refused(filled: Feed, tmp_path: Path) -> None:
    other = Feed(str(tmp_path / "other"))
    with pytest.raises(InvalidRequest, match="is one of feed"):
        FeedPlan(filled.uri).own(other.cursor([]))


def test_who_is_behind_the_purge_gets_the_first_cursor_that_is_left(filled: Feed) -> None:
    plan, rows = FeedPlan(filled.uri), filled.rows
    purge_files(filled.table, {0: rows[4][0]}, 1)
    left = filled.cursor(rows[:5])
    assert plan.first_cursor() == left
    refusals: list[Callable[[Cursor], object]] = [
        lambda cursor: plan.end(cursor, None),
        lambda cursor: plan.end(cursor, 5),
        lambda cursor: plan.parts(cursor, left),
    ]
    for behind in (filled.cursor([]), filled.cursor(rows[:4])):
        for refused in refusals:
            with pytest.raises(CursorBehind) as caught:
                refused(behind)
            assert (caught.value.code, Cursor.parse(caught.value.first_cursor)) == (ErrorCode.FEED_PURGED, left)
    assert sorted(filled.read(plan.parts(left, plan.last_cursor()))) == rows[5:]


def test_the_schema_is_that_of_the_table(feed: Feed) -> None:
    fields = json.loads(FeedPlan(feed.uri).schema().json())["fields"]
    assert [field["name"] for field in fields] == [
        *("ulid", "ulid_text", "feed", "shard", "operation", "version", "net", "row")
    ]
    assert [field["type"] for field in fields[:4]] == ["binary", "string", "string", "integer"]
