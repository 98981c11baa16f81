"""Keys below a prefix are read once and then followed; after whatever ends a watch all is read again."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.adapters.etcd.etcd_errors import EtcdCompactedError, EtcdUnavailable
from iscp.adapters.etcd.prefix_watch import PrefixWatch, apply_events
from iscp.adapters.etcd.values import Changed, EventType, KeyValue, Listing, Progress, WatchEvent, WatchItem
from iscp.core.values.errors import IscpError
from iscp.runtime.loop.threads import THREADS
from tests.fakes.waiting import until


def event(kind: EventType, key: str, revision: int) -> WatchEvent:
    return WatchEvent(kind, KeyValue(key, str(revision).encode(), 1, revision, 1, 0))


KINDS = st.sampled_from([EventType.PUT, EventType.DELETE])


@settings(max_examples=50)
@given(st.lists(st.tuples(KINDS, st.sampled_from("abc")), min_size=1, max_size=12), st.data())
def test_keys_are_those_of_the_last_events_however_these_are_cut(
    changes: list[tuple[EventType, str]], data: st.DataObject
) -> None:
    events = [event(kind, key, revision) for revision, (kind, key) in enumerate(changes, 2)]
    cut = data.draw(st.integers(1, len(events)))
    known = {"b": KeyValue("b", b"1", 1, 1, 1, 0), "z": KeyValue("z", b"1", 1, 1, 1, 0)}
    for part in filter(None, (events[:cut], events[cut:])):
        assert apply_events(known, part) == part[-1].kv.mod_revision
    last = {each.kv.key: each for each in events}
    expected = {key: each.kv for key, each in last.items() if each.type is EventType.PUT}
    expected |= {key: KeyValue(key, b"1", 1, 1, 1, 0) for key in ("b", "z") if key not in last}
    assert known == expected


class Watched:
    """The items that the test puts; None ends the watch, and an error ends it with that."""

    def __init__(self, start_revision: int) -> None:
        self.start_revision = start_revision
        self.items: queue.Queue[WatchItem | IscpError | None] = queue.Queue()

    def __iter__(self) -> Iterator[WatchItem]:
        while (item := self.items.get(timeout=10)) is not None:
            if isinstance(item, IscpError):
                raise item
            yield item

    def close(self) -> None:
        self.items.put(None)


class Etcd:
    def __init__(self) -> None:
        self.watches: list[Watched] = []

    def get(self, key: str) -> KeyValue | None:
        raise AssertionError("nothing is read by this")

    def list_prefix(self, prefix: str) -> Listing:
        raise AssertionError("nothing is read by this")

    def watch(
        self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True
    ) -> Watched:
        assert (key, prefix, survives_connection) == ("/p/", True, False)
        self.watches.append(Watched(start_revision))
        return self.watches[-1]


class Follower:
    """`revisions` are what the next reads return, or raise."""

    def __init__(self, *revisions: int | IscpError) -> None:
        self.etcd, self.seen, self._revisions = Etcd(), list[Sequence[WatchEvent]](), [*revisions]
        self.watch = PrefixWatch(self.etcd, "/p/", self.read, self.seen.append, "p.unreadable", "p", THREADS)

    def read(self) -> int:
        found = self._revisions.pop(0)
        if isinstance(found, IscpError):
            raise found
        return found

    def watched(self, count: int) -> Watched:
        """Return the last of so many watches, once it is there."""
        until(lambda: len(self.etcd.watches) == count, 10)
        return self.etcd.watches[-1]


def test_what_came_after_the_reading_is_passed_on_and_nothing_else() -> None:
    follower = Follower(10)
    follower.watch.start()
    watched = follower.watched(1)
    assert watched.start_revision == 11
    events = (event(EventType.PUT, "/p/a", 11),)
    watched.items.put(Progress(12))
    watched.items.put(Changed(events))
    until(lambda: bool(follower.seen), 10)
    follower.watch.close()
    assert follower.seen == [events]


@pytest.mark.parametrize("end", [None, EtcdUnavailable("gone"), EtcdCompactedError("compacted")])
def test_all_is_read_again_after_an_interruption(end: IscpError | None) -> None:
    follower = Follower(10, 3)  # of a store that was restored from a backup
    follower.watch.start()
    follower.watched(1).items.put(end)
    assert follower.watched(2).start_revision == 4
    follower.watch.close()


def test_whoever_wants_it_has_all_read_again() -> None:
    follower = Follower(10, 20)
    follower.watch.read_again()  # there is no watch yet
    follower.watch.start()
    follower.watched(1)
    until(lambda: follower.watch._watch is not None, 10)
    follower.watch.read_again()
    assert follower.watched(2).start_revision == 21
    follower.watch.close()


def test_it_ends_when_it_is_closed_also_from_its_own_thread() -> None:
    follower, closed = Follower(10), list[bool]()

    def close(events: Sequence[WatchEvent]) -> None:
        watch.close()
        closed.append(watch.closed)

    watch = PrefixWatch(follower.etcd, "/p/", follower.read, close, "p.unreadable", "p", THREADS)
    watch.start()
    follower.watched(1).items.put(Changed((event(EventType.PUT, "/p/a", 11),)))
    until(lambda: closed == [True], 10)
    until(lambda: not watch._thread.is_alive(), 10)
    assert len(follower.etcd.watches) == 1
