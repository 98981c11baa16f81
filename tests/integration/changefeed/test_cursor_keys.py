"""Cursors that are stored by name, by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.changefeed import Changefeed, Conflict, Cursor, InvalidRequest
from iscp.changefeed.etcd.locks import EtcdFeedCursors
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.model.values.errors import ConfigurationError
from iscp.system.threads import SystemClock
from tests.fakes.etcd_proxy import AnswerLosingProxy

from .conftest import row, told

Opened = Callable[..., Changefeed]
Eventually = Callable[..., float]


def test_a_cursor_is_stored_by_compare_and_set(opened: Opened, etcd: str) -> None:
    feed, other = opened(etcd), opened(etcd)
    assert feed.cursors.get("billing") is None
    feed.append(0, [row(1)])
    one = feed.cursors.store("billing", feed.last_cursor(), None)
    assert other.cursors.get("billing") == one
    feed.append(1, [row(2)])
    two = other.cursors.store("billing", feed.last_cursor(), one)
    assert two.revision > one.revision
    for expected in (one, None):
        with pytest.raises(Conflict) as told_so:
            feed.cursors.store("billing", feed.last_cursor(), expected)
        assert told_so.value.remedy
    assert [stored.name for stored in feed.cursors.list()] == ["billing"]
    assert feed.cursors.get("billing") == two
    with pytest.raises(Conflict):
        feed.cursors.delete("billing", one)
    assert feed.cursors.delete("billing", two)
    assert not feed.cursors.delete("billing")
    assert feed.cursors.list() == ()
    with pytest.raises(Conflict):
        feed.cursors.store("billing", feed.last_cursor(), two)


def test_a_cursor_goes_back_only_on_purpose(opened: Opened, etcd: str) -> None:
    feed = opened(etcd)
    for shard in (0, 1):
        feed.append(shard, [row(shard)])
    full = feed.last_cursor()
    stored = feed.cursors.store("c", full, None)
    for back in (Cursor(feed.feed_id), Cursor(feed.feed_id, {0: full[0]})):
        with pytest.raises(InvalidRequest, match="would go back") as refused:
            feed.cursors.store("c", back, stored)
        assert refused.value.field == "cursor"
    assert feed.cursors.get("c") == stored
    again = feed.cursors.store("c", Cursor(feed.feed_id), stored, rewind=True)
    assert dict(again.cursor) == {}


def test_cursors_and_names_that_are_none_are_refused(opened: Opened, etcd: str) -> None:
    feed = opened(etcd)
    for name in ("", "a/b", "..", "-a", "a b", "a" * 129):
        for use in (
            feed.cursors.get,
            feed.cursors.delete,
            lambda name: feed.cursors.store(name, Cursor(feed.feed_id), None),
        ):
            with pytest.raises(InvalidRequest) as refused:
                use(name)
            assert refused.value.field == "name"
    for cursor in (Cursor("another"), Cursor(feed.feed_id, {9: "01J"}), Cursor(feed.feed_id, {0: "01J"})):
        with pytest.raises(InvalidRequest) as refused:
            feed.cursors.store("c", cursor, None)
        assert refused.value.field == "cursor"
    stored = feed.cursors.store("c", Cursor(feed.feed_id), None)
    with pytest.raises(InvalidRequest, match="is cursor c, not d"):
        feed.cursors.store("d", Cursor(feed.feed_id), stored)
    assert [stored.name for stored in feed.cursors.list()] == ["c"]


def test_of_many_that_store_at_once_one_does(opened: Opened, etcd: str) -> None:
    feed = opened(etcd)
    stored = feed.cursors.store("c", Cursor(feed.feed_id), None)

    def store(_: int) -> bool:
        try:
            feed.cursors.store("c", Cursor(feed.feed_id), stored)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(store, range(8))) == 1


def test_who_does_not_hear_whether_it_has_stored_checks(opened: Opened, etcd: str, eventually: Eventually) -> None:
    feed = opened(etcd)
    with AnswerLosingProxy(int(etcd.rpartition(":")[2])) as proxy, ThreadPoolExecutor(1) as pool:
        clock = SystemClock()
        with EtcdClient(EtcdSettings((proxy.endpoint,)), clock) as client:
            cursors = EtcdFeedCursors(client, Keys(), clock, feed.feed_id)
            assert cursors.get("c") is None
            proxy.lose_answers()
            storing = pool.submit(cursors.store, "c", Cursor(feed.feed_id), None)
            eventually(lambda: feed.cursors.get("c") is not None)
            proxy.pass_answers()
            proxy.cut()
            assert storing.result(30) == feed.cursors.get("c")


def test_what_is_no_cursor_in_etcd_is_reported_and_holds_up_a_purge(opened: Opened, etcd: str) -> None:
    feed = opened(etcd)
    feed.append(0, [row(1)])
    with EtcdClient(EtcdSettings((etcd,)), SystemClock()) as client:
        client.put(Keys().feed_cursor(feed.feed_id, "c"), b"junk")
    for use in (lambda: feed.cursors.get("c"), feed.cursors.list, lambda: feed.purge(behind_cursors=True)):
        with pytest.raises(ConfigurationError, match="Delete the key"):
            use()
    assert told(feed) == [1]
