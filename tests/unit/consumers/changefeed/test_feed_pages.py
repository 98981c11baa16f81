"""Pages of jobs' feeds put together are every change once and in order, whatever sizes changes have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp import changefeed
from iscp.changefeed.model.ulid import Cursor, parse_ulid
from iscp.consumers.changefeed.feed_pages import CHANGE_BYTES_MAX, CHANGES_BYTES_MAX, OPEN_FEEDS_MAX, JobFeedPages
from iscp.model.api.api_requests import FeedChange
from iscp.model.values.errors import CursorBehind, ErrorCode, InvalidRequest, PermanentError, TableNotFound
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.job_feeds import append, create, feed_row

ROOT = Path(__file__).parents[4]


@pytest.fixture
def pages() -> JobFeedPages:
    return JobFeedPages(SystemClock(), EnvironmentFailpoints({}))


def all_of(pages: JobFeedPages, uri: Path, cursor: str = "", limit: int = 100) -> list[FeedChange]:
    found: list[FeedChange] = []
    while (page := pages.page(feed_row(uri), cursor, limit)).changes:
        found += page.changes
        cursor = page.cursor
    return found


def test_a_change_has_what_the_feed_has(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed") as feed:
        append(feed, 1)
        row = feed.read().rows.to_pylist()[0]
        page = pages.page(feed_row(tmp_path / "feed"), "", 10)
        assert page.changes == (FeedChange(row["ulid_text"], 1, "insert", {"id": 1, "name": "n1"}, {"id": 1}),)
        assert page.cursor == feed.read().cursor.text


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_each_change_once_also_of_one_that_is_followed(
    tmp_path: Path, pages: JobFeedPages, limit: int
) -> None:
    with create(tmp_path / "feed", shards=3) as feed:
        append(feed, *range(7))
        before = all_of(pages, tmp_path / "feed", limit=limit)
        append(feed, *range(7, 10))
        after = all_of(pages, tmp_path / "feed", feed.read(limit=7).cursor.text, limit)
    assert [each.row["id"] for each in (*before, *after)] == list(range(10))


def test_a_page_ends_before_it_is_too_large_and_the_next_goes_on_there(tmp_path: Path, pages: JobFeedPages) -> None:
    large = "x" * (CHANGES_BYTES_MAX * 2 // 5)
    with create(tmp_path / "feed") as feed:
        for number in range(6):
            feed.append(number % 2, [{"id": number, "name": large}])
        lengths, cursor, ids = [], "", list[int]()
        while (page := pages.page(feed_row(tmp_path / "feed"), cursor, 100)).changes:
            lengths.append(len(page.changes))
            ids += [change.row["id"] for change in page.changes]
            cursor = page.cursor
        assert (lengths, ids) == ([2, 2, 2], list(range(6)))
        assert Cursor.parse(cursor) == feed.last_cursor()


def test_one_change_may_be_larger_than_a_page_and_not_without_bound(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed", shards=1) as feed:
        feed.append(0, [{"id": 1, "name": "x" * 2 * CHANGES_BYTES_MAX}])
        feed.append(0, [{"id": 2, "name": "x" * CHANGE_BYTES_MAX}])
        page = pages.page(feed_row(tmp_path / "feed"), "", 100)
        assert [change.row["id"] for change in page.changes] == [1]
        with pytest.raises(PermanentError, match="iscp feed tail URI") as refused:
            pages.page(feed_row(tmp_path / "feed"), page.cursor, 100)
        assert refused.value.code is ErrorCode.TABLE_UNREADABLE


def test_what_was_purged_is_named_and_a_reader_begins_again_without_a_cursor(
    tmp_path: Path, pages: JobFeedPages
) -> None:
    with create(tmp_path / "feed", shards=1) as feed:
        append(feed, 1, 2)
        first = pages.page(feed_row(tmp_path / "feed"), "", 1)
        feed.purge(older_than_s=0)
        append(feed, 3)
        with pytest.raises(CursorBehind):
            pages.page(feed_row(tmp_path / "feed"), first.cursor, 10)
        assert [each.row["id"] for each in all_of(pages, tmp_path / "feed")] == [3]


def test_a_cursor_of_garbage_costs_no_reader_and_says_what_is_wrong(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed") as feed:
        append(feed, 1)
        ulid = feed.read().rows["ulid_text"][0].as_py()
        texts = [
            ("nonsense", "is no cursor"),
            ("[" * 50_000, "is no cursor"),
            (Cursor("another").text, "is one of feed another"),
            (Cursor(feed.feed_id, {7: ulid}).text, "has shard 7"),
            (json.dumps({"feed": feed.feed_id, "shards": {"-1": ulid}}), "has shard -1"),
            (json.dumps({"feed": feed.feed_id, "shards": {"0": "../../etc"}}), "ulid"),
        ]
        for text, said in texts:
            with pytest.raises(InvalidRequest, match=said) as refused:
                pages.page(feed_row(tmp_path / "feed"), text, 10)
            assert refused.value.field.startswith("cursor")
        assert len(all_of(pages, tmp_path / "feed")) == 1


def test_a_feed_that_is_made_again_is_read_as_the_new_one(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed") as feed:
        append(feed, 1, 2, 3)
        old = pages.page(feed_row(tmp_path / "feed"), "", 10)
    shutil.rmtree(tmp_path / "feed")
    with pytest.raises(TableNotFound):
        pages.page(feed_row(tmp_path / "feed", "none-has-read-it"), "", 10)
    with create(tmp_path / "feed") as feed:
        append(feed, 9)
        assert [each.row["id"] for each in all_of(pages, tmp_path / "feed")] == [9]
        with pytest.raises(InvalidRequest, match="is one of feed"):
            pages.page(feed_row(tmp_path / "feed"), old.cursor, 10)


def test_more_feeds_than_are_open_at_a_time_go_on_all_the_same(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed") as feed:
        append(feed, 1, 2)
        jobs = [feed_row(tmp_path / "feed", f"id-{number}") for number in range(OPEN_FEEDS_MAX + 3)]
        cursors = [pages.page(each, "", 1).cursor for each in jobs]
        ends = [pages.page(each, cursor, 10) for each, cursor in zip(jobs, cursors, strict=True)]
    assert {end.changes[0].row["id"] for end in ends} == {2}


def test_a_value_that_python_does_not_know_is_refused_by_name(tmp_path: Path, pages: JobFeedPages) -> None:
    changefeed.create(tmp_path / "feed", pa.schema([("at", pa.timestamp("us", "UTC"))]))
    with changefeed.open(tmp_path / "feed") as feed:
        feed.append(0, pa.table({"at": pa.array([2**62], pa.timestamp("us", "UTC"))}))
    with pytest.raises(PermanentError, match="a value that cannot be shown") as refused:
        pages.page(feed_row(tmp_path / "feed"), "", 10)
    assert refused.value.code is ErrorCode.TABLE_UNREADABLE


def test_the_order_is_that_of_ulids_over_all_shards(tmp_path: Path, pages: JobFeedPages) -> None:
    with create(tmp_path / "feed", shards=4) as feed:
        append(feed, *range(12))
    ulids = [each.ulid for each in all_of(pages, tmp_path / "feed", limit=100)]
    assert ulids == sorted(ulids, key=parse_ulid)


PROGRAM = """
import json, resource, sys
from iscp.system.threads import SystemClock
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.consumers.changefeed.feed_pages import JobFeedPages
from iscp.model.values.errors import IscpError
from tests.fakes.job_feeds import feed_row
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
pages, before = JobFeedPages(SystemClock(), EnvironmentFailpoints({})), peak()
try:
    page = pages.page(feed_row(sys.argv[1]), "", 1_000)
    said = [len(page.changes), len(repr(page))]
except IscpError as error:
    said = str(error)
print(json.dumps([said, peak() - before]))
"""


@pytest.mark.parametrize("swollen", ["name", "ulid_text", "link"])
def test_a_small_file_that_swells_takes_little_memory(tmp_path: Path, swollen: str) -> None:
    """300 rows with one text of 4 MiB, by dictionary; or the file of another feed, through a link."""
    uri, rows, text = tmp_path / "feed", 300, "x" * 4 * 1024**2
    with create(uri, shards=1) as feed:
        feed.append(0, [{"id": number, "name": ""} for number in range(rows)])
    (file,) = uri.rglob("feed-*.parquet")
    table = pq.read_table(file, partitioning=None)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    row = pa.StructArray.from_arrays([table["row"].combine_chunks().field("id"), texts], ["id", "name"])
    changed = row if swollen == "name" else texts
    place = table.schema.get_field_index("row" if swollen == "name" else "ulid_text")
    table = table.set_column(place, table.schema.names[place], changed)
    pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=8 * 1024**2)
    assert file.stat().st_size < 20_000
    if swollen == "link":
        file.rename(tmp_path / "secret.parquet")
        file.symlink_to(tmp_path / "secret.parquet")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(uri)], check=True, capture_output=True, cwd=ROOT)
    said, mib = json.loads(done.stdout)
    assert mib < 250, "the rows have 1,200 MiB"
    if swollen == "name":
        assert said[0] == 1
        assert said[1] < 5 * 1024**2
    else:
        assert ("is a link" if swollen == "link" else "ulid") in said
