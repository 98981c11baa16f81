"""The fake etcd keeps the promises of the ports that tests rely on."""

from __future__ import annotations

import pytest

from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import Leader, NodeRecord
from tests.fakes.etcd import FakeElection, FakeEtcd, FakeMembership


class HandClock:
    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s

    def monotonic_s(self) -> float:
        return self.s


def test_members_come_and_go_with_their_leases() -> None:
    clock = HandClock()
    etcd = FakeEtcd(clock)
    a, b, seen, lapses = FakeMembership(etcd), FakeMembership(etcd), [], []
    stop = b.watch(lambda members, _: seen.append([member.node_id for member in members]))
    lease = a.register(NodeRecord("a", a.next_epoch("a"), "h:1"), lambda: lapses.append(lease.gone))
    with pytest.raises(ConfigurationError):
        b.register(NodeRecord("a", b.next_epoch("a"), "h:2"))
    assert lease.confirmed_until_s() == 8.0
    etcd.answers, clock.s = False, 5.0
    assert lease.confirmed_until_s() == 8.0
    b.revoke(b.members()[0][0], lambda key, value, lease_id: None)
    assert lease.confirmed_until_s() == float("-inf")
    stop()
    assert lapses == [True]
    assert seen == [[], ["a"], []]


def test_one_leads_at_a_time_and_terms_rise() -> None:
    etcd, told = FakeEtcd(HandClock()), list[Leader | str]()
    a, b = FakeElection(etcd), FakeElection(etcd)
    assert a.leader() is None
    a.campaign("a", told.append, lambda: told.append("a lost"))
    b.campaign("b", told.append, lambda: told.append("b lost"))
    assert b.leader() == Leader("a", 1)
    etcd.depose()
    b.resign()
    assert told == [Leader("a", 1), "a lost", Leader("b", 2), "b lost", Leader("a", 3)]
