"""The calls of the etcd client, and what they raise, against a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.etcd.channels import (
    EtcdCompactedError,
    EtcdLeaseGoneError,
    EtcdOutcomeUnknown,
    EtcdRefusedError,
    EtcdUnavailable,
)
from iscp.etcd.client import LIST_PAGE_KEYS, EtcdClient
from iscp.etcd.keys import Compare, Delete, EtcdSettings, Get, Put, Relation, Target
from iscp.etcd.server import EtcdServer
from iscp.ports.system import Clock
from tests.fakes.etcd_proxy import AnswerLosingProxy


def test_a_key_has_the_revisions_of_its_creation_and_last_change(client: EtcdClient, prefix: str) -> None:
    created = client.put(f"{prefix}a", b"1")
    changed = client.put(f"{prefix}a", b"2")
    found = client.get(f"{prefix}a")
    assert found is not None
    assert (found.value, found.create_revision, found.mod_revision, found.version) == (b"2", created, changed, 2)
    assert client.delete(f"{prefix}a") == 1
    assert client.get(f"{prefix}a") is None


def test_a_listing_of_several_pages_is_of_one_revision_and_sorted(client: EtcdClient, prefix: str) -> None:
    keys = [f"{prefix}{number:05d}" for number in range(LIST_PAGE_KEYS + 5)]
    for start in range(0, len(keys), 100):
        client.txn((), tuple(Put(key, b"") for key in keys[start : start + 100]))
    client.put(f"{prefix[:-1]}0", b"not below the prefix")
    listing = client.list_prefix(prefix)
    assert [kv.key for kv in listing.items] == keys
    assert listing.revision >= max(kv.mod_revision for kv in listing.items)


@pytest.mark.parametrize(
    ("target", "operand", "relation", "holds"),
    [
        (Target.VALUE, b"v", Relation.EQUAL, True),
        (Target.VALUE, b"w", Relation.EQUAL, False),
        (Target.VALUE, b"w", Relation.NOT_EQUAL, True),
        (Target.VERSION, 1, Relation.EQUAL, True),
        (Target.VERSION, 0, Relation.GREATER, True),
        (Target.CREATE, 0, Relation.EQUAL, False),
        (Target.MOD, 1 << 60, Relation.LESS, True),
        (Target.LEASE, 0, Relation.EQUAL, True),
    ],
)
def test_a_transaction_takes_the_branch_that_its_comparison_says(
    client: EtcdClient, prefix: str, target: Target, operand: int | bytes, relation: Relation, holds: bool
) -> None:
    key = f"{prefix}a"
    client.put(key, b"v")
    result = client.txn(
        (Compare(key, target, operand, relation),),
        (Put(f"{prefix}yes", b""), Get(prefix, prefix=True)),
        (Put(f"{prefix}no", b""), Get(key)),
    )
    assert result.succeeded is holds
    assert [kv.key for kv in result.results[1]] == ([key, f"{prefix}yes"] if holds else [key])


def test_a_key_is_created_once_and_deleted_in_a_transaction(client: EtcdClient, prefix: str) -> None:
    revision = client.create(f"{prefix}a", b"1")
    assert revision is not None
    assert client.create(f"{prefix}a", b"2") is None
    assert client.txn((Compare.created_at(f"{prefix}a", revision),), (Delete(f"{prefix}a"),)).succeeded
    assert client.create(f"{prefix}a", b"3") not in (None, revision)


def test_a_lease_of_one_second_is_granted_as_two_and_takes_its_keys_along(client: EtcdClient, prefix: str) -> None:
    lease_id, ttl_s = client.grant(1)
    assert ttl_s == 2
    client.put(f"{prefix}a", b"", lease_id)
    assert client.keep_alive(lease_id) == 2
    assert 0 <= client.time_to_live(lease_id) <= 2
    client.revoke(lease_id)
    assert client.get(f"{prefix}a") is None
    assert client.keep_alive(lease_id) == 0
    assert client.time_to_live(lease_id) == -1
    client.revoke(lease_id)
    with pytest.raises(EtcdLeaseGoneError):
        client.put(f"{prefix}a", b"", lease_id)


def test_refusals_are_distinguished(client: EtcdClient, server: EtcdServer, connect: Callable[..., EtcdClient]) -> None:
    with pytest.raises(EtcdRefusedError, match="key is not provided"):
        client.put("", b"")
    own = connect(server.endpoint)
    revision = [own.put("/k", b"") for _ in range(3)][-1]
    own.compact(revision)
    with pytest.raises(EtcdCompactedError):
        own.compact(revision - 1)


def test_a_dead_first_endpoint_delays_neither_reads_nor_writes(
    shared_server: EtcdServer,
    connect: Callable[..., EtcdClient],
    prefix: str,
    eventually: Callable[..., float],
) -> None:
    """Nothing listens on the first: what could not be sent is sent to the next, a write as well."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        client = connect(dead, shared_server.endpoint)
        took_s = eventually(lambda: client.put(f"{prefix}a", b"1"))
        assert took_s < 2
        assert client.get(f"{prefix}a") is not None


def test_an_endpoint_that_accepts_and_never_answers_is_left(
    shared_server: EtcdServer, connect: Callable[..., EtcdClient], prefix: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = connect(f"127.0.0.1:{mute.getsockname()[1]}", shared_server.endpoint)
        client.put(f"{prefix}a", b"1")
        assert client.get(f"{prefix}a") is not None


@pytest.mark.parametrize("cut", [False, True])
def test_a_write_whose_answer_is_lost_has_an_unknown_outcome_and_is_not_repeated(
    shared_server: EtcdServer,
    connect: Callable[..., EtcdClient],
    eventually: Callable[..., float],
    prefix: str,
    cut: bool,
) -> None:
    """The server has carried it out, once: by a deadline or a broken connection the client cannot know."""
    key, witness = f"{prefix}{cut}", connect(shared_server.endpoint)
    with AnswerLosingProxy(shared_server.client_port) as proxy, ThreadPoolExecutor(1) as pool:
        client = connect(proxy.endpoint, timeout_s=2.0)
        client.put(key, b"before")
        proxy.lose_answers()
        written = pool.submit(client.put, key, b"after")
        eventually(lambda: (kv := witness.get(key)) and kv.value == b"after")
        if cut:
            proxy.cut()
        with pytest.raises(EtcdOutcomeUnknown):
            written.result()
        found = witness.get(key)
        assert found is not None
        assert found.version == 2
        proxy.pass_answers()
        assert connect(proxy.endpoint).get(key) == found


def test_a_write_that_could_not_be_sent_is_said_to_have_not_happened(
    server: EtcdServer, connect: Callable[..., EtcdClient]
) -> None:
    client = connect(server.endpoint, timeout_s=0.5)
    server.kill()
    with pytest.raises(EtcdUnavailable):
        client.put("/k", b"")


def test_a_closed_client_refuses_and_leaves_no_thread(shared_server: EtcdServer, clock: Clock) -> None:
    before = set(threading.enumerate())
    client = EtcdClient(EtcdSettings((shared_server.endpoint,)), clock)
    assert client.status().version.startswith("3.")
    watch = client.watch("/none", start_revision=1)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(watch))
    reader.start()
    client.close()
    reader.join(5)
    assert not reader.is_alive()
    with pytest.raises(EtcdUnavailable):
        client.get("/k")
    for thread in set(threading.enumerate()) - before:
        thread.join(2)
    assert set(threading.enumerate()) <= before
