"""The streaming source, called as Spark's MicroBatchExecution calls it, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

from iscp.changefeed.spark.stream import ChangefeedSource, ChangefeedStream, FeedPlan, Offset
from iscp.changefeed.table.feed_table import purge_files
from iscp.model.values.errors import CursorBehind, InvalidRequest
from tests.unit.changefeed.spark.test_stream_plan import SCHEMA, Feed


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    feed = Feed(str(tmp_path / "feed"))
    for shard, count in ((0, 5), (1, 3), (0, 2)):
        feed.append(shard, count)
    return feed


class Query:
    """A query with its checkpoint, for a trigger by time or, with `available_now`, for all that is there."""

    def __init__(self, feed: Feed, **options: Any) -> None:
        self.feed = feed
        self.options = {"path": feed.uri, **{name: str(value) for name, value in options.items()}}
        self.logged: list[Offset] = []
        self.committed = 0
        self.batches: list[list[tuple[str, int]]] = []
        self.stream: ChangefeedStream | None = None

    def start(self, *, available_now: bool = False) -> Offset | None:
        """What there is for Trigger.AvailableNow."""
        source = ChangefeedSource(self.options)
        stream = source.streamReader(source.schema())
        assert isinstance(stream, ChangefeedStream)
        self.stream = stream
        fetched = stream.latestOffset() if available_now else None
        if self.logged:
            assert stream.partitions(self.logged[-1], self.logged[-1]) == []
        return fetched

    def batch(self, fetched: Offset | None = None, *, killed: bool = False) -> bool:
        """Whether there was one; `killed`: after it was planned, before it was committed."""
        assert self.stream is not None
        if self.committed == len(self.logged):
            end = self._next(fetched)
            if self.logged and self.logged[-1] == end:
                return False
            self.logged.append(end)
        number = len(self.logged) - 1
        start = self.logged[number - 1] if number else self.stream.initialOffset()
        parts = self.stream.partitions(start, self.logged[number])
        reader = pickle.loads(pickle.dumps(self.stream))
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        if not killed:
            self.batches.append(sorted((row["ulid_text"], row["shard"]) for row in rows))
            self.committed += 1
        return True

    def _next(self, fetched: Offset | None) -> Offset:
        assert self.stream is not None
        if fetched is None:
            return self.stream.latestOffset()
        if not self.logged:
            self.stream.initialOffset()
        self.stream.latestOffset()  # Spark reports it
        return fetched

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [row for batch in self.batches for row in batch]


def test_each_row_comes_once_through_restarts_at_every_step(feed: Feed) -> None:
    query = Query(feed, maxRowsPerTrigger=3)
    for shard in (1, 2, 0):
        query.start()
        query.batch(killed=True)
        query.start()
        query.batch()
        feed.append(shard, 4)
        query.batch()
    query.start()
    while query.batch():
        pass
    assert sorted(query.rows) == feed.rows
    assert max(map(len, query.batches)) == 3


@pytest.mark.parametrize("rows_max", [{}, {"maxRowsPerTrigger": 100}])
def test_available_now_takes_all_in_one_batch_again_and_again(feed: Feed, rows_max: dict[str, int]) -> None:
    query = Query(feed, **rows_max)
    for _ in range(3):
        fetched = query.start(available_now=True)
        feed.append(0, 2)  # comes too late
        while query.batch(fetched):
            pass
    assert sorted(query.rows) == feed.rows[:-2]
    assert len(query.batches) == 3


def test_available_now_with_a_limit_that_cuts_is_refused_before_a_batch_is_logged(feed: Feed) -> None:
    query = Query(feed, maxRowsPerTrigger=3)
    fetched = query.start(available_now=True)
    with pytest.raises(InvalidRequest, match="AvailableNow"):
        query.batch(fetched)
    assert query.logged == []
    query.start()
    assert query.batch()
    with pytest.raises(InvalidRequest, match="AvailableNow"):
        query.start(available_now=True)
    assert len(query.logged) == 1


def test_the_latest_is_where_the_first_batch_was_begun_even_if_it_was_killed(feed: Feed) -> None:
    for trigger in (False, True):
        query = Query(feed, startingCursor="latest")
        first = len(feed.rows)
        query.batch(query.start(available_now=trigger), killed=True)
        feed.append(0, 3)
        for _ in range(2):
            fetched = query.start(available_now=trigger)
            while query.batch(fetched):
                pass
        assert query.rows == feed.rows[first:]


def test_a_cursor_to_start_from_may_be_given(feed: Feed) -> None:
    query = Query(feed, startingCursor=feed.cursor(feed.rows[:6]).text)
    query.start()
    query.batch()
    assert query.rows == feed.rows[6:]


def test_all_that_is_left_is_the_beginning_and_who_falls_behind_gets_an_error(feed: Feed) -> None:
    rows = list(feed.rows)
    purge_files(feed.table, {0: rows[4][0]}, 1)
    query = Query(feed)
    query.start()
    query.batch()
    assert query.rows == rows[5:]
    feed.append(0, 1)
    feed.append(0, 1)
    purge_files(feed.table, {0: feed.rows[-2][0]}, 1)
    with pytest.raises(CursorBehind, match=feed.rows[-2][0]):
        query.batch()


@pytest.mark.parametrize("rows_max", ["0", "-1", "many", "1.5", ""])
def test_a_limit_that_is_none_is_refused(feed: Feed, rows_max: str) -> None:
    with pytest.raises(InvalidRequest, match="maxRowsPerTrigger"):
        Query(feed, maxRowsPerTrigger=rows_max).start()


@pytest.mark.parametrize(
    "cursor", ["first", "{}", '{"feed": "other", "shards": {}}', '{"feed": "x", "shards": {"0": "1"}}']
)
def test_a_cursor_that_is_none_or_of_another_feed_is_refused(feed: Feed, cursor: str) -> None:
    query = Query(feed, startingCursor=cursor)
    query.start()
    with pytest.raises(InvalidRequest, match="cursor"):
        query.batch()


def rows_read(reader: DataSourceReader) -> list[dict[str, Any]]:
    batches: Iterator[Any] = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_path_is_needed() -> None:
    with pytest.raises(InvalidRequest, match="path"):
        ChangefeedSource({}).schema()


def test_a_batch_reader_reads_all_that_is_behind_its_cursor(feed: Feed) -> None:
    source = ChangefeedSource({"path": feed.uri, "startingCursor": feed.cursor(feed.rows[:3]).text})
    reader = source.reader(source.schema())
    rows = rows_read(reader)
    assert sorted((row["ulid_text"], row["shard"]) for row in rows) == feed.rows[3:]
    assert {row["feed"] for row in rows} == {feed.table.description.feed_id}
    assert FeedPlan(feed.uri).schema().names == list(rows[0])


def test_columns_that_a_feed_was_given_are_null_before_and_left_out_by_who_began_before(feed: Feed) -> None:
    """As in a job's feed whose source has gained a column."""
    source = ChangefeedSource({"path": feed.uri})
    narrow = source.schema()
    feed.table.widen(pa.schema([*SCHEMA, pa.field("more", pa.string())]))
    feed.append(0, 1)
    wide = ChangefeedSource({"path": feed.uri}).schema()
    found: list[list[dict[str, Any]]] = []
    for schema in (narrow, wide):
        reader = source.reader(schema)
        rows = rows_read(reader)
        assert len(rows) == len(feed.rows)
        found.append([row["row"] for row in sorted(rows, key=lambda row: row["ulid_text"])])
    assert [set(row) for row in (found[0][-1], found[1][0], found[1][-1])] == [{"id"}, {"id", "more"}, {"id", "more"}]
    assert (found[1][0]["more"], found[1][-1]["more"]) == (None, "0")
