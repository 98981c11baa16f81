"""Operators' overrides survive in etcd, and only the owner writes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.etcd.member_keys import EtcdMembership
from iscp.etcd.owner_keys import WRITES_AT_ONCE_MAX, EtcdCheckpoint, EtcdElection, EtcdOverrides
from iscp.model.values.errors import ConfigurationError, NotOwner
from iscp.model.values.ids import Leader, ShardId
from iscp.model.values.ring import Overrides
from iscp.ports.system import Clock
from iscp.system.threads import THREADS


@pytest.fixture
def term(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[tuple[EtcdOverrides, Leader]]:
    election = EtcdElection(client, Keys(prefix), clock, lease_ttl_s=2.0, margin_s=0.5)
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


@pytest.mark.parametrize("key", ["pin/t/x", "pin/t/0", "pin/t/4096", "pin/", "pin//2", "other/t", "cordon/\udcff"])
def test_what_somebody_else_wrote_there_hides_no_other_and_ends_no_owner(
    client: EtcdClient, prefix: str, term: Term, key: str
) -> None:
    store, leader = term
    said = Overrides(frozenset({"n1"}), frozenset({"n2"}), {ShardId("t", 2): "n3"})
    store.save(leader, Overrides(), said)
    client.put(f"{Keys(prefix).overrides}{key}", b"\xff\xfe")
    client.put(f"{Keys(prefix).overrides}pin/good/3", b"\xff")
    assert store.load() == said


@pytest.mark.parametrize("value", [b"", b"x", b"nan", b"1e999", b"\xff"])
def test_a_checkpoint_that_is_none_is_computed_again(
    client: EtcdClient, clock: Clock, prefix: str, value: bytes
) -> None:
    keys = Keys(prefix)
    client.put(keys.checkpoint, value)
    store = EtcdCheckpoint(client, EtcdElection(client, keys, clock, lease_ttl_s=2.0, margin_s=0.5), keys)
    assert store.load() == 0.0


NODE = b'{"node_id":"n1","epoch":1,"address":"a:1","pid":1,"version":"1","started_at_s":1.0}'


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"5",
        NODE.replace(b'"n1"', b'""'),
        NODE.replace(b'"n1"', b"5"),
        NODE.replace(b'"n1"', b'"\\ud800"'),
        NODE.replace(b'"epoch":1', b'"epoch":1e999'),
        NODE.replace(b'"epoch":1', b'"epoch":-1'),
        NODE.replace(b"1.0", b"NaN"),
    ],
)
def test_a_node_that_is_none_is_no_member_and_hides_no_other(
    client: EtcdClient, clock: Clock, prefix: str, value: bytes
) -> None:
    keys = Keys(prefix)
    membership = EtcdMembership(client, keys, clock, THREADS, lease_ttl_s=2.0, margin_s=0.5)
    client.put(keys.node("n1"), NODE)
    client.put(keys.node("n2"), value)
    client.put(f"{keys.revoked}n9/1", b"no lease")
    assert [record.node_id for record in membership.members()[0]] == ["n1"]
    assert membership.hold_s() == 2.5


def test_an_epoch_that_is_none_is_an_error_that_says_so(client: EtcdClient, clock: Clock, prefix: str) -> None:
    keys = Keys(prefix)
    client.put(keys.epoch("n1"), b"x")
    with pytest.raises(ConfigurationError, match="holds no epoch"):
        EtcdMembership(client, keys, clock, THREADS, lease_ttl_s=2.0, margin_s=0.5).next_epoch("n1")
