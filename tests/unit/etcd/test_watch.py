"""The revision from which a watch resumes, against a scripted server.

Keys below a prefix are read once and then followed; after whatever ends a watch all is read again.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.etcd import channels as pb
from iscp.etcd.channels import EtcdCompactedError, EtcdDeniedError, EtcdUnavailable
from iscp.etcd.keys import Changed, Compacted, EventType, KeyValue, Listing, Progress, WatchEvent, WatchItem
from iscp.etcd.watch import PrefixWatch, Watch, apply_events
from iscp.model.values.errors import IscpError
from iscp.system.threads import THREADS
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

LASTS_S = 7.0


class Ended(grpc.RpcError):  # type: ignore[misc]
    """As a server ends a stream whose time is over: by its own word for that, or by another."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "context deadline exceeded"


class ScriptedCall:
    def __init__(self, responses: list[Any]) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[Any]:
        for response in self._responses:
            if isinstance(response, Passes):
                response.clock.advance(response.by_s)
                raise Ended
            yield response

    def cancel(self) -> None:
        pass


class ScriptedChannels:
    """Each connection brings the next list of responses and then ends; keeps what the watch requested."""

    closed = False

    def __init__(self, *connections: list[Any], revision_now: int = 0) -> None:
        self._connections = iter(connections)
        self._revision_now = revision_now
        self.started_at: list[int] = []
        self.lasts_s: list[float] = []
        self.tokens_dropped = 0
        self.watch_events = 0

    def count_events(self, events: int) -> None:
        self.watch_events += events

    def open_stream(self, _path: str, requests: Iterator[Any], *, timeout_s: float) -> tuple[object, ScriptedCall]:
        self.lasts_s.append(timeout_s)
        self.started_at.append(next(requests).create_request.start_revision)
        try:
            return object(), ScriptedCall(next(self._connections))
        except StopIteration:
            self.closed = True
            raise EtcdUnavailable("the script is at its end") from None

    def unary(self, _path: str, _request: Any, *, writes: bool) -> Any:
        assert not writes
        return pb.RangeResponse(header={"revision": self._revision_now})

    def leave(self, _endpoint: object) -> None:
        pass

    def drop_token(self) -> None:
        self.tokens_dropped += 1


@dataclass
class Passes:
    """So much time passes, and then the stream ends."""

    clock: FakeClock
    by_s: float


def created(revision: int, cluster_id: int = 1) -> Any:
    return pb.WatchResponse(created=True, header={"revision": revision, "cluster_id": cluster_id})


def events(*revisions: int, header: int) -> Any:
    sent = [{"kv": {"key": b"k", "mod_revision": revision}} for revision in revisions]
    return pb.WatchResponse(header={"revision": header, "cluster_id": 1}, events=sent)


def progress(revision: int) -> Any:
    return pb.WatchResponse(header={"revision": revision, "cluster_id": 1})


def seen(channels: ScriptedChannels, start_revision: int = 5, clock: FakeClock | None = None) -> list[Any]:
    at = {"start_revision": start_revision, "lasts_s": LASTS_S}
    return list(Watch(channels, clock or FakeClock(), "k", prefix=False, **at))  # type: ignore[arg-type]


def test_it_resumes_after_the_last_event_and_not_after_the_header() -> None:
    """The header's revision is the store's: events up to it may still have to come."""
    channels = ScriptedChannels([created(9), events(5, 6, header=9)], [created(9), events(7, 9, header=9)])
    changes = seen(channels)
    assert channels.started_at == [5, 7, 10]
    assert [e.kv.mod_revision for change in changes for e in change.events] == [5, 6, 7, 9]
    assert channels.watch_events == 4


def test_a_progress_notice_is_passed_on_and_not_resumed_from() -> None:
    channels = ScriptedChannels([created(5), events(5, header=5), progress(50)])
    assert seen(channels)[1:] == [Progress(50)]
    assert channels.started_at == [5, 6]


def test_it_lasts_for_its_time_over_all_connections() -> None:
    clock = FakeClock()
    before, after = Passes(clock, 3.0), Passes(clock, LASTS_S - 3.0)
    channels = ScriptedChannels([created(9), events(5, header=9), before], [created(9), after], [events(6, header=9)])
    assert [type(item) for item in seen(channels, clock=clock)] == [Changed]
    assert (channels.started_at, channels.lasts_s) == ([5, 6], [LASTS_S, LASTS_S - 3.0])


def test_compaction_ends_it() -> None:
    compacted = pb.WatchResponse(canceled=True, compact_revision=8)
    channels = ScriptedChannels([created(9), compacted], [events(9, header=9)])
    assert seen(channels) == [Compacted(8)]
    assert channels.started_at == [5]


@pytest.mark.parametrize(
    ("revision_now", "outcome"),
    [(3, [Compacted(0)]), (9, [Changed])],
    ids=["store recreated", "member lags behind"],
)
def test_a_lower_revision_is_a_new_store_only_if_the_whole_cluster_has_it(
    revision_now: int, outcome: list[Any]
) -> None:
    channels = ScriptedChannels([created(3), events(5, header=5)], revision_now=revision_now)
    items = seen(channels)
    assert items == outcome or [type(item) for item in items] == outcome


def test_another_cluster_is_a_new_store() -> None:
    channels = ScriptedChannels([created(9), events(5, header=9)], [created(99, cluster_id=2)])
    assert seen(channels)[-1] == Compacted(0)


def test_a_refusal_is_taken_for_final_after_one_new_token() -> None:
    denied = pb.WatchResponse(created=True, canceled=True, cancel_reason="etcdserver: permission denied")
    channels = ScriptedChannels([denied], [denied])
    with pytest.raises(EtcdDeniedError):
        seen(channels)
    assert channels.tokens_dropped == 1
    again = ScriptedChannels([denied], [created(9), events(5, header=9)])
    assert [type(item) for item in seen(again)] == [Changed]


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
