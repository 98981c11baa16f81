"""Pages of a feed: put together they are every row behind a cursor, once and in order, however files are rewritten."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.page_reader import READ_ROWS_MAX, PageReader
from iscp.delta.log.table_opening import open_delta
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from tests.fakes.feed_program import ROWS, SCHEMA
from tests.integration.changefeed.table.feed_tables import append, opened

SHARDS = 3
APPENDS = 9


def reader_of(uri: str, bytes_max: int | None = None) -> PageReader:
    return PageReader(uri, bytes_max)


def shards_of(page_rows: list[dict[str, object]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in page_rows:
        found.setdefault(int(str(row["shard"])), []).append(str(row["ulid_text"]))
    return found


def group_bytes(uri: str) -> int:
    """How many bytes a file of one append has, decoded; the largest there is."""
    files = map(pq.ParquetFile, Path(uri).rglob("feed-*.parquet"))
    return max(int(file.metadata.row_group(0).total_byte_size) for file in files)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_feed_table(str(tmp_path / "feed"), SCHEMA, SHARDS)
    return str(tmp_path / "feed")


@pytest.mark.parametrize("seed", range(2))
def test_a_reader_that_follows_has_every_row_once_and_in_order(uri: str, seed: int) -> None:
    draw = random.Random(seed)
    feed, reader, cursor, read = opened(uri), reader_of(uri), dict[int, str](), list[dict[str, object]]()
    written: dict[int, int] = {}
    for number in range(APPENDS):
        shard = draw.randrange(SHARDS)
        append(feed, shard, "a", number, now_ms=1_000 + number)
        written[shard] = written.get(shard, 0) + 1
        if draw.random() < 0.3:
            DeltaTable(uri).optimize.compact()
        if draw.random() < 0.5:
            limit = draw.choice([1, 7, ROWS, 3 * ROWS])
            page = reader.page(open_delta(uri), cursor, limit)
            assert len(page.rows) <= limit
            read, cursor = [*read, *page.rows.to_pylist()], dict(page.cursor)
    while len((page := reader.page(open_delta(uri), cursor, 13)).rows):
        assert page.rows["ulid_text"].to_pylist() == sorted(page.rows["ulid_text"].to_pylist())
        read, cursor = [*read, *page.rows.to_pylist()], dict(page.cursor)
    ulids = shards_of(read)
    assert {shard: len(each) for shard, each in ulids.items()} == {s: n * ROWS for s, n in written.items()}
    assert all(each == sorted({*each}) for each in ulids.values())
    assert cursor == {shard: each[-1] for shard, each in ulids.items()}
    assert ulids == shards_of(reader_of(uri).page(open_delta(uri), {}, READ_ROWS_MAX).rows.to_pylist())


def test_a_reader_that_goes_back_reads_the_same_rows_again(uri: str) -> None:
    feed = opened(uri)
    for number in range(3):
        append(feed, 0, "a", number)
    for rewritten in (False, True):
        if rewritten:
            DeltaTable(uri).optimize.compact()
        reader = reader_of(uri)
        first = reader.page(open_delta(uri), {}, 30)
        reader.page(open_delta(uri), first.cursor, 30)
        assert reader.page(open_delta(uri), {}, 30) == first


def test_pages_that_read_few_bytes_have_every_row_once(uri: str) -> None:
    feed = opened(uri)
    for number in range(6):
        append(feed, number % SHARDS, "a", number, now_ms=1_000 + number)
    whole = reader_of(uri).page(open_delta(uri), {}, READ_ROWS_MAX).rows.to_pylist()
    # All rows of an append have more than this: a page ends within it, and the next one goes on there.
    reader, cursor, read = reader_of(uri, group_bytes(uri) + 1), dict[int, str](), list[dict[str, object]]()
    lengths = []
    while len((page := reader.page(open_delta(uri), cursor, READ_ROWS_MAX)).rows):
        lengths.append(len(page.rows))
        read, cursor = [*read, *page.rows.to_pylist()], dict(page.cursor)
    assert max(lengths) < ROWS
    assert shards_of(read) == shards_of(whole)


def test_what_is_only_read_at_once_and_is_too_large_is_refused_by_name(uri: str) -> None:
    feed = opened(uri)
    append(feed, 0, "a", 0)
    append(feed, 0, "a", 1)
    bound = group_bytes(uri)
    with pytest.raises(PermanentError, match="iscp feed tail") as refused:
        reader_of(uri, 10).page(open_delta(uri), {}, 1)
    assert refused.value.code is ErrorCode.TABLE_UNREADABLE
    assert len(reader_of(uri, bound).page(open_delta(uri), {}, 1).rows) == 1
    DeltaTable(uri).optimize.compact()
    with pytest.raises(PermanentError, match="only read at once"):
        reader_of(uri, bound).page(open_delta(uri), {}, 1)


def test_a_reader_says_what_it_holds_for_the_next_page(uri: str) -> None:
    append(opened(uri), 0, "a")
    reader = reader_of(uri)
    assert reader.held_bytes == 0
    reader.page(open_delta(uri), {}, 1)
    assert reader.held_bytes >= ROWS * 16


@pytest.mark.parametrize("limit", [0, -1, READ_ROWS_MAX + 1, True, "3", None])
def test_a_page_of_no_size_is_refused(uri: str, limit: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        reader_of(uri).page(open_delta(uri), {}, limit)  # type: ignore[arg-type]
    assert refused.value.field == "limit"
