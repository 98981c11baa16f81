"""Readers of a changefeed: pages behind a cursor, as they come, and the error they get when rows are gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from iscp import changefeed
from iscp.changefeed import Changefeed, Cursor, CursorBehind, InvalidRequest
from iscp.delta.source.change_source import DeltaProbe
from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import ErrorCode, StorageError
from tests.fakes.changefeed_program import rows_of

from .conftest import ON_S3_IN_FULL, ON_S3_TOO, row

Opened = Callable[..., Changefeed]
Eventually = Callable[..., float]

NUMBERS = pa.schema([("number", pa.int64()), ("text", pa.string())])


def told(rows: pa.Table) -> list[int]:
    return [each["number"] for each in rows["row"].to_pylist()]


def many(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table({"number": numbers, "text": [f"text {n}" for n in numbers]})


@ON_S3_TOO
def test_pages_go_on_from_a_cursor_and_its_text(opened: Opened) -> None:
    feed = opened()
    for number in range(6):
        feed.append(number % 2, [row(number)])
    seen, cursor = list[int](), None
    while len((page := feed.read(cursor, limit=2)).rows):
        assert len(page.rows) <= 2
        seen += told(page.rows)
        cursor = page.cursor.text
    assert sorted(seen) == list(range(6))
    assert Cursor.parse(cursor or "") == feed.last_cursor() == page.cursor
    feed.append(1, [row(6)])
    assert told(feed.read(cursor).rows) == [6]
    assert told(opened().read(cursor).rows) == [6]


def test_an_empty_feed_has_cursors_too(opened: Opened) -> None:
    feed = opened()
    page = feed.read()
    assert (len(page.rows), dict(page.cursor), dict(feed.first_cursor()), dict(feed.last_cursor())) == (0, {}, {}, {})
    assert page.rows.column_names == ["ulid", "ulid_text", "feed", "shard", "operation", "version", "net", "row"]
    feed.append(0, [row(1)])
    assert told(feed.read(page.cursor).rows) == [1]


def test_from_the_newest_only_what_comes_is_read(opened: Opened) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    cursor = feed.last_cursor()
    feed.append(0, [row(2)])
    feed.append(1, [row(3)])
    assert told(feed.read(cursor).rows) == [2, 3]


@pytest.mark.parametrize("limit", [0, -1, 1_000_001])
def test_a_page_has_a_limit(opened: Opened, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="a page has"):
        opened().read(limit=limit)


def test_bad_cursors_are_refused(opened: Opened, tmp_path: Path, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    good = feed.last_cursor()
    changefeed.create(tmp_path / "other", NUMBERS)
    with changefeed.open(tmp_path / "other") as other:
        foreign = other.last_cursor()
    bad: list[Any] = [
        foreign,
        Cursor(feed.feed_id, {2: good[0]}),
        Cursor(feed.feed_id, {0: "nonsense"}),
        good.text.replace(good[0], good[0][:-1]),
        "",
        "@name",
        {0: good[0]},
        5,
    ]
    for cursor in bad:
        for use in (feed.read, feed.follow):
            with pytest.raises(InvalidRequest) as refused:
                use(cursor)
            assert refused.value.field == "cursor"
            assert refused.value.remedy
    assert DeltaTable(uri).version() == 1


# --- following ---------------------------------------------------------------------------------------------------


@ON_S3_IN_FULL
def test_a_follower_gets_each_change_as_it_comes_and_ends_when_it_is_stopped(
    opened: Opened, eventually: Eventually
) -> None:
    feed, writer, stop, seen = opened(), opened(), threading.Event(), list[int]()
    writer.append(0, [row(0), row(1), row(2)])

    def follow() -> None:
        for page in feed.follow(limit=2, poll_s=0.01, stop=stop):
            assert 0 < len(page.rows) <= 2
            seen.extend(told(page.rows))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    eventually(lambda: seen == [0, 1, 2])
    for number in range(3, 8):
        writer.append(number % 2, [row(number)])
        eventually(lambda number=number: seen[-1] == number)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert seen == list(range(8))


def test_a_follower_ends_with_its_feed(opened: Opened) -> None:
    feed = opened()
    thread = threading.Thread(target=lambda: list(feed.follow(poll_s=0.01)), daemon=True)
    thread.start()
    feed.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_quiet_poll_costs_next_to_nothing(opened: Opened) -> None:
    feed = opened()
    for number in range(20):
        feed.append(0, [row(number)])
    cursor = feed.read().cursor
    stop = threading.Event()
    pages = feed.follow(cursor, poll_s=0.001, stop=stop)
    threading.Timer(1.0, stop.set).start()
    before, began_s = thread_time_s(), time.monotonic()
    assert list(pages) == []
    assert time.monotonic() - began_s > 0.9
    assert thread_time_s() - before < 0.5, "a thousand looks"


def thread_time_s() -> float:
    return time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)


@pytest.mark.parametrize("poll_s", [0.0, -1.0])
def test_a_poll_takes_time(opened: Opened, poll_s: float) -> None:
    with pytest.raises(InvalidRequest, match="more than 0"):
        opened().follow(poll_s=poll_s)


# --- large files -------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Changefeed:
    """200,000 rows of one append."""
    changefeed.create(tmp_path / "large", NUMBERS)
    feed = changefeed.open(tmp_path / "large")
    feed.append(0, many(0, 200_000))
    return feed


def test_a_page_takes_only_the_row_groups_that_it_needs(large: Changefeed) -> None:
    """All others are made unreadable."""
    (path,) = Path(large.uri).rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups > 3
    second, third = (span(metadata.row_group(number)) for number in (1, 2))
    content = bytearray(path.read_bytes())
    content[4 : second[0]] = os.urandom(second[0] - 4)
    content[third[0] : span(metadata.row_group(metadata.num_row_groups - 1))[1]] = b"\0" * (
        span(metadata.row_group(metadata.num_row_groups - 1))[1] - third[0]
    )
    path.write_bytes(content)
    rows = metadata.row_group(0).num_rows
    cursor = Cursor(large.feed_id, {0: metadata.row_group(0).column(1).statistics.max})
    seen = list[int]()
    for _ in range(3):
        page = large.read(cursor, limit=1_000)
        seen += told(page.rows)
        cursor = page.cursor
    assert seen == list(range(rows, rows + 3_000))


def span(group: pq.RowGroupMetaData) -> tuple[int, int]:
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return min(starts), max(start + column.total_compressed_size for start, column in zip(starts, columns, strict=True))


def test_pages_over_row_groups_files_and_appends_miss_nothing(large: Changefeed) -> None:
    large.append(0, many(200_000, 5))
    seen, cursor = list[int](), None
    while len((page := large.read(cursor, limit=30_001)).rows):
        seen += told(page.rows)
        cursor = page.cursor
    assert seen == list(range(200_005))


def test_a_page_from_the_midst_begins_there(large: Changefeed) -> None:
    ulids = large.read(limit=200_000).rows["ulid_text"]
    for number in (0, 1, 32_766, 32_767, 32_768, 150_000, 199_998):
        page = large.read(Cursor(large.feed_id, {0: ulids[number].as_py()}), limit=3)
        assert told(page.rows) == list(range(number + 1, min(number + 4, 200_000)))


@ON_S3_IN_FULL
def test_what_a_compaction_has_mixed_is_read_in_order(opened: Opened, uri: str) -> None:
    feed = opened()
    for number in range(6):
        feed.append(0, [row(number * 2), row(number * 2 + 1)])
    cursor = feed.read(limit=3).cursor
    DeltaTable(uri).optimize.compact()
    assert told(feed.read(cursor).rows) == list(range(3, 12))
    assert told(opened().read(limit=5).rows) == list(range(5))
    feed.append(0, [row(12)])
    assert told(opened().read(cursor).rows) == list(range(3, 13))


def test_a_reader_that_slept_while_the_log_was_cleaned_goes_on(opened: Opened, uri: str) -> None:
    feed, writer = opened(), opened()
    writer.append(0, [row(0)])
    cursor = feed.read().cursor
    for number in range(1, 60):
        writer.append(0, [row(number)])
    assert list(Path(uri, "_delta_log").glob("*50.checkpoint.parquet"))
    for version in range(50):
        Path(uri, "_delta_log", f"{version:020d}.json").unlink()
    assert told(feed.read(cursor).rows) == list(range(1, 60))


# --- what is gone ------------------------------------------------------------------------------------------------


@ON_S3_IN_FULL
def test_a_reader_behind_a_purge_gets_the_first_cursor_that_is_left(opened: Opened) -> None:
    feed = opened()
    feed.append(0, [row(0)])
    behind = feed.last_cursor()
    feed.append(0, [row(1)])
    feed.append(1, [row(2)])
    there = feed.last_cursor()
    assert feed.purge(older_than_s=0).rows == 3
    feed.append(1, [row(3)])
    assert told(feed.read(there).rows) == [3], "who has read all that is gone has missed nothing"
    for reader in (feed, opened()):
        for cursor in (behind, Cursor(feed.feed_id)):
            with pytest.raises(CursorBehind, match=there[0]):
                next(reader.follow(cursor))
            with pytest.raises(CursorBehind, match=there[0]) as refused:
                reader.read(cursor)
            assert refused.value.code is ErrorCode.FEED_PURGED
            assert Cursor.parse(refused.value.first_cursor) == feed.first_cursor() == there
        assert told(reader.read(refused.value.first_cursor).rows) == [3]
        assert told(reader.read().rows) == [3], "without a cursor it begins with what is left"


def test_pages_from_the_first_that_is_left_have_cursors_that_are_not_behind(opened: Opened) -> None:
    feed = opened()
    for shard in (0, 1):
        feed.append(shard, [row(shard)])
    feed.purge(older_than_s=0)
    feed.append(0, [row(2), row(3)])
    first = feed.read(limit=1)
    assert told(first.rows) == [2]
    assert told(feed.read(first.cursor).rows) == [3]


@ON_S3_IN_FULL
def test_a_follower_whose_files_are_vacuumed_away_gets_an_error(opened: Opened, uri: str) -> None:
    feed = opened()
    for number in range(3):
        feed.append(0, [row(number)])
    pages = feed.follow(limit=1)
    assert told(next(pages).rows) == [0]
    opened().purge(older_than_s=0)
    DeltaTable(uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(CursorBehind):
        next(pages)


@ON_S3_IN_FULL
def test_files_that_a_compaction_took_away_are_no_loss(opened: Opened, uri: str) -> None:
    """A reader that listed the files before the compaction, and reads them after the vacuum."""
    feed = opened()
    for number in range(4):
        feed.append(0, rows_of("a", number))
    with feed._readings.lend() as reading:
        page = reading.page(None, 10)
        DeltaTable(uri).optimize.compact()
        DeltaTable(uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        reading._probe = Blind()
        rest = reading.page(page.cursor, 100)
    assert len(page.rows) + len(rest.rows) == 40


class Blind(DeltaProbe):
    """Sees nothing new at its first read."""

    looks = 0

    def probe(self, uri: str, seen: ProbeState) -> ProbeState:
        self.looks += 1
        return seen if self.looks == 1 else super().probe(uri, seen)


def test_files_that_are_gone_without_a_word_are_an_error(opened: Opened, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    for path in Path(uri).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(StorageError):
        feed.read()
