"""A lease counts from when the confirmed renewal was sent, not from when it was answered."""

from __future__ import annotations

import threading

from iscp.adapters.etcd.etcd_errors import EtcdUnavailable
from iscp.adapters.etcd.lease import EtcdLease

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
