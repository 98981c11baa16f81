"""No event is lost and none comes twice, whatever happens to the server; and one that is lost is not so for ever."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from iscp.changefeed.etcd.locks import EtcdFeedLocks
from iscp.etcd.channels import EtcdOutcomeUnknown, EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Changed, Compacted, EtcdSettings, EventType, Keys, Put, WatchItem
from iscp.etcd.member_keys import EtcdMembership
from iscp.etcd.owner_keys import EtcdElection
from iscp.etcd.server import EtcdServer
from iscp.etcd.watch import Watch
from iscp.etcd.watched_keys import TABLES, BuildKeys, watch_builds
from iscp.model.build.build_state import BeginTable
from iscp.model.values.ids import NodeRecord
from iscp.ports.system import Clock
from iscp.system.threads import THREADS

Connect = Callable[..., EtcdClient]
Eventually = Callable[..., float]
Signal = Callable[[EtcdServer], None]


class Follower:
    """Iterates over a watch in a thread of its own and keeps what came."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.items: list[WatchItem] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        for item in self.watch:
            self.items.append(item)

    def events(self) -> list[tuple[int, str, bytes]]:
        changes = [item for item in self.items if isinstance(item, Changed)]
        return [(e.kv.mod_revision, e.kv.key, e.kv.value) for change in changes for e in change.events]

    def ended(self) -> bool:
        return not self.thread.is_alive()


@contextmanager
def following(watch: Watch) -> Iterator[Follower]:
    follower = Follower(watch)
    try:
        yield follower
    finally:
        watch.close()
        follower.thread.join(5)
        assert follower.ended()


def test_events_come_in_order_and_a_transaction_stays_together(
    client: EtcdClient, prefix: str, eventually: Eventually
) -> None:
    start = client.list_prefix(prefix).revision + 1
    with following(client.watch(prefix, prefix=True, start_revision=start)) as follower:
        client.put(f"{prefix}a", b"1")
        client.txn((), (Put(f"{prefix}b", b"2"), Put(f"{prefix}c", b"2")))
        client.delete(f"{prefix}a")
        eventually(lambda: len(follower.events()) == 4)
    batches = [item.events for item in follower.items if isinstance(item, Changed)]
    together = [batch for batch in batches if any(e.kv.key == f"{prefix}b" for e in batch)]
    assert [e.kv.key for e in together[0] if e.kv.value == b"2"] == [f"{prefix}b", f"{prefix}c"]
    assert batches[-1][-1].type is EventType.DELETE
    assert [revision for revision, _, _ in follower.events()] == sorted(
        revision for revision, _, _ in follower.events()
    )


def test_ending_it_is_no_fault_of_the_server(
    client: EtcdClient, prefix: str, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    start = client.list_prefix(prefix).revision + 1
    with caplog.at_level("INFO"), following(client.watch(prefix, prefix=True, start_revision=start)) as follower:
        client.put(f"{prefix}a", b"1")
        eventually(lambda: follower.events())
    assert "etcd.watch.interrupted" not in caplog.text


def test_a_past_revision_is_watched_from_there(client: EtcdClient, prefix: str, eventually: Eventually) -> None:
    first = client.put(f"{prefix}a", b"1")
    client.put(f"{prefix}a", b"2")
    with following(client.watch(f"{prefix}a", start_revision=first)) as follower:
        eventually(lambda: [value for _, _, value in follower.events()] == [b"1", b"2"])


def test_a_watch_from_now_is_refused_since_it_would_have_gaps(client: EtcdClient) -> None:
    with pytest.raises(ValueError, match="start_revision"):
        client.watch("/k", start_revision=0)


def test_kill_9_of_the_server_loses_no_event_and_doubles_none(
    server: EtcdServer, clock: Clock, connect: Connect, kill_9: Signal, eventually: Eventually
) -> None:
    """Writes go on while it is away and comes back; what the store has is what the watch has reported, one for one.

    Every value is written once, so that one of unknown outcome is counted where it landed, and only there.
    """
    writer = connect(server.endpoint, timeout_s=5.0)
    start = writer.put("/w/start", b"") + 1
    done, writing = threading.Event(), threading.Event()
    landed: dict[bytes, int] = {}
    unknown: set[bytes] = set()

    def write() -> None:
        number = 0
        while not done.is_set():
            writing.wait(10)
            number += 1
            value = str(number).encode()
            try:
                landed[value] = writer.put("/w/k", value)
            except EtcdOutcomeUnknown:
                unknown.add(value)
            except EtcdUnavailable:
                continue

    thread = threading.Thread(target=write)
    with following(connect(server.endpoint).watch("/w/", prefix=True, start_revision=start)) as follower:
        thread.start()
        for _ in range(2):
            writing.set()
            time.sleep(0.4)
            writing.clear()
            kill_9(server)
            writing.set()
            time.sleep(0.2)
            server = EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock)
        eventually(lambda: len(landed) > 100)
        done.set()
        thread.join(10)
        last = writer.put("/w/last", b"")
        eventually(lambda: (events := follower.events()) and events[-1][0] == last)
    server.kill()
    events = follower.events()
    assert [revision for revision, _, _ in events] == list(range(start, last + 1))
    told = {value: revision for revision, key, value in events if key == "/w/k"}
    assert landed.items() <= told.items()
    assert told.keys() - landed.keys() <= unknown
    assert len(landed) > 100


def test_compaction_while_disconnected_is_reported_and_ends_the_watch(
    server: EtcdServer, clock: Clock, connect: Connect, kill_9: Signal, eventually: Eventually
) -> None:
    """The events that were missed are gone: the consumer is notified, and is not left with a gap."""
    client = connect(server.endpoint)
    start = client.put("/k", b"0") + 1
    with following(connect(server.endpoint).watch("/k", start_revision=start)) as follower:
        client.put("/k", b"1")
        eventually(lambda: len(follower.events()) == 1)
        kill_9(server)
        # Under another port the watch does not find it until the past is gone.
        moved = EtcdServer.start(server.data_dir, clock=clock)
        other = connect(moved.endpoint)
        compacted = [other.put("/k", b"%d" % number) for number in range(2, 6)][-1]
        other.compact(compacted)
        kill_9(moved)
        back = EtcdServer.start(server.data_dir, server.client_port, clock=clock)
        eventually(follower.ended)
        back.kill()
    assert follower.items[-1] == Compacted(compacted)
    assert [value for _, _, value in follower.events()] == [b"1"]


@pytest.mark.parametrize("same_cluster_id", [True, False])
def test_a_store_recreated_is_reported_instead_of_waited_on(
    server: EtcdServer, clock: Clock, connect: Connect, eventually: Eventually, same_cluster_id: bool
) -> None:
    """A wiped data directory starts at revision 1: what was known is invalid, and its revision would never come.

    etcd makes the cluster's id of the peers' addresses: it differs only where these have changed.
    """
    client = connect(server.endpoint)
    start = [client.put("/k", b"") for _ in range(5)][-1] + 1
    with following(connect(server.endpoint).watch("/k", start_revision=start)) as follower:
        client.put("/k", b"1")
        eventually(lambda: len(follower.events()) == 1)
        server.kill()
        shutil.rmtree(server.data_dir)
        peer_port = server.peer_port if same_cluster_id else 0
        fresh = EtcdServer.start(server.data_dir, server.client_port, peer_port, clock=clock)
        eventually(follower.ended)
        fresh.kill()
    assert follower.items[-1] == Compacted(0)


def test_a_slow_consumer_gets_everything(client: EtcdClient, prefix: str) -> None:
    """The stream's flow control holds the server back; nothing is queued here, nothing is dropped there."""
    start = client.list_prefix(prefix).revision + 1
    watch = client.watch(prefix, prefix=True, start_revision=start)
    received: list[bytes] = []
    value = b"x" * 20_000
    with watch:
        writer = threading.Thread(
            target=lambda: [client.put(f"{prefix}k", b"%05d" % number + value) for number in range(200)]
        )
        writer.start()
        for item in watch:
            if isinstance(item, Changed):
                if not received:
                    writer.join(20)
                received += [event.kv.value[:5] for event in item.events]
            if len(received) == 200:
                break
    assert received == [b"%05d" % number for number in range(200)]


LASTS_S = 0.5
TTL_S, MARGIN_S = 5.0, 0.5


def test_a_watch_ends_by_itself_and_no_server_is_blamed_for_that(
    shared_server: EtcdServer, clock: Clock, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = EtcdSettings((shared_server.endpoint,))
    with caplog.at_level("INFO"), EtcdClient(settings, clock, watch_max_s=LASTS_S) as client:
        assert list(client.watch(prefix, prefix=True, start_revision=client.list_prefix(prefix).revision + 1)) == []
        assert client.get(prefix) is None
    assert "etcd.watch.interrupted" not in caplog.text


class DeafClient:
    """A client whose watches bring no change: a server has lost them all."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def watch(self, key: str, **how: Any) -> DeafWatch:
        return DeafWatch(self._client.watch(key, **how))


class DeafWatch:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.close = watch.close

    def __iter__(self) -> Iterator[WatchItem]:
        return (item for item in self._watch if not isinstance(item, Changed))

    def wait_for_deletion(self) -> None:
        for _ in self:
            pass


Started = tuple[Callable[[], object], Callable[[], bool]]
"""What has something happen, and whether whoever follows knows of it."""


def members_followed(deaf: Any, client: EtcdClient, keys: Keys, clock: Clock, stack: ExitStack) -> Started:
    seen: list[list[str]] = []
    node = EtcdMembership(client, keys, clock, THREADS, lease_ttl_s=TTL_S, margin_s=MARGIN_S)
    stack.callback(node.deregister)
    observer = EtcdMembership(deaf, keys, clock, THREADS, lease_ttl_s=TTL_S, margin_s=MARGIN_S)
    stack.callback(observer.watch(lambda members, _: seen.append([member.node_id for member in members])))
    return lambda: node.register(NodeRecord("a", 1, "127.0.0.1:1")), lambda: seen[-1:] == [["a"]]


def builds_followed(deaf: Any, client: EtcdClient, keys: Keys, clock: Clock, stack: ExitStack) -> Started:
    seen, builds = list[object](), BuildKeys(keys.builds)
    stack.callback(watch_builds(deaf, builds, seen.extend, seen.extend, THREADS).close)
    return lambda: client.put(builds.key(TABLES, "t"), b""), lambda: BeginTable("t") in seen


def election_waited_for(deaf: Any, client: EtcdClient, keys: Keys, clock: Clock, stack: ExitStack) -> Started:
    first, second = (
        EtcdElection(through, keys, clock, lease_ttl_s=TTL_S, margin_s=MARGIN_S) for through in (client, deaf)
    )
    led, follows = threading.Event(), threading.Event()
    for election, elected in ((first, led), (second, follows)):
        stack.callback(election.resign)
        election.campaign("n", lambda _, elected=elected: elected.set(), lambda: None)  # type: ignore[misc]
        assert elected is follows or led.wait(10)
    return first.resign, follows.is_set


def lock_waited_for(deaf: Any, client: EtcdClient, keys: Keys, clock: Clock, stack: ExitStack) -> Started:
    first, second = (stack.enter_context(EtcdFeedLocks(through, keys, clock, name="w")) for through in (client, deaf))
    held, turns = first.try_lock("f", "0", 0, 10.0), list[object]()
    assert held is not None
    waiting = threading.Thread(target=lambda: turns.append(second.try_lock("f", "0", 0, 60.0)))
    waiting.start()
    stack.callback(waiting.join)
    return held.release, lambda: len(turns) == 1 and turns[0] is not None


@pytest.mark.parametrize("follow", [members_followed, builds_followed, election_waited_for, lock_waited_for])
def test_what_the_server_has_lost_is_known_once_the_watch_has_ended(
    follow: Callable[..., Started],
    shared_server: EtcdServer,
    client: EtcdClient,
    clock: Clock,
    prefix: str,
    eventually: Eventually,
) -> None:
    with ExitStack() as stack:
        settings = EtcdSettings((shared_server.endpoint,))
        short = stack.enter_context(EtcdClient(settings, clock, watch_max_s=LASTS_S))
        happen, known = follow(DeafClient(short), client, Keys(prefix), clock, stack)
        time.sleep(2 * LASTS_S)
        happen()
        eventually(known)
