"""What the loss of members costs owners and watches on an etcd of three containers: time, and never a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from iscp.etcd.channels import EtcdOutcomeUnknown, EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Changed, KeyValue
from iscp.etcd.member_keys import EtcdLease
from iscp.system.threads import SystemClock
from tests.containers.etcd_members import EtcdMembers
from tests.containers.member_faults import fault
from tests.containers.owned_writes import (
    MARGIN_S,
    TTL_S,
    Follower,
    Writer,
    assert_nothing_lost,
    assert_one_owner,
    assert_watched_once,
)
from tests.fakes.waiting import until
from tests.selection import in_full

Connect = Callable[..., EtcdClient]
Start = Callable[[list[tuple[str, ...]]], list[Writer]]
AGAIN_WITHIN_S = 30.0
HELD_S = TTL_S + 1.0
"""So long a fault lasts at least: leases that nobody can renew have ended by then."""


@pytest.fixture
def start(connect: Connect, prefix: str) -> Iterator[Start]:
    """Nodes that run for owner, by those endpoints each."""
    started: list[Writer] = []

    def begun(endpoints: list[tuple[str, ...]]) -> list[Writer]:
        started.extend(Writer(f"n{number}", connect(*own), prefix) for number, own in enumerate(endpoints))
        for writer in started:
            writer.start()
        return started

    yield begun
    for writer in started:
        writer.stop()


def assert_all_in_order(writers: list[Writer], follower: Follower, client: EtcdClient, prefix: str) -> None:
    for writer in writers:
        writer.stop()
    kept = {row.key: row for row in client.list_prefix(f"{prefix}rows/").items}
    follower.await_rows(len(kept))
    follower.stop()
    assert_nothing_lost(writers, kept)
    assert_one_owner(writers, kept)
    assert_watched_once(follower, kept)


def go_on(writers: list[Writer]) -> float:
    """Rows are confirmed again; after how many seconds."""
    before = sum(len(writer.acked) for writer in writers)
    return until(lambda: sum(len(writer.acked) for writer in writers) >= before + 10, within_s=AGAIN_WITHIN_S)


CASES = [(kind, whom) for kind in ("kill", "cut", "freeze") for whom in ("leader", "follower")]


@pytest.mark.parametrize(("kind", "whom"), in_full(CASES, [("kill", "leader"), ("cut", "leader")], unpack=True))
def test_a_member_is_lost_under_load(
    members: EtcdMembers, connect: Connect, start: Start, prefix: str, kind: str, whom: str
) -> None:
    """Nodes reach all members, so the owner may go on being one; what is written goes on, too."""
    watching = connect(*members.endpoints)
    follower = Follower(watching, prefix)
    writers = start([members.endpoints_from(number) for number in range(3)])
    go_on(writers)
    with fault(members, kind, members.leader() if whom == "leader" else members.follower()):
        go_on(writers)
        time.sleep(HELD_S)
        go_on(writers)
    members.await_all()
    go_on(writers)
    assert_all_in_order(writers, follower, watching, prefix)


@pytest.mark.parametrize("kind", in_full(["cut", "freeze", "kill"], ["cut", "freeze"]))
def test_the_owner_reaches_the_lost_member_alone(
    members: EtcdMembers, connect: Connect, start: Start, prefix: str, kind: str
) -> None:
    """It gives up by its own clock, before another one is elected."""
    watching = connect(*members.endpoints)
    follower = Follower(watching, prefix)
    writers = start([(member.endpoint,) for member in members.members])
    go_on(writers)
    owner = next(number for number, writer in enumerate(writers) if writer.leads)
    with fault(members, kind, members.members[owner]):
        until(lambda: any(writer.leads for writer in writers if writer is not writers[owner]), within_s=AGAIN_WITHIN_S)
        assert not writers[owner].leads
        go_on(writers)
    members.await_all()
    go_on(writers)
    assert_all_in_order(writers, follower, watching, prefix)
    assert len({writer.node_id for writer in writers if writer.reigns}) > 1


def test_a_lease_outlives_the_leader(members: EtcdMembers, connect: Connect, prefix: str) -> None:
    """The next leader gives it its time again: what hangs on it is the very same key, all the time."""
    client, ends = connect(*members.endpoints), list[str]()
    lease = EtcdLease(client, SystemClock(), ttl_s=10, margin_s=MARGIN_S, on_gone=lambda: ends.append("gone"))
    revision = client.create(f"{prefix}node", b"here", lease.lease_id)
    for _ in range(2):
        with fault(members, "kill", members.leader()):
            until(lambda: read(client, f"{prefix}node"), within_s=AGAIN_WITHIN_S)
            time.sleep(HELD_S)
        members.await_all()
    found = client.get(f"{prefix}node")
    assert found is not None
    assert (found.create_revision, found.version, ends) == (revision, 1, [])
    assert lease.valid(SystemClock().monotonic_s())
    lease.revoke()
    assert client.get(f"{prefix}node") is None


def read(client: EtcdClient, key: str) -> KeyValue | None:
    try:
        return client.get(key)
    except EtcdUnavailable:
        return None


@pytest.mark.parametrize("whom", in_full(["leader", "follower"]))
def test_who_reaches_a_member_without_a_majority_alone(
    members: EtcdMembers, connect: Connect, prefix: str, whom: str
) -> None:
    """It reads nothing old and writes nothing; its lease lapses before the others see that what hung on it is gone."""
    lost = members.leader() if whom == "leader" else members.follower()
    others = [member.endpoint for member in members.members if member is not lost]
    alone, beside, lapses = connect(lost.endpoint, timeout_s=1.0), connect(*others), list[float]()
    lease = EtcdLease(
        alone,
        SystemClock(),
        ttl_s=TTL_S,
        margin_s=MARGIN_S,
        on_lapsed=lambda: lapses.append(time.monotonic()),
    )
    alone.put(f"{prefix}node", b"here", lease.lease_id)
    start = alone.put(f"{prefix}rows/0", b"0") + 1
    watch = alone.watch(f"{prefix}rows/", start_revision=start, prefix=True)
    with fault(members, "cut", lost):
        until(lambda: put(beside, f"{prefix}rows/1"), within_s=AGAIN_WITHIN_S)
        with pytest.raises(EtcdUnavailable):
            alone.get(f"{prefix}rows/0")
        with pytest.raises((EtcdUnavailable, EtcdOutcomeUnknown)):
            alone.put(f"{prefix}rows/lost", b"")
        until(lambda: beside.get(f"{prefix}node") is None, within_s=AGAIN_WITHIN_S)
        seen_s = time.monotonic()
    assert lapses
    assert lapses[0] < seen_s
    members.await_all()
    assert put(beside, f"{prefix}rows/2")
    watched: list[KeyValue] = []
    for item in watch:
        assert isinstance(item, Changed), item
        watched += [event.kv for event in item.events]
        if watched[-1].key == f"{prefix}rows/2":
            break
    watch.close()
    lease.close()
    # What was put again, since its outcome was unknown, came twice, each at a revision of its own.
    assert [row.mod_revision for row in watched] == sorted({row.mod_revision for row in watched})
    assert {row.key for row in watched} - {f"{prefix}rows/lost"} == {f"{prefix}rows/1", f"{prefix}rows/2"}


def put(client: EtcdClient, key: str) -> bool:
    try:
        client.put(key, b"")
    except (EtcdUnavailable, EtcdOutcomeUnknown):
        return False
    return True


def test_all_members_are_killed_at_once(members: EtcdMembers, connect: Connect, start: Start, prefix: str) -> None:
    """Nothing that was confirmed is lost, and a watch goes on where it was."""
    watching = connect(*members.endpoints)
    follower = Follower(watching, prefix)
    writers = start([members.endpoints] * 3)
    go_on(writers)
    for member in members.members:
        member.kill()
    until(lambda: not any(writer.leads for writer in writers))
    for member in members.members:
        member.start()
    members.await_all()
    go_on(writers)
    assert_all_in_order(writers, follower, watching, prefix)
