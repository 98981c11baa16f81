"""A node's lease: it lapses, and is regained under the same registration or under a new one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from iscp.core.values.errors import ConfigurationError, LeaseLost, Unavailable
from iscp.core.values.members import Moment, NodeRecord
from iscp.runtime.node.lease_keeper import LAPSED_POLL_S, LeaseKeeper
from tests.fakes.clock import FakeClock
from tests.fakes.etcd import FakeEtcd, FakeLease, FakeMembership

WAIT_S = 10.0


class Membership(FakeMembership):
    """`faults` are raised by the next registrations."""

    def __init__(self, etcd: FakeEtcd) -> None:
        super().__init__(etcd)
        self.faults: list[Exception] = []

    def register(self, record: NodeRecord, on_lapsed: Callable[[], None] | None = None) -> FakeLease:
        if self.faults:
            raise self.faults.pop(0)
        return super().register(record, on_lapsed)


@dataclass
class Kept:
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[object] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.etcd = FakeEtcd(self.clock)
        self.membership = Membership(self.etcd)
        self.keeper = LeaseKeeper(
            self.membership,
            NodeRecord("n-1", 0, "here:1", pid=7),
            self.clock,
            lambda: self.told.append("lost"),
            self.told.append,
            self.broken.append,
        )

    @property
    def lease(self) -> FakeLease:
        (lease,) = self.etcd.leases.values()
        return lease

    def lapse(self) -> None:
        """etcd answers no more, for longer than the lease can be confirmed."""
        self.etcd.answers = False
        self.clock.advance(self.etcd.ttl_s)
        assert self.lease.on_lapsed is not None
        self.lease.on_lapsed()

    def until_told(self, *told: object) -> None:
        end_s = time.monotonic() + WAIT_S
        while self.told != list(told):
            assert time.monotonic() < end_s, f"told {self.told}"
            time.sleep(0.005)


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.keeper.close()
    assert made.broken == []


def test_it_registers_with_an_epoch_of_its_own(kept: Kept) -> None:
    kept.etcd.epochs["n-1"] = 4
    kept.keeper.start()
    (record,) = kept.etcd.members()
    assert (record.node_id, record.epoch, record.pid, kept.keeper.epoch) == ("n-1", 5, 7, 5)
    assert kept.keeper.record.epoch == 5
    kept.keeper.check(kept.keeper.epoch)


def test_there_is_no_right_to_write_before_the_registration(kept: Kept) -> None:
    with pytest.raises(LeaseLost):
        kept.keeper.check(kept.keeper.epoch)


def test_a_name_that_is_taken_is_refused_at_the_start(kept: Kept) -> None:
    kept.etcd.nodes["n-1"] = NodeRecord("n-1", 1, "there:1", lease_id=99)
    with pytest.raises(ConfigurationError):
        kept.keeper.start()
    assert kept.told == []


def test_the_right_ends_when_the_last_confirmation_is_too_old_whatever_was_reported(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.answers = False
    kept.clock.advance(kept.etcd.ttl_s - kept.etcd.margin_s - 0.001)
    kept.keeper.check(kept.keeper.epoch)
    kept.clock.advance(0.001)
    with pytest.raises(LeaseLost, match="etcd"):
        kept.keeper.check(kept.keeper.epoch)
    assert kept.told == []


def test_a_lapse_is_reported_at_once_and_the_end_of_it_when_etcd_answers_again_under_the_same_epoch(kept: Kept) -> None:
    kept.keeper.start()
    lease = kept.lease
    kept.lapse()
    assert kept.told == ["lost"]
    time.sleep(2 * LAPSED_POLL_S)
    assert kept.told == ["lost"]
    kept.etcd.answers = True
    kept.until_told("lost", 1)
    kept.keeper.check(kept.keeper.epoch)
    assert kept.lease is lease
    assert kept.etcd.epochs["n-1"] == 1


def test_it_lapses_and_comes_back_as_often_as_it_has_to(kept: Kept) -> None:
    kept.keeper.start()
    for turn in range(1, 3):
        kept.lapse()
        kept.etcd.answers = True
        kept.until_told(*["lost", 1] * turn)


def test_a_lease_that_is_gone_is_replaced_under_a_new_epoch(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.expire(kept.lease.lease_id)
    assert kept.told == ["lost"]
    with pytest.raises(LeaseLost):
        kept.keeper.check(kept.keeper.epoch)
    kept.until_told("lost", 2)
    assert [record.epoch for record in kept.etcd.members()] == [2]
    assert kept.keeper.epoch == 2
    kept.keeper.check(kept.keeper.epoch)


def test_what_was_begun_under_a_former_epoch_may_not_write_under_the_next(kept: Kept) -> None:
    kept.keeper.start()
    kept.keeper.check(1)
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 2)
    kept.keeper.check(2)
    with pytest.raises(LeaseLost):
        kept.keeper.check(1)


def test_the_next_epoch_is_greater_also_where_etcd_has_forgotten_the_last_one(kept: Kept) -> None:
    """It was restored from a backup that is older."""
    kept.keeper.start()
    kept.etcd.epochs.clear()
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 2)


def test_a_new_registration_is_tried_until_it_succeeds(kept: Kept) -> None:
    """Also while the key of the former life seems to be a live node's."""
    kept.keeper.start()
    kept.membership.faults = [Unavailable("no answer"), ConfigurationError("taken")]
    kept.etcd.expire(kept.lease.lease_id)
    kept.until_told("lost", 4)
    assert kept.membership.faults == []
    assert [record.epoch for record in kept.etcd.members()] == [4]


def test_a_fault_that_nobody_foresaw_is_reported(kept: Kept) -> None:
    kept.keeper.start()
    kept.membership.faults = [ZeroDivisionError()]
    kept.etcd.expire(kept.lease.lease_id)
    end_s = time.monotonic() + WAIT_S
    while not kept.broken:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert kept.told == ["lost"]
    kept.broken.clear()


def test_closing_leaves_the_cluster_and_is_no_lapse(kept: Kept) -> None:
    kept.keeper.start()
    kept.keeper.close()
    assert kept.etcd.members() == ()
    assert kept.told == []


def test_closing_while_lapsed_does_not_wait_for_etcd(kept: Kept) -> None:
    kept.keeper.start()
    kept.lapse()
    began_s = time.monotonic()
    kept.keeper.close()
    assert time.monotonic() - began_s < WAIT_S / 2
    assert kept.told == ["lost"]


def test_a_node_whose_key_is_gone_stops_and_joins_again_though_its_lease_goes_on(kept: Kept) -> None:
    """Somebody has deleted it: others are given what it runs. Or etcd's backup was made before it, and after the lease:
    then the first that is read of the members shows it."""
    kept.keeper.start()
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 1))
    kept.until_told("lost", 2)
    kept.keeper.on_members_changed((), Moment(0, 2))
    kept.keeper.check(kept.keeper.epoch)  # as of before it was registered again: an old snapshot
    kept.keeper.on_members_changed(kept.etcd.members(), Moment(0, 3))
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 4))
    with pytest.raises(LeaseLost):
        kept.keeper.check(2)
    kept.until_told("lost", 2, "lost", 3)
    kept.keeper.check(kept.keeper.epoch)
    assert [record.epoch for record in kept.etcd.members()] == [3]


def test_a_node_that_a_restored_store_does_not_have_joins_again_though_it_has_not_seen_itself(kept: Kept) -> None:
    kept.keeper.start()
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(0, 1))
    kept.until_told("lost", 2)
    kept.etcd.nodes.clear()
    kept.keeper.on_members_changed((), Moment(1, 1))
    kept.until_told("lost", 2, "lost", 3)
    kept.keeper.on_members_changed(kept.etcd.members(), Moment(2, 1))
    kept.keeper.check(kept.keeper.epoch)
    assert [record.epoch for record in kept.etcd.members()] == [3]
