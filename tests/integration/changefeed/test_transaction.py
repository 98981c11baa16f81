"""Transactions of a changefeed: what they commit, what they refuse, and who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp import changefeed
from iscp.changefeed import Changefeed, Conflict, InvalidRequest, Transaction
from iscp.changefeed.client.changefeed import INCIDENTS_MAX, Etcd, compose
from iscp.changefeed.model.lock_queue import Incidents, QueueLimits
from iscp.changefeed.table.feed_table import FeedTable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.model.settings.config import EtcdConfig
from iscp.model.values.errors import (
    ConfigurationError,
    FeedIncident,
    StorageError,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.changefeed_program import SCHEMA, rows_of
from tests.fakes.clock import FakeClock

from .conftest import ON_S3_TOO, paths_below, row

Opened = Callable[..., Changefeed]
Eventually = Callable[..., float]

TIMEOUT_S = 1.0
SLACK_S = 1.5


def numbers(feed: Changefeed) -> list[tuple[str, int, int]]:
    """Who, in which transaction, and the number in it, of all that is there, in order."""
    return [tuple(each.values()) for each in feed.read(limit=100_000).rows["row"].to_pylist()]


def version(uri: str) -> int:
    return int(DeltaTable(uri).version())


# --- what a transaction is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [False, True])
@ON_S3_TOO
def test_several_appends_are_one_commit_with_ulids_that_follow_one_another(
    opened: Opened, uri: str, etcd: str, locked: bool
) -> None:
    feed = opened(etcd if locked else None)
    before = version(uri)
    with feed.transaction(1) as transaction:
        one = transaction.append([row(2), row(1)], order_by="number")
        other = transaction.append(pa.Table.from_pylist([row(3)], schema=SCHEMA), operation="delete")
        none = transaction.append([])
        told = [*one, *other]
        assert told == list(transaction.ulids) == sorted(told)
        assert (len(one), len(other), len(none)) == (2, 1, 0)
        assert not feed.read().rows.num_rows, "nobody sees it yet"
        assert not transaction.committed
    assert transaction.committed
    assert version(uri) == before + 1
    rows = feed.read().rows
    assert rows["ulid_text"].to_pylist() == told
    assert [each["number"] for each in rows["row"].to_pylist()] == [1, 2, 3]
    assert rows["operation"].to_pylist() == ["insert", "insert", "delete"]
    assert set(rows["shard"].to_pylist()) == {1}
    assert list(transaction.ulids) == told


@ON_S3_TOO
def test_what_raises_or_is_empty_commits_nothing_and_lets_the_next_one_go(opened: Opened, uri: str, etcd: str) -> None:
    feed = opened(etcd)
    before = paths_below(uri)
    failing = feed.transaction(0)

    def fail() -> None:
        with failing:
            failing.append(rows_of("a", 0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with feed.transaction(0) as empty:
        empty.append([])
    assert not failing.committed
    assert not empty.committed
    assert paths_below(uri) == before
    began_s = time.monotonic()
    with feed.transaction(0) as transaction:
        transaction.append(rows_of("a", 1))
    assert time.monotonic() - began_s < TIMEOUT_S


def test_a_refused_append_leaves_the_others_of_its_transaction(opened: Opened) -> None:
    feed = opened()
    with feed.transaction(0) as transaction:
        transaction.append([row(1)])
        with pytest.raises(InvalidRequest):
            transaction.append([{"who": "a"}])
        transaction.append([row(2)])
    assert [number for *_, number in numbers(feed)] == [1, 2]


def test_all_ulids_of_a_transaction_have_its_time_and_transactions_follow_one_another(uri: str) -> None:
    clock = FakeClock()
    with changefeed_at(uri, clock) as feed:
        for step_s in (0.0, 0.0, -5.0, 5.5):
            clock.step(step_s)
            feed.append(0, [row(1), row(2)])
        texts = feed.read().rows["ulid_text"].to_pylist()
    assert texts == sorted(set(texts))
    assert len({text[:10] for text in texts}) == 2, "a clock that stands or steps back makes no new time"


def changefeed_at(uri: str, clock: FakeClock, failpoints: Any = None, etcd: Any = None) -> Changefeed:
    class Passes:
        def reach(self, name: str) -> None: ...

    return compose(uri, clock, failpoints or Passes(), etcd, QueueLimits(TIMEOUT_S))


def test_where_a_write_failed_in_the_midst_nothing_is_committed(uri: str) -> None:
    class FullDisk:
        def reach(self, name: str) -> None:
            if name == "feed.write":
                raise StorageError("the disk is full")

    before = version(uri)
    big = pa.Table.from_pylist(rows_of("a", 0), schema=SCHEMA)
    with changefeed_at(uri, FakeClock(), FullDisk()) as feed:
        transaction = feed.transaction(0)

        def write() -> None:
            with transaction, suppress(StorageError):  # and goes on as if nothing was
                for _ in range(9):
                    transaction.append(pa.concat_tables([big] * 10_000))

        with pytest.raises(StorageError, match="disk is full"):
            write()
        assert not transaction.committed
        assert not feed.read().rows.num_rows
    assert version(uri) == before
    assert not list(Path(uri).rglob("*.parquet"))


# --- what is refused ---------------------------------------------------------------------------------------------


def test_a_transaction_is_used_within_its_block_and_once(opened: Opened, uri: str) -> None:
    feed = opened()
    transaction = feed.transaction(0)
    with pytest.raises(InvalidRequest, match="has not begun"):
        transaction.append([row(1)])
    with transaction:
        pass
    with pytest.raises(InvalidRequest, match="has ended") as refused:
        transaction.append([row(1)])
    assert refused.value.remedy
    with pytest.raises(InvalidRequest, match="used before"), transaction:
        pass
    assert version(uri) == 0


def test_a_transaction_belongs_to_its_thread(opened: Opened, uri: str) -> None:
    feed = opened()
    with ThreadPoolExecutor(1) as pool, feed.transaction(0) as transaction:
        other = pool.submit(transaction.append, [row(1)])
        assert isinstance(other.exception(), InvalidRequest)
        assert "another thread" in str(other.exception())
    assert version(uri) == 0


def test_a_thread_does_not_wait_for_itself(opened: Opened, etcd: str, uri: str) -> None:
    feed, same = opened(etcd), opened(etcd)
    with feed.transaction(0) as outer:
        for inner in (feed.transaction(0), same.transaction(0)):
            with pytest.raises(InvalidRequest, match="in a transaction of shard 0 already"), inner:
                pass
        with pytest.raises(InvalidRequest, match="already"):
            feed.append(0, [row(1)])
        with feed.transaction(1) as other:
            other.append([row(2)])
        outer.append([row(3)])
    assert version(uri) == 2
    with feed.transaction(0):
        pass


@pytest.mark.parametrize("shard", [2, -1, "0", None, True, 1.0])
def test_a_shard_that_is_not_there_is_refused(opened: Opened, uri: str, shard: Any) -> None:
    feed = opened()
    for use in (lambda: feed.transaction(shard), lambda: feed.append(shard, [row(1)])):
        with pytest.raises(InvalidRequest) as refused:
            use()
        assert (refused.value.field, refused.value.remedy) == ("shard", "Use 0 to 1")
    assert version(uri) == 0


@pytest.mark.parametrize(
    ("rows", "order_by", "operation"),
    [
        ([{"who": "a"}], (), "insert"),
        (pa.table({"who": ["a"], "txn": ["x"], "number": [1]}), (), "insert"),
        ([row(1)], ["nobody"], "insert"),
        ([row(1)], (), pa.array(["a", "b"])),
        ("rows", (), "insert"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_written(
    opened: Opened, uri: str, rows: Any, order_by: Any, operation: Any
) -> None:
    feed = opened()
    before = sorted(Path(uri).rglob("*"))
    with pytest.raises(InvalidRequest) as refused:
        feed.append(0, rows, order_by, operation)
    assert refused.value.field
    with pytest.raises(InvalidRequest), feed.transaction(0) as transaction:
        transaction.append(rows, order_by, operation)
    assert sorted(Path(uri).rglob("*")) == before


def test_a_closed_feed_is_refused(opened: Opened) -> None:
    feed = opened()
    feed.close()
    for use in (
        feed.read,
        feed.first_cursor,
        feed.last_cursor,
        lambda: feed.transaction(0),
        lambda: feed.append(0, []),
    ):
        with pytest.raises(InvalidRequest, match="is closed"):
            use()


def test_feeds_are_made_and_opened_with_care(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InvalidRequest, match="there is a table"):
        changefeed.create(uri, SCHEMA)
    with pytest.raises(InvalidRequest, match="is a list"):
        changefeed.create(tmp_path / "new", [("a", "int")])
    with pytest.raises(InvalidRequest, match="twice"):
        changefeed.create(tmp_path / "new", pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    with pytest.raises(InvalidRequest, match="names nobody"):
        changefeed.create(tmp_path / "new", SCHEMA, key=["nobody"])
    with pytest.raises(InvalidRequest, match="1 to"):
        changefeed.create(tmp_path / "new", SCHEMA, shards=0)
    with pytest.raises(TableNotFound, match=r"^cannot open the feed .*: there is no Delta table\. Check the path$"):
        changefeed.open(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    DeltaTable.create(str(tmp_path / "plain"), pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigurationError, match="is no changefeed"):
        changefeed.open(tmp_path / "plain")
    for etcd in ("nowhere", "", ["a:1", "b"], "a:1,b", []):
        with pytest.raises(InvalidRequest) as refused:
            changefeed.open(uri, etcd)
        assert refused.value.field == "etcd"
    for wait in ({"timeout_s": 0}, {"wait_max_s": -1}, {"timeout_s": float("inf")}):
        with pytest.raises(InvalidRequest):
            changefeed.open(uri, **wait)


def test_a_feed_says_what_it_is(tmp_path: Path) -> None:
    changefeed.create(tmp_path / "feed", SCHEMA, shards=3, key=["who", "txn"])
    with changefeed.open(tmp_path / "feed") as feed:
        assert (feed.shards, feed.key, feed.schema) == (3, ("who", "txn"), SCHEMA)
        assert feed.uri == str(tmp_path / "feed")
        feed.append(2, [row(5)])
        (change,) = feed.read().rows.to_pylist()
    assert (change["key"], change["feed"]) == ({"who": "a", "txn": 0}, feed.feed_id)


def test_a_feed_that_is_given_columns_meanwhile_takes_and_gives_them(opened: Opened, uri: str) -> None:
    feed = opened()
    feed.append(0, [row(1), row(2)])
    cursor = feed.read(limit=1).cursor
    wider = SCHEMA.append(pa.field("more", pa.string()))
    FeedTable(uri, SystemClock(), EnvironmentFailpoints({})).widen(wider)
    feed.append(0, [row(3) | {"more": "x"}])
    with feed.transaction(0) as transaction:
        assert transaction.schema == wider
        transaction.append([row(4) | {"more": "y"}])
    with pytest.raises(InvalidRequest, match="who, txn, number"):
        feed.append(0, [row(5)])
    for _ in range(2):
        rows = feed.read(cursor).rows["row"].to_pylist()
        assert [(each["number"], each["more"]) for each in rows] == [(2, None), (3, "x"), (4, "y")]
        DeltaTable(uri).optimize.compact()


def test_etcd_is_named_in_many_ways(opened: Opened, etcd: str) -> None:
    for way in (
        etcd,
        f"http://{etcd}",
        [etcd],
        f"{etcd},127.0.0.1:1",
        EtcdSettings((etcd,)),
        EtcdConfig(endpoints=(etcd,)),
    ):
        with opened(way).transaction(0) as transaction:
            transaction.append([row(1)])
    assert len(numbers(opened())) == 6


def test_without_etcd_what_needs_it_is_refused(opened: Opened) -> None:
    feed = opened()
    for use in (lambda: feed.cursors, feed.incidents, lambda: feed.purge(behind_cursors=True)):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert refused.value.field == "etcd"
        assert refused.value.remedy


def test_an_etcd_that_does_not_answer_is_reported(opened: Opened, uri: str) -> None:
    feed = opened(EtcdSettings(("127.0.0.1:1",), timeout_s=0.5))
    with pytest.raises(Unavailable), feed.transaction(0):
        pass
    feed.append(0, [row(1)])
    assert version(uri) == 1, "what needs no line needs no etcd"


# --- several writers ---------------------------------------------------------------------------------------------


@ON_S3_TOO
def test_without_a_lock_one_of_two_commits_and_the_other_gets_an_error(opened: Opened) -> None:
    feed = opened()
    slow = feed.transaction(0)

    def write() -> None:
        with slow, ThreadPoolExecutor(1) as pool:
            slow.append([row(1)])
            pool.submit(feed.append, 0, [row(2)]).result()

    with pytest.raises(Conflict) as told:
        write()
    assert told.value.remedy
    assert not slow.committed
    assert [number for *_, number in numbers(feed)] == [2]


@ON_S3_TOO
def test_threads_that_append_in_one_step_all_get_through(opened: Opened) -> None:
    feed = opened()

    def write(who: int) -> list[str]:
        return [text for number in range(6) for text in feed.append(0, rows_of(f"w{who}", number))]

    with ThreadPoolExecutor(4) as pool:
        told = [text for texts in pool.map(write, range(4)) for text in texts]
    assert sorted(told) == feed.read(limit=10_000).rows["ulid_text"].to_pylist()


def test_threads_in_line_do_not_fail_each_other(opened: Opened, etcd: str) -> None:
    feed = opened(etcd, timeout_s=5.0)

    def write(who: int) -> None:
        for number in range(6):
            with feed.transaction(0) as transaction:
                transaction.append(rows_of(f"w{who}", number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(numbers(feed)) == 24 * 10
    assert feed.incidents() == ()


def test_a_writer_that_hangs_in_its_turn_costs_a_timeout_and_commits_nothing(
    opened: Opened, etcd: str, eventually: Eventually
) -> None:
    """It is alive, and so is its lease: only that nothing moves gives it away."""
    hanging, other = opened(etcd, timeout_s=TIMEOUT_S, name="hanging"), opened(etcd, timeout_s=TIMEOUT_S, name="other")
    inside, wake = threading.Event(), threading.Event()

    def hang() -> Transaction:
        with hanging.transaction(0) as transaction:
            transaction.append([row(1)])
            inside.set()
            wake.wait(60)
        return transaction

    with ThreadPoolExecutor(1) as pool:
        asleep = pool.submit(hang)
        eventually(inside.is_set)
        began_s = time.monotonic()
        with other.transaction(0) as transaction:
            transaction.append([row(2)])
        took_s = time.monotonic() - began_s
        wake.set()
        with pytest.raises(Conflict):
            asleep.result(60)
    assert TIMEOUT_S < took_s < TIMEOUT_S + SLACK_S
    (report,) = other.incidents()
    assert (report.shard, report.count, report.raised_by) == ("0", 1, "other")
    assert [number for *_, number in numbers(other)] == [2]


class NobodyMoves:
    """Port FeedLocks: a line in which nobody's turn ever comes."""

    def __init__(self) -> None:
        self.raised = 0

    def try_lock(self, feed: str, shard: str, incidents: int, wait_s: float) -> None:
        return None

    def incidents(self, feed: str, shard: str) -> Incidents:
        return Incidents(self.raised, self.raised)

    def raise_incidents(self, feed: str, shard: str, seen: Incidents) -> Incidents:
        self.raised += 1
        return self.incidents(feed, shard)

    def check(self) -> None: ...

    def list_incidents(self, feed: str) -> tuple[()]:
        return ()


def test_incidents_without_end_are_let_out(uri: str) -> None:
    locks = NobodyMoves()
    at = Etcd(locks, lambda feed_id: None, lambda: None)  # type: ignore[arg-type, return-value]
    with changefeed_at(uri, FakeClock(), etcd=at) as feed, pytest.raises(FeedIncident), feed.transaction(0):
        pass
    assert locks.raised == INCIDENTS_MAX
    assert version(uri) == 0


def test_a_line_that_is_too_long_is_let_out(opened: Opened, etcd: str) -> None:
    """Others commit all the while without the lock: nothing is stuck, so the wait ends by a timeout and no incident.

    A commit takes milliseconds; on busy cores one may take a good part of a second.
    """
    holder, waiter = opened(etcd), opened(etcd, timeout_s=1.5, wait_max_s=2.0)
    stop = threading.Event()

    def commit() -> None:
        while not stop.is_set():
            waiter.append(0, [row(1)])

    with ThreadPoolExecutor(2) as pool, holder.transaction(0):
        moving = pool.submit(commit)
        waited = pool.submit(waiter.transaction(0).__enter__)
        found = waited.exception()
        stop.set()
        moving.result()
        assert isinstance(found, TimedOut)
    assert waiter.incidents() == ()


def test_locks_are_below_the_prefix_and_go_with_the_feed(opened: Opened, etcd: str, uri: str) -> None:
    with EtcdClient(EtcdSettings((etcd,)), SystemClock()) as client:
        feed = opened(etcd, etcd_prefix="/elsewhere", name="me")
        line = Keys("/elsewhere").feed_queue(feed.feed_id, "0", 0)
        with feed.transaction(0):
            assert [kv.value for kv in client.list_prefix(line).items] == [b"me"]
        assert not client.list_prefix(line).items
        with feed.transaction(0):
            feed.close()
            assert not client.list_prefix(line).items
