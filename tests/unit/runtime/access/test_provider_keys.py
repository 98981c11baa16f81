"""Keys of a provider are followed: a new one is fetched soon and not too often, and old ones are not good for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.core.access.security_config import OidcConfig
from iscp.core.values.access_roles import KnownBy
from iscp.core.values.errors import IscpError, NotAuthenticated, Unavailable
from iscp.ports.access.oidc_ports import UnknownKey
from iscp.ports.system import Clock
from iscp.runtime.access.provider_keys import KEYS_VALID_S, REFETCH_PAUSE_S, ProviderKeys
from iscp.runtime.loop.threads import THREADS
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

CONFIG = OidcConfig(issuer="i", audience="a", jwks_url="https://i/keys")


@dataclass(frozen=True)
class FakeKeys:
    """A token is the id of its key."""

    key_ids: tuple[str, ...]
    clock: Clock

    def verify(self, token: str) -> Mapping[str, object]:
        if token not in self.key_ids:
            raise UnknownKey("is signed by another key", field="token")
        now_s = self.clock.now_s()
        return {"sub": "ana", "account": "acme", "role": "viewer", "iat": now_s, "exp": now_s + 60}


@dataclass
class FakeSource:
    clock: Clock
    key_ids: tuple[str, ...] = ("k1",)
    fault: Exception | None = None
    fetches: int = 0
    fetched: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def fetch(self) -> FakeKeys:
        self.fetches += 1
        self.fetched.release()
        if self.fault is not None:
            raise self.fault
        return FakeKeys(self.key_ids, self.clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def source(clock: FakeClock) -> FakeSource:
    return FakeSource(clock)


@pytest.fixture
def keys(source: FakeSource, clock: FakeClock) -> ProviderKeys:
    return ProviderKeys(source, CONFIG, "system", clock, THREADS)


def refusal(keys: ProviderKeys, token: str) -> type[IscpError]:
    with pytest.raises((NotAuthenticated, Unavailable)) as refused:
        keys.identify(token)
    return type(refused.value)


def test_who_has_a_token_of_a_known_key_is_known(keys: ProviderKeys, clock: FakeClock) -> None:
    assert keys.turn()
    found = keys.identify("k1")
    assert (found.name, found.known_by, found.account) == ("oidc:ana", KnownBy.OIDC, "acme")
    assert found.expires_at_s == clock.now_s() + 60 + CONFIG.leeway_s


def test_nothing_can_be_said_before_there_are_keys(keys: ProviderKeys, source: FakeSource) -> None:
    assert refusal(keys, "k1") is Unavailable
    source.fault = Unavailable("away")
    assert not keys.turn()
    assert refusal(keys, "k1") is Unavailable


def test_a_key_that_is_not_known_is_refused_once_that_is_certain(
    keys: ProviderKeys, source: FakeSource, clock: FakeClock
) -> None:
    keys.turn()
    assert refusal(keys, "k2") is UnknownKey
    clock.advance(REFETCH_PAUSE_S + 0.1)
    assert refusal(keys, "k2") is Unavailable  # the provider may have it since
    keys.turn()
    assert refusal(keys, "k2") is UnknownKey
    source.key_ids = ("k2",)
    clock.advance(REFETCH_PAUSE_S + 0.1)
    assert refusal(keys, "k2") is Unavailable
    keys.turn()
    assert keys.identify("k2")
    assert refusal(keys, "k1") is UnknownKey  # it was withdrawn


def test_keys_are_good_for_a_time_while_the_provider_is_away(
    keys: ProviderKeys, source: FakeSource, clock: FakeClock
) -> None:
    keys.turn()
    source.fault = Unavailable("away")
    clock.advance(KEYS_VALID_S)
    assert not keys.turn()
    assert keys.identify("k1")
    assert refusal(keys, "k2") is Unavailable  # not: nobody's
    clock.advance(0.1)
    assert refusal(keys, "k1") is Unavailable
    source.fault = None
    keys.turn()
    assert keys.identify("k1")


def known(keys: ProviderKeys, token: str) -> bool:
    try:
        keys.identify(token)
    except (NotAuthenticated, Unavailable):
        return False
    return True


def test_a_token_with_a_new_key_has_the_keys_fetched_again_but_not_too_often() -> None:
    pause_s = 0.3
    source = FakeSource(SystemClock())
    keys = ProviderKeys(source, CONFIG, "system", source.clock, THREADS, pause_s)
    began_s = time.monotonic()
    keys.start()
    try:
        until(lambda: known(keys, "k1"))
        source.key_ids = ("k2",)
        until(lambda: not known(keys, "x") and known(keys, "k2"))  # whatever else comes meanwhile
        assert not known(keys, "k1")
        assert source.fetches <= 1 + (time.monotonic() - began_s) / pause_s
    finally:
        keys.close()
    ended = source.fetches
    time.sleep(2 * pause_s)
    assert source.fetches == ended


def test_what_nobody_has_foreseen_does_not_end_the_thread(keys: ProviderKeys, source: FakeSource) -> None:
    source.fault = RuntimeError("unforeseen")
    keys.start()
    assert source.fetched.acquire(timeout=10)
    assert refusal(keys, "k1") is Unavailable
    keys.close()
