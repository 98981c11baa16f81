"""What operators say survives in etcd, and only the owner writes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.overrides import WRITES_AT_ONCE_MAX, EtcdOverrides
from iscp.coordination.placement import Overrides
from iscp.core.cluster import Leader
from iscp.core.errors import NotOwner
from iscp.core.ids import ShardId
from iscp.ports.system import Clock


@pytest.fixture
def term(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[tuple[EtcdOverrides, Leader]]:
    election = EtcdElection(client, Keys(prefix), clock, ttl_s=2.0, margin_s=0.5)
    elected, terms = threading.Event(), list[Leader]()

    def lead(leader: Leader) -> None:
        terms.append(leader)
        elected.set()

    election.campaign("n1", lead, lambda: None)
    assert elected.wait(10)
    yield EtcdOverrides(client, election, Keys(prefix)), terms[0]
    election.resign()


Term = tuple[EtcdOverrides, Leader]


def test_what_was_saved_is_loaded_and_what_was_taken_back_is_gone(term: Term) -> None:
    store, leader = term
    assert store.load() == Overrides()
    pins = {ShardId("flights"): "n1", ShardId("weather", 5): "n2"}
    said = Overrides(frozenset({"n1"}), frozenset({"n2", "n3"}), pins)
    store.save(leader, Overrides(), said)
    assert store.load() == said
    less = Overrides(frozenset(), frozenset({"n3"}), {ShardId("weather", 5): "n4"})
    store.save(leader, said, less)
    assert store.load() == less


def test_more_than_one_transaction_holds(term: Term) -> None:
    store, leader = term
    many = Overrides(pins={ShardId(f"t{n}"): "n1" for n in range(2 * WRITES_AT_ONCE_MAX + 1)})
    store.save(leader, Overrides(), many)
    assert store.load() == many


def test_another_term_writes_nothing(term: Term) -> None:
    store, leader = term
    with pytest.raises(NotOwner):
        store.save(Leader(leader.node_id, leader.revision - 1), Overrides(), Overrides(frozenset({"n1"})))
    assert store.load() == Overrides()


def test_a_key_that_nobody_knows_hides_no_other(term: Term, client: EtcdClient, prefix: str) -> None:
    store, leader = term
    store.save(leader, Overrides(), Overrides(frozenset({"n1"})))
    client.put(Keys(prefix).override("banish", "n2"), b"")
    assert store.load() == Overrides(frozenset({"n1"}))
