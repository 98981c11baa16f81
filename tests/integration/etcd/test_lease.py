"""What a lease promises, while the server freezes, dies or forgets."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.member_keys import EtcdLease
from iscp.etcd.server import EtcdServer
from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import Clock

Connect = Callable[..., EtcdClient]
Eventually = Callable[..., float]
Signal = Callable[[EtcdServer], None]

TTL_S = 2
MARGIN_S = 0.5


class Told:
    """What a lease has reported, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lapsed_s: list[float] = []
        self.gone_s: list[float] = []

    def on_lapsed(self) -> None:
        self.lapsed_s.append(self._clock.monotonic_s())

    def on_gone(self) -> None:
        self.gone_s.append(self._clock.monotonic_s())


def leased(client: EtcdClient, clock: Clock, told: Told) -> EtcdLease:
    return EtcdLease(client, clock, ttl_s=TTL_S, margin_s=MARGIN_S, on_lapsed=told.on_lapsed, on_gone=told.on_gone)


def test_a_kept_lease_outlives_its_ttl_and_its_end_takes_the_key(
    client: EtcdClient, clock: Clock, prefix: str, eventually: Eventually
) -> None:
    told = Told(clock)
    lease = leased(client, clock, told)
    client.put(f"{prefix}a", b"", lease.lease_id)
    first_s = lease.confirmed_until_s()
    assert first_s <= clock.monotonic_s() + TTL_S - MARGIN_S
    eventually(lambda: lease.confirmed_until_s() > first_s + TTL_S)
    assert lease.valid(clock.monotonic_s())
    assert client.get(f"{prefix}a") is not None
    lease.revoke()
    assert client.get(f"{prefix}a") is None
    assert not lease.valid(clock.monotonic_s())
    assert (told.lapsed_s, told.gone_s) == ([], [])


def test_the_ttl_that_was_granted_counts(client: EtcdClient, clock: Clock) -> None:
    sent_s = clock.monotonic_s()
    lease = EtcdLease(client, clock, ttl_s=0.5, margin_s=MARGIN_S)
    assert lease.ttl_s == 2
    assert lease.confirmed_until_s() >= sent_s + 2 - MARGIN_S
    lease.revoke()


def test_closed_it_is_renewed_no_more_and_runs_out(
    client: EtcdClient, clock: Clock, prefix: str, eventually: Eventually
) -> None:
    lease = leased(client, clock, Told(clock))
    client.put(f"{prefix}a", b"", lease.lease_id)
    lease.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etcd-lease")]
    eventually(lambda: client.get(f"{prefix}a") is None, within_s=6)
    assert not lease.valid(clock.monotonic_s())


def test_while_the_server_is_frozen_the_right_to_write_ends_before_the_lease_does(
    server: EtcdServer, clock: Clock, connect: Connect, freeze: Signal, thaw: Signal, eventually: Eventually
) -> None:
    """Reported once, by itself, no later than the moment that was promised; then either confirmed again or gone."""
    client, told = connect(server.endpoint), Told(clock)
    lease = leased(client, clock, told)
    client.put("/a", b"", lease.lease_id)
    freeze(server)
    until_s = lease.confirmed_until_s()
    eventually(lambda: told.lapsed_s)
    until_s = max(until_s, lease.confirmed_until_s())  # a renewal may have been on its way
    assert until_s <= told.lapsed_s[0] < until_s + 0.3
    assert not lease.valid(clock.monotonic_s())
    threading.Event().wait(TTL_S / 2)
    thaw(server)
    eventually(lambda: lease.gone or lease.valid(clock.monotonic_s()))
    assert len(told.lapsed_s) == 1
    if lease.gone:
        eventually(lambda: client.get("/a") is None)
        assert not lease.valid(clock.monotonic_s())
    else:
        assert client.get("/a") is not None
    lease.close()


def test_it_goes_on_by_itself_after_the_server_was_killed_and_restarted(
    server: EtcdServer, clock: Clock, connect: Connect, kill_9: Signal, eventually: Eventually
) -> None:
    client, told = connect(server.endpoint), Told(clock)
    lease = leased(client, clock, told)
    client.put("/a", b"", lease.lease_id)
    kill_9(server)
    eventually(lambda: told.lapsed_s)
    assert not lease.valid(clock.monotonic_s())
    back = EtcdServer.start(server.data_dir, server.client_port, clock=clock)
    eventually(lambda: lease.valid(clock.monotonic_s()))
    assert client.get("/a") is not None
    assert (len(told.lapsed_s), told.gone_s) == (1, [])
    lease.revoke()
    back.kill()


def test_a_lease_that_somebody_revoked_is_reported_gone_once(
    client: EtcdClient, clock: Clock, eventually: Eventually
) -> None:
    told = Told(clock)
    lease = leased(client, clock, told)
    client.revoke(lease.lease_id)
    eventually(lambda: told.gone_s)
    assert lease.gone
    assert not lease.valid(clock.monotonic_s())
    assert (len(told.lapsed_s), len(told.gone_s)) == (1, 1)
    lease.close()


def test_a_margin_that_leaves_no_time_to_renew_is_refused(client: EtcdClient, clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="margin"):
        EtcdLease(client, clock, ttl_s=2, margin_s=1.5)
