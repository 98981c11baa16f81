"""The registered nodes as one process reads them: in order, across a restored store and a lost connection.

A lease counts from when the confirmed renewal was sent, not from when it was answered.
"""

from __future__ import annotations

import threading

import pytest

from iscp.etcd.channels import EtcdUnavailable
from iscp.etcd.keys import EventType, Keys, KeyValue, Listing, WatchEvent, encoded
from iscp.etcd.member_keys import EtcdLease, MemberReads
from iscp.etcd.watch import Watch
from iscp.model.values.ids import Moment, NodeRecord

KEYS = Keys("/c")


class Etcd:
    """`lives` by node id: epoch and lease of each that is registered; `epochs`: what is in the nodes' epoch keys."""

    def __init__(self) -> None:
        self.revision, self.store_id = 10, 7
        self.lives: dict[str, tuple[int, int]] = {}
        self.epochs: dict[str, str] = {}

    def register(self, node_id: str, epoch: int, lease_id: int) -> None:
        self.lives[node_id] = epoch, lease_id
        self.epochs[node_id] = str(epoch)
        self.revision += 2

    def get(self, key: str) -> KeyValue | None:
        found = {KEYS.epoch(node_id): text for node_id, text in self.epochs.items()}.get(key)
        return KeyValue(key, found.encode(), 1, 1, 1, 0) if found is not None else None

    def list_prefix(self, prefix: str) -> Listing:
        assert prefix == KEYS.nodes
        items = (
            KeyValue(KEYS.node(node_id), encoded(NodeRecord(node_id, epoch, "here:1")), 1, 1, 1, lease_id)
            for node_id, (epoch, lease_id) in self.lives.items()
        )
        return Listing(self.revision, tuple(items), self.store_id)

    def watch(self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True) -> Watch:
        raise AssertionError("nothing is followed here")


@pytest.fixture
def etcd() -> Etcd:
    """Two nodes are registered in it."""
    made = Etcd()
    made.register("a", 3, 30)
    made.register("b", 5, 50)
    return made


@pytest.fixture
def reads(etcd: Etcd) -> MemberReads:
    """Has read them."""
    made = MemberReads(etcd, KEYS)
    assert made.list()[1] == Moment(0, 14)
    return made


def event(node_id: str, revision: int) -> WatchEvent:
    """The end of this node."""
    return WatchEvent(EventType.DELETE, KeyValue(KEYS.node(node_id), b"", 0, revision, 0, 0))


def moment_of(reads: MemberReads) -> Moment:
    _, moment = reads.list()
    return moment


def test_who_has_gone_or_come_back_under_a_new_epoch_says_nothing_of_the_store(etcd: Etcd, reads: MemberReads) -> None:
    del etcd.lives["a"]
    etcd.register("b", 6, 60)
    etcd.register("c", 1, 10)
    assert moment_of(reads) == Moment(0, 18)


def test_a_store_whose_revision_goes_back_was_restored_once(etcd: Etcd, reads: MemberReads) -> None:
    etcd.revision = 4
    assert moment_of(reads) == Moment(1, 4)
    assert moment_of(reads) == Moment(1, 4)


@pytest.mark.parametrize("left", [{}, {"b": "4"}, {"b": "spoilt"}])
def test_a_store_that_has_forgotten_an_epoch_was_restored_whatever_its_revision(
    etcd: Etcd, reads: MemberReads, left: dict[str, str]
) -> None:
    del etcd.lives["b"]
    etcd.epochs, etcd.revision = {"a": "3", **left}, 100
    assert moment_of(reads) == Moment(1, 100)
    assert moment_of(reads) == Moment(1, 100), "what was known of the store before counts no more"


def test_a_store_that_gives_an_epoch_to_another_registration_was_restored(etcd: Etcd, reads: MemberReads) -> None:
    etcd.register("b", 5, 51)
    assert moment_of(reads) == Moment(1, 16)


def test_a_store_of_another_cluster_is_another_store(etcd: Etcd, reads: MemberReads) -> None:
    etcd.store_id = 8
    assert moment_of(reads) == Moment(1, 14)


def test_what_is_read_after_sight_was_lost_says_so(etcd: Etcd, reads: MemberReads) -> None:
    reads.moments.lose_sight()
    assert moment_of(reads) == Moment(0, 14, 1)
    assert reads.follow([event("a", 15), event("b", 15)], Moment(0, 14, 1)) == ((), Moment(0, 15, 1))


def test_a_watch_undoes_nothing_that_a_later_list_has_shown(etcd: Etcd, reads: MemberReads) -> None:
    """It has lost the new life of `b`, or brings what came before that late."""
    etcd.register("b", 6, 60)
    etcd.register("c", 1, 10)
    listed, moment = reads.list()
    assert ([each.epoch for each in listed], moment) == ([3, 6, 1], Moment(0, 18))
    assert reads.follow([event("b", 16)], Moment(0, 14)) == (listed, moment)
    assert reads.follow([event("c", 19)], Moment(0, 14)) == (listed[:2], Moment(0, 19))


def test_what_a_watch_has_lost_is_known_with_the_next_list(etcd: Etcd, reads: MemberReads) -> None:
    etcd.register("c", 1, 10)
    del etcd.lives["a"], etcd.lives["b"]
    etcd.revision = 18
    followed = reads.follow([event("b", 18)], Moment(0, 14))
    assert followed is not None
    assert [each.node_id for each in followed[0]] == ["a"]
    assert [each.node_id for each in reads.list()[0]] == ["c"]


def test_a_list_that_was_overtaken_by_the_find_of_a_restored_store_is_read_again(
    etcd: Etcd, reads: MemberReads
) -> None:
    before = reads.moments.latest
    etcd.revision = 4
    assert moment_of(reads) == Moment(1, 4)
    assert reads.moments.read_at(before, 20) is None
    assert reads.follow([event("a", 20)], Moment(0, 14)) is None, "of a watch from before"


TTL_S = 1
MARGIN_S = 0.25
ANSWER_S = 0.5


class HandClock:
    def __init__(self) -> None:
        self.s = 100.0

    def now_s(self) -> float:
        return self.s

    def monotonic_s(self) -> float:
        return self.s


class SlowClient:
    """Each answer takes ANSWER_S of the clock; `script` says what renewals give, None being no answer."""

    def __init__(self, clock: HandClock, *script: int | None) -> None:
        self._clock = clock
        self._script = iter(script)
        self.renewed = threading.Event()

    def grant(self, ttl_s: int) -> tuple[int, int]:
        self._clock.s += ANSWER_S
        return 7, ttl_s

    def keep_alive(self, lease_id: int, *, timeout_s: float) -> int:
        assert lease_id == 7
        self._clock.s += ANSWER_S
        answer = next(self._script, None)
        if answer is None:
            self.renewed.set()
            raise EtcdUnavailable("no answer")
        return answer

    def revoke(self, lease_id: int) -> None:
        assert lease_id == 7


def leased(client: SlowClient, clock: HandClock, lapsed: threading.Event) -> EtcdLease:
    return EtcdLease(client, clock, ttl_s=TTL_S, margin_s=MARGIN_S, on_lapsed=lapsed.set)  # type: ignore[arg-type]


def test_it_counts_from_when_the_confirmed_renewal_was_sent() -> None:
    clock, lapsed = HandClock(), threading.Event()
    client = SlowClient(clock, TTL_S)
    lease = leased(client, clock, lapsed)
    assert lease.confirmed_until_s() == 100.0 + TTL_S - MARGIN_S
    assert client.renewed.wait(5)
    # Sent at 100.5, answered at 101.0; the next one, sent then, was not answered and counts for nothing.
    assert lease.confirmed_until_s() == 100.5 + TTL_S - MARGIN_S
    assert lapsed.wait(5)
    assert not lease.valid(clock.s)
    lease.close()


def test_an_answer_that_comes_too_late_confirms_nothing_that_is_still_ahead() -> None:
    clock, lapsed = HandClock(), threading.Event()
    client = SlowClient(clock, TTL_S)
    lease = leased(client, clock, lapsed)
    clock.s += 10 * TTL_S  # this machine stood still
    assert not lease.valid(clock.s)
    lease.revoke()
    assert not lease.valid(0.0)
    assert not lapsed.is_set()


def test_a_lease_that_the_server_does_not_know_is_gone_at_once() -> None:
    clock, lapsed = HandClock(), threading.Event()
    lease = leased(SlowClient(clock, 0), clock, lapsed)
    assert lapsed.wait(5)
    assert lease.gone
    assert not lease.valid(clock.s - 100)
    lease.close()
