"""Tokens in a real etcd: made, revoked, followed by nodes, and good for nobody once it is not certain that they are."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.etcd.server import EtcdServer
from iscp.etcd.watched_keys import CONFIRM_S, EtcdTokens, TokenWatch
from iscp.model.access.authorization import ENDED_RETAINED_S, TokenRecord, digest_of, draw_token, id_of
from iscp.model.access.service_table import Credentials, Role
from iscp.model.values.errors import InvalidRequest, NotAuthenticated, Unavailable
from iscp.server.access.known_callers import TOKENS_STALE_MAX_S, KnownCallers
from iscp.system.threads import THREADS, SystemClock

Follow = Callable[[EtcdClient, Keys], TokenWatch]


@pytest.fixture
def follow(clock: SystemClock) -> Iterator[Follow]:
    """Watches that are closed when the test ends."""
    with ExitStack() as stack:

        def begin(client: EtcdClient, keys: Keys) -> TokenWatch:
            watch = TokenWatch(client, keys, clock, THREADS)
            watch.start()
            stack.callback(watch.close)
            return watch

        yield begin


def record_of(token: str, account: str = "acme") -> TokenRecord:
    now_s = time.time()
    return TokenRecord(id_of(token) or "", digest_of(token), account, Role.EDITOR, now_s, now_s + 60, "root/x", "n")


def make(store: EtcdTokens, account: str = "acme") -> str:
    token = draw_token(secrets.token_hex)
    assert store.create(record_of(token, account))
    return token


def callers_of(watch: TokenWatch, clock: SystemClock) -> KnownCallers:
    return KnownCallers({}, "system", "", watch, clock)


def test_a_token_is_kept_as_a_hash_and_made_once(client: EtcdClient, prefix: str) -> None:
    store, keys = EtcdTokens(client, Keys(prefix)), Keys(prefix)
    token = make(store)
    assert not store.create(record_of(token))
    (record,) = store.records()
    assert (record.token_id, record.digest, record.account, record.role) == (
        id_of(token),
        digest_of(token),
        "acme",
        Role.EDITOR,
    )
    kept = b"".join(kv.value for kv in client.list_prefix(keys.access).items)
    assert token.removeprefix("iscp_").encode() not in kept
    assert json.loads(client.list_prefix(f"{keys.access}tokens/").items[0].value)["format"] == 1


def test_a_token_is_revoked_by_its_account_alone(client: EtcdClient, prefix: str) -> None:
    store = EtcdTokens(client, Keys(prefix))
    ours, others = make(store), make(store, "other")
    assert not store.revoke(id_of(others) or "", "acme")
    assert not store.revoke("0" * 12, "acme")
    assert store.revoke(id_of(ours) or "", "acme")
    assert not store.revoke(id_of(ours) or "", "acme")
    assert store.revoke(id_of(others) or "", "")
    assert store.records() == []


def test_one_account_cannot_use_up_the_tokens_of_others(client: EtcdClient, prefix: str) -> None:
    store = EtcdTokens(client, Keys(prefix), "system", tokens_max=4, account_max=2)
    for _ in range(2):
        make(store)
    with pytest.raises(InvalidRequest, match="the account has 2 tokens, and may have 2"):
        make(store)
    make(store, "other")
    for _ in range(3):
        make(store, "system")  # beyond the bound of an account, and a few beyond that of all
    with pytest.raises(InvalidRequest) as full:
        make(store, "third")
    assert not any(digit in str(full.value) for digit in "0123456789")  # nothing of what others have


def test_what_has_ended_is_deleted_when_a_token_is_made(client: EtcdClient, prefix: str) -> None:
    store = EtcdTokens(client, Keys(prefix), account_max=2)
    valid, others = make(store), make(store, "other")
    ended = record_of(draw_token(secrets.token_hex))
    past_s = time.time() - ENDED_RETAINED_S - 60
    assert store.create(replace(ended, created_at_s=past_s - 1, expires_at_s=past_s))
    assert len(store.records()) == 3
    made = make(store)  # there is room for it, as another one goes
    assert {record.token_id for record in store.records()} == {id_of(each) for each in (valid, others, made)}


def test_a_node_knows_a_token_at_once_and_of_its_end_within_seconds(
    client: EtcdClient, prefix: str, clock: SystemClock, follow: Follow, eventually: Callable[..., float]
) -> None:
    store, watch = EtcdTokens(client, Keys(prefix)), follow(client, Keys(prefix))
    callers, token = callers_of(watch, clock), make(store)
    eventually(lambda: watch.book.holds(id_of(token) or "", time.time()))
    principal = callers.identify(Credentials(token))
    assert principal is not None
    assert (principal.account, principal.role, principal.name) == ("acme", Role.EDITOR, id_of(token))
    assert callers.still_valid(principal)
    store.revoke(principal.name, "acme")
    began_s = time.monotonic()
    eventually(lambda: not callers.still_valid(principal))
    assert time.monotonic() - began_s < TOKENS_STALE_MAX_S
    with pytest.raises(NotAuthenticated):
        callers.identify(Credentials(token))


def test_what_is_not_certain_lets_nobody_in(
    server: EtcdServer,
    connect: Callable[..., EtcdClient],
    clock: SystemClock,
    follow: Follow,
    freeze: Callable[[EtcdServer], None],
    thaw: Callable[[EtcdServer], None],
    eventually: Callable[..., float],
) -> None:
    """A node that etcd does not answer cannot know of a revocation: it refuses all tokens, and takes them again."""
    client, keys = connect(server.endpoint, timeout_s=1.0), Keys("/c")
    token = make(EtcdTokens(client, keys))
    watch = follow(client, keys)
    callers = callers_of(watch, clock)
    eventually(lambda: watch.book.holds(id_of(token) or "", time.time()))
    freeze(server)
    began_s = time.monotonic()
    try:
        eventually(lambda: watch.age_s > TOKENS_STALE_MAX_S)
        assert time.monotonic() - began_s <= TOKENS_STALE_MAX_S + CONFIRM_S
        with pytest.raises(Unavailable, match="authorization cannot be checked"):
            callers.identify(Credentials(token))
    finally:
        thaw(server)
    eventually(lambda: watch.age_s < TOKENS_STALE_MAX_S)
    assert callers.identify(Credentials(token)) is not None


def test_before_anything_is_known_nobody_is_let_in(client: EtcdClient, prefix: str, clock: SystemClock) -> None:
    watch = TokenWatch(client, Keys(prefix), clock, THREADS)
    with pytest.raises(Unavailable):
        callers_of(watch, clock).identify(Credentials(draw_token(secrets.token_hex)))


def test_tokens_are_followed_over_a_restart_and_a_compaction(
    server: EtcdServer,
    connect: Callable[..., EtcdClient],
    clock: SystemClock,
    follow: Follow,
    kill_9: Callable[[EtcdServer], None],
    eventually: Callable[..., float],
) -> None:
    client, keys = connect(server.endpoint, timeout_s=2.0), Keys("/c")
    store, watch = EtcdTokens(client, keys), follow(client, keys)
    first = make(store)
    kill_9(server)
    again = EtcdServer.start(server.data_dir, server.client_port, clock=clock)
    try:
        second = make(store)
        client.compact(client.list_prefix("/c").revision)
        third = make(store)
        store.revoke(id_of(first) or "", "")
        now_s = time.time()
        kept = {id_of(second): True, id_of(third): True, id_of(first): False}
        eventually(lambda: {each: watch.book.holds(each or "", now_s) for each in kept} == kept)
        eventually(lambda: watch.age_s < TOKENS_STALE_MAX_S)
    finally:
        again.kill()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"format": 2, "digest": "' + b"a" * 64 + b'"}',
        b'{"format": 1, "digest": "short", "account": "a", "role": "admin", "created_at_s": 0, "expires_at_s": 9e9, '
        b'"created_by": "", "note": ""}',
        b'{"format": 1, "digest": "' + b"a" * 64 + b'", "account": "a", "role": "king", "created_at_s": 0, '
        b'"expires_at_s": 9e9, "created_by": "", "note": ""}',
    ],
)
def test_what_cannot_be_read_lets_nobody_in_and_stops_nothing(
    client: EtcdClient, prefix: str, clock: SystemClock, follow: Follow, eventually: Callable[..., float], value: bytes
) -> None:
    keys = Keys(prefix)
    client.put(f"{keys.access}tokens/0123456789ab", value)
    watch, store = follow(client, keys), EtcdTokens(client, keys)
    token = make(store)
    eventually(lambda: watch.book.holds(id_of(token) or "", time.time()))
    assert len(watch.book) == 1
    assert not store.revoke("0123456789ab", "acme")
    assert store.revoke("0123456789ab", "")
    client.delete(keys.access, prefix=True)
