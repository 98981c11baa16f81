"""Registration, snapshots and epochs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.etcd.member_keys import EtcdLease, EtcdMembership
from iscp.etcd.server import EtcdServer
from iscp.model.values.errors import ConfigurationError, Conflict, QueueFull
from iscp.model.values.ids import Moment, NodeRecord
from iscp.ports.cluster import Membership
from iscp.ports.system import Clock
from iscp.system.threads import THREADS

Join = Callable[[], EtcdMembership]
Eventually = Callable[..., float]
Snapshot = tuple[NodeRecord, ...]
TTL_S, MARGIN_S = 2.0, 0.5


def record(node_id: str, epoch: int = 1) -> NodeRecord:
    return NodeRecord(node_id, epoch, address=f"127.0.0.1:{7000 + epoch}", pid=42, version="0.1.0", started_at_s=1.5)


@pytest.fixture
def join(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[Join]:
    """Memberships of nodes of one cluster, as different programs have them."""
    with ExitStack() as stack:

        def joined() -> EtcdMembership:
            membership = EtcdMembership(client, Keys(prefix), clock, THREADS, lease_ttl_s=TTL_S, margin_s=MARGIN_S)
            stack.callback(membership.deregister)
            return membership

        yield joined


def test_members_are_sorted_and_hang_on_their_leases(join: Join) -> None:
    nodes: dict[str, Membership] = {name: join() for name in ("b", "a")}
    leases = {name: node.register(record(name)) for name, node in nodes.items()}
    expected = tuple(replace(record(name), lease_id=leases[name].lease_id, ttl_s=TTL_S) for name in ("a", "b"))
    assert nodes["a"].members()[0] == expected
    nodes["b"].deregister()
    assert nodes["a"].members()[0] == expected[:1]


def test_the_name_of_a_live_node_is_refused(join: Join, clock: Clock) -> None:
    """Its lease is seen to be renewed, so that the answer comes within a TTL."""
    first = join()
    lease = first.register(record("a"))
    start_s = clock.monotonic_s()
    with pytest.raises(ConfigurationError, match="'a'"):
        join().register(record("a", epoch=2))
    assert clock.monotonic_s() - start_s < 4
    assert [(member.epoch, member.lease_id) for member in first.members()[0]] == [(1, lease.lease_id)]


def test_one_node_more_than_a_cluster_may_have_is_refused_and_leaves_nothing(
    client: EtcdClient, clock: Clock, prefix: str
) -> None:
    """Also where several come at once: as many as fit stay, and those are the ones that came first."""
    limits = {"lease_ttl_s": TTL_S, "margin_s": MARGIN_S}
    nodes = [EtcdMembership(client, Keys(prefix), clock, THREADS, nodes_max=3, **limits) for _ in range(6)]
    refused: list[str] = []

    def join(number: int) -> None:
        try:
            nodes[number].register(record(f"n{number}"))
        except ConfigurationError as error:
            refused.append(str(error))

    for number in range(2):
        join(number)
    joining = [threading.Thread(target=join, args=(number,)) for number in range(2, 6)]
    for thread in joining:
        thread.start()
    for thread in joining:
        thread.join()
    there = {member.node_id for member in nodes[0].members()[0]}
    assert {"n0", "n1"} < there
    assert len(there) == 3
    assert len(refused) == 3
    assert all("may have 3" in reason for reason in refused)
    nodes[0].deregister()
    late = EtcdMembership(client, Keys(prefix), clock, THREADS, nodes_max=3, **limits)
    late.register(record("late"))
    assert "late" in {member.node_id for member in late.members()[0]}
    for node in (*nodes, late):
        node.deregister()


def test_a_node_that_died_is_followed_by_its_next_life_after_its_ttl(join: Join, client: EtcdClient) -> None:
    dead = join().register(record("a"))
    dead.close()  # as kill -9 does: no renewal, no farewell
    second = join()
    second.register(record("a", epoch=2))
    assert [member.epoch for member in second.members()[0]] == [2]


def test_registering_again_in_one_life_gives_a_new_lease(join: Join) -> None:
    node = join()
    first, second = node.register(record("a")), node.register(record("a", epoch=2))
    assert first.lease_id != second.lease_id
    assert [member.lease_id for member in node.members()[0]] == [second.lease_id]


def test_the_owner_can_end_the_lease_of_another(join: Join, client: EtcdClient, eventually: Eventually) -> None:
    gone = threading.Event()
    silent, owner = join(), join()
    silent.register(record("a"), on_gone=gone.set)
    assert owner.hold_s() == 0.0
    owner.revoke(owner.members()[0][0], client.put)
    assert owner.members()[0] == ()
    eventually(gone.is_set)


def test_who_follows_knows_how_long_a_revoked_node_may_still_write(join: Join, client: EtcdClient) -> None:
    silent, owner, next_owner = join(), join(), join()
    silent.register(record("a"))
    owner.revoke(owner.members()[0][0], client.put)
    # Leases last whole seconds.
    assert TTL_S + MARGIN_S <= next_owner.hold_s() < TTL_S + MARGIN_S + 1


def test_a_node_that_leaves_stays_registered_and_says_so(join: Join, eventually: Eventually) -> None:
    seen: list[list[bool]] = []
    node, observer = join(), join()
    node.register(record("a"))
    stop = observer.watch(lambda members, _: seen.append([member.leaving for member in members]))
    node.leave()
    eventually(lambda: seen[-1:] == [[True]])
    node.deregister()
    node.leave()
    eventually(lambda: seen[-1:] == [[]])
    node.register(record("a", epoch=2))
    eventually(lambda: seen[-1:] == [[True]])
    stop()


def test_the_age_of_a_lease_says_when_it_was_renewed(join: Join) -> None:
    node = join()
    node.register(record("a"))
    members, _ = node.members()
    assert node.lease_ages_s(members)["a"] <= TTL_S
    node.deregister()
    assert node.lease_ages_s(members) == {}


def test_a_watch_reports_at_once_who_is_there_and_then_each_change(join: Join, eventually: Eventually) -> None:
    seen: list[list[str]] = []
    observer, node = join(), join()
    observer.register(record("b"))
    stop = observer.watch(lambda members, _: seen.append([member.node_id for member in members]))
    eventually(lambda: seen == [["b"]])
    node.register(record("a"))
    eventually(lambda: seen == [["b"], ["a", "b"]])
    node.deregister()
    eventually(lambda: seen == [["b"], ["a", "b"], ["b"]])
    stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etcd-members")]
    node.register(record("a", epoch=2))
    assert len(seen) == 3


def test_a_slow_callback_gets_the_latest_and_not_a_backlog(join: Join, eventually: Eventually) -> None:
    seen: list[Snapshot] = []
    go_on = threading.Event()

    def slow(members: Snapshot, moment: Moment) -> None:
        seen.append(members)
        go_on.wait(10)

    observer = join()
    stop = observer.watch(slow)
    eventually(lambda: len(seen) == 1)
    for number in range(10):
        join().register(record(f"n{number}"))
    threading.Event().wait(0.2)
    go_on.set()
    eventually(lambda: len(seen[-1]) == 10)
    assert len(seen) <= 3
    stop()


def test_a_watch_lists_again_after_a_wipe(
    server: EtcdServer, clock: Clock, connect: Callable[..., EtcdClient], eventually: Eventually
) -> None:
    """Whatever the watch cannot report it reads."""
    keys, client = Keys("/c"), connect(server.endpoint)
    node = EtcdMembership(client, keys, clock, THREADS, lease_ttl_s=2, margin_s=0.5)
    lease: EtcdLease = node.register(record("a"))
    seen: list[list[str]] = []
    stop = node.watch(lambda members, _: seen.append([member.node_id for member in members]))
    eventually(lambda: seen == [["a"]])
    server.kill()
    for file in sorted(server.data_dir.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    back = EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock)
    eventually(lambda: seen == [["a"], []])
    eventually(lambda: lease.gone)
    node.register(record("a"))
    eventually(lambda: seen[-1] == ["a"])
    stop()
    node.deregister()
    back.kill()


def test_a_snapshot_that_met_a_full_inbox_is_delivered_again(join: Join, eventually: Eventually) -> None:
    """Nothing else may change for a long time."""
    refusals, seen = [QueueFull("full"), QueueFull("still full")], []

    def refuse(members: Snapshot, moment: Moment) -> None:
        if members and refusals:
            raise refusals.pop()
        seen.append([member.node_id for member in members])

    observer, node = join(), join()
    stop = observer.watch(refuse)
    eventually(lambda: seen == [[]])
    node.register(record("a"))
    eventually(lambda: seen == [[], ["a"]])
    assert not refusals
    stop()


@pytest.mark.parametrize("overtaken", [False, True])
def test_an_etcd_that_was_restored_from_a_backup_is_followed_again(
    server: EtcdServer,
    clock: Clock,
    connect: Callable[..., EtcdClient],
    eventually: Eventually,
    overtaken: bool,
) -> None:
    """Its revisions go back. Where they have passed the former ones before anybody looks, it has lost an epoch."""
    keys, client = Keys("/c"), connect(server.endpoint)
    node = EtcdMembership(client, keys, clock, THREADS, lease_ttl_s=20, margin_s=0.5)
    seen: list[tuple[list[str], Moment]] = []
    stop = node.watch(lambda members, moment: seen.append(([member.node_id for member in members], moment)))
    client.put("/elsewhere", b"")
    eventually(lambda: seen)
    server.kill()
    backup = server.data_dir.with_name("backup")
    shutil.copytree(server.data_dir, backup)
    later = EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock)
    assert node.next_epoch("a") == 1
    node.register(record("a"))
    eventually(lambda: seen[-1][0] == ["a"])
    for _ in range(3):
        client.put("/elsewhere", b"")
    eventually(lambda: node.members()[1] > seen[-1][1])
    later.kill()
    before = seen[-1][1]
    shutil.rmtree(server.data_dir)
    backup.rename(server.data_dir)
    if overtaken:
        aside = EtcdServer.start(server.data_dir, clock=clock)
        for _ in range(20):
            connect(aside.endpoint).put("/elsewhere", b"")
        aside.kill()
    back = EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock)
    eventually(lambda: seen[-1][0] == [])
    assert seen[-1][1].restores == before.restores + 1
    assert node.members()[1] >= seen[-1][1]
    assert node.next_epoch("a", above=1) == 2
    stop()
    node.deregister()
    back.kill()


def test_a_record_that_cannot_be_read_hides_no_other(join: Join, client: EtcdClient, prefix: str) -> None:
    node = join()
    node.register(record("a"))
    client.put(Keys(prefix).node("broken"), b"{}")
    assert [member.node_id for member in node.members()[0]] == ["a"]


def test_no_two_lives_of_a_name_have_one_epoch(join: Join) -> None:
    had: list[int] = []
    lock = threading.Lock()

    def live(membership: EtcdMembership) -> None:
        for _ in range(3):
            epoch = 0
            while not epoch:
                with suppress(Conflict, ConfigurationError):
                    drawn = membership.next_epoch("a")
                    membership.register(record("a", drawn))
                    epoch = drawn
            with lock:
                had.append(epoch)
            membership.deregister()

    threads = [threading.Thread(target=live, args=(join(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert had == [*range(1, 10)]
    assert join().next_epoch("b") == 1


def test_an_epoch_that_a_namesake_has_had_is_refused(join: Join) -> None:
    first, second = join(), join()
    drawn = second.next_epoch("a")
    first.register(record("a", first.next_epoch("a")))
    first.deregister()
    with pytest.raises(Conflict, match="epoch 1"):
        second.register(record("a", drawn))
    second.register(record("a", second.next_epoch("a")))
    assert [member.epoch for member in second.members()[0]] == [2]


def test_a_record_and_its_epoch_are_one_transaction(join: Join, client: EtcdClient, prefix: str) -> None:
    """Or a backup could have the epoch without the record, and what is restored from it would look as it should."""
    join().register(record("a", 7))
    found, epoch = client.get(Keys(prefix).node("a")), client.get(Keys(prefix).epoch("a"))
    assert found is not None
    assert epoch is not None
    assert (found.mod_revision, epoch.value) == (epoch.mod_revision, b"7")
