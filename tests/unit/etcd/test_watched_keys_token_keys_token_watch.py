"""A watch of tokens that is silent though tokens have changed: it is noticed, and all is read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from iscp.etcd.keys import Keys, KeyValue, Listing, WatchItem
from iscp.etcd.watched_keys import BEHIND_MAX_S, CONFIRM_S, TokenKeys, TokenWatch, value_of
from iscp.model.access.authorization import TokenRecord
from iscp.model.access.service_table import Role
from iscp.server.access.known_callers import TOKENS_STALE_MAX_S
from iscp.system.threads import THREADS, SystemClock
from tests.fakes.waiting import until

KEYS = Keys("/c")
TOKENS = TokenKeys(KEYS.access)
RECORD = TokenRecord("0123456789ab", "a" * 64, "acme", Role.EDITOR, 0.0, 4e9)


class Silent:
    """A watch whose connection hangs."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[WatchItem]:
        self.closed.wait(30)
        return iter(())

    def close(self) -> None:
        self.closed.set()


class Etcd:
    """Answers reads; its watches bring nothing."""

    def __init__(self) -> None:
        self.revision, self.watches = 10, list[Silent]()
        self.items = {TOKENS.token(RECORD.token_id): self._kv(TOKENS.token(RECORD.token_id), value_of(RECORD))}

    def _kv(self, key: str, value: bytes) -> KeyValue:
        return KeyValue(key, value, self.revision, self.revision, 1, 0)

    def revoke(self) -> None:
        self.revision += 1
        self.items = {TOKENS.head: self._kv(TOKENS.head, b"1")}

    def get(self, key: str) -> KeyValue | None:
        return self.items.get(key)

    def list_prefix(self, prefix: str) -> Listing:
        return Listing(self.revision, tuple(self.items.values()))

    def watch(self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True) -> Silent:
        self.watches.append(Silent())
        return self.watches[-1]


def test_a_silent_watch_is_noticed_by_the_head_and_all_is_read_again() -> None:
    etcd = Etcd()
    watch = TokenWatch(etcd, KEYS, SystemClock(), THREADS)
    watch.start()
    until(lambda: watch.book.holds(RECORD.token_id, 1.0), within_s=5.0)
    etcd.revoke()
    revoked_s = time.monotonic()
    until(lambda: not watch.book.holds(RECORD.token_id, 1.0), within_s=10.0)
    assert time.monotonic() - revoked_s < BEHIND_MAX_S + 2 * CONFIRM_S
    assert BEHIND_MAX_S + 2 * CONFIRM_S <= TOKENS_STALE_MAX_S
    assert len(etcd.watches) == 2
    watch.close()


def test_what_was_confirmed_before_a_change_is_not_confirmed_after_it() -> None:
    """Age counts from the last read that was not behind: a revocation is in force when it is too great."""
    etcd = Etcd()
    watch = TokenWatch(etcd, KEYS, SystemClock(), THREADS)
    watch.start()
    until(lambda: watch.age_s < CONFIRM_S, within_s=5.0)
    etcd.revoke()
    until(lambda: watch.age_s > 1.5 * CONFIRM_S or len(etcd.watches) > 1, within_s=5.0)
    assert len(etcd.watches) == 1  # it is not certain by then, and nothing else has changed
    watch.close()


def test_tokens_are_kept_as_they_are_read() -> None:
    kv = KeyValue(TOKENS.token(RECORD.token_id), value_of(RECORD), 1, 1, 1, 0)
    assert TOKENS.read_token(kv) == RECORD
    assert TOKENS.read_token(replace(kv, key=TOKENS.head)) is None
