"""What a purge deletes, by age and behind the stored cursors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp import changefeed
from iscp.changefeed import Changefeed, Cursor, CursorBehind, InvalidRequest
from iscp.changefeed.client.changefeed import compose
from iscp.changefeed.model.lock_queue import QueueLimits
from iscp.changefeed.table.feed_table import SHARDS_PER_TEXT, FeedTable, purge_files
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.changefeed_program import SCHEMA
from tests.fakes.clock import FakeClock

from .conftest import ON_S3_IN_FULL, ON_S3_TOO, row, told

Opened = Callable[..., Changefeed]
Eventually = Callable[..., float]


def test_by_age_whole_files_go_of_which_all_is_old(uri: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with compose(uri, clock, EnvironmentFailpoints({}), None, QueueLimits()) as feed:
        for number in range(4):
            feed.append(number % 2, [row(number)])
            clock.advance(100)
        version = DeltaTable(uri).version()
        would = feed.purge(older_than_s=250, dry_run=True)
        assert (would.files, would.rows, dict(feed.first_cursor())) == (2, 2, {})
        assert DeltaTable(uri).version() == version
        gone = feed.purge(older_than_s=250)
        assert gone == would
        assert gone.first_cursor == feed.first_cursor()
        assert told(feed) == [2, 3]
        assert feed.purge(older_than_s=250).files == 0
        assert DeltaTable(uri).version() == version + 1, "where there is nothing to do nothing is committed"
        assert feed.purge(older_than_s=0).rows == 2
        clock.advance(-0.0)
        feed.append(0, [row(9)])
        assert told(feed) == [9]


@ON_S3_TOO
def test_ulids_go_on_after_all_rows_are_gone(opened: Opened) -> None:
    feed = opened()
    before = feed.append(0, [row(1)]).last
    feed.purge(older_than_s=0)
    assert told(feed) == []
    assert feed.last_cursor()[0] == before
    assert feed.append(0, [row(2)]).first > before


@ON_S3_TOO
def test_behind_cursors_nothing_goes_that_one_of_them_has_not_read(opened: Opened, etcd: str) -> None:
    feed = opened(etcd)
    for number in range(4):
        feed.append(number % 2, [row(number)])
    assert feed.purge(behind_cursors=True).files == 0, "nobody has stored one"
    everything = feed.last_cursor()
    fast = feed.cursors.store("fast", everything, None)
    slow = feed.cursors.store("slow", Cursor(feed.feed_id), None)
    assert feed.purge(behind_cursors=True).files == 0, "it has begun no shard"
    half = feed.read(limit=3).cursor
    slow = feed.cursors.store("slow", half, slow)
    assert feed.purge(behind_cursors=True).rows == 3
    assert told(feed) == [3]
    feed.read(slow.cursor)
    assert feed.purge(older_than_s=3600, behind_cursors=True).rows == 0
    feed.cursors.delete("slow")
    assert feed.purge(older_than_s=0, behind_cursors=True).rows == 1
    assert feed.read(fast.cursor).rows.num_rows == 0


def test_a_purge_has_to_know_by_what(opened: Opened, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    with pytest.raises(InvalidRequest):
        feed.purge()
    with pytest.raises(InvalidRequest):
        feed.purge(older_than_s=-1)
    assert DeltaTable(uri).version() == 1


@ON_S3_IN_FULL
def test_appends_and_purges_at_once_lose_nothing_that_is_not_purged(opened: Opened, etcd: str) -> None:
    feed, purging = opened(etcd), opened(etcd)
    stop, seen = threading.Event(), list[int]()
    stored = feed.cursors.store("reader", feed.last_cursor(), None)

    def purge() -> int:
        rows = 0
        while not stop.is_set():
            rows += purging.purge(behind_cursors=True).rows
        return rows

    with ThreadPoolExecutor(2) as pool:
        purges = [pool.submit(purge), pool.submit(purge)]
        for number in range(60):
            feed.append(number % 2, [row(number)])
            if number % 10 == 9:
                page = feed.read(stored.cursor)
                seen += [each["number"] for each in page.rows["row"].to_pylist()]
                stored = feed.cursors.store("reader", page.cursor, stored)
        stop.set()
        rows = sum(each.result(60) for each in purges)
    assert seen == list(range(60))
    assert rows + purging.purge(behind_cursors=True).rows == 60


def test_a_file_that_holds_newer_rows_too_stays(opened: Opened, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    first = feed.last_cursor()
    feed.append(0, [row(2)])
    DeltaTable(uri).optimize.compact()
    table = FeedTable(uri, SystemClock(), EnvironmentFailpoints({}))
    assert purge_files(table, {0: first[0]}, 0).files == 0
    assert told(feed) == [1, 2]


def test_what_was_purged_is_known_of_a_feed_with_many_shards(tmp_path: Path) -> None:
    shards = 2 * SHARDS_PER_TEXT + 1
    changefeed.create(tmp_path / "wide", SCHEMA, shards=shards)
    with changefeed.open(tmp_path / "wide") as feed:
        used = (0, SHARDS_PER_TEXT - 1, SHARDS_PER_TEXT, shards - 1)
        for shard in used:
            feed.append(shard, [row(shard)])
        everything = feed.last_cursor()
        assert feed.purge(older_than_s=0).first_cursor == everything
        with pytest.raises(CursorBehind):
            feed.read(Cursor(feed.feed_id, {shard: everything[shard] for shard in used[:-1]}))
        assert feed.read(everything).rows.num_rows == 0


def test_a_purge_is_a_commit_that_any_reader_of_delta_understands(opened: Opened, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1)])
    feed.purge(older_than_s=0)
    feed.append(0, [row(2)])
    rows = pa.table(DeltaTable(uri).to_pyarrow_table())
    assert [each["number"] for each in rows["row"].to_pylist()] == [2]
    last = json.loads(Path(uri, "_delta_log", f"{2:020d}.json").read_text().splitlines()[-1])
    assert last["remove"]["dataChange"]
