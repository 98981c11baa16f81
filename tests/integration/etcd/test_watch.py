"""No event is lost and none comes twice, whatever happens to the server."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.etcd_errors import EtcdOutcomeUnknown, EtcdUnavailable
from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.etcd.values import Changed, Compacted, EventType, Put, WatchItem
from iscp.adapters.etcd.watch import Watch
from iscp.ports.system import Clock

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
