"""A lease that is renewed, and the time until which it is known to be held.

The server counts from when it handled a renewal, the client from when it sent it, which is earlier: what the client
believes ends before what the server does, whatever the network. The clock must not stand still while the machine sleeps
longer than the margin (CLOCK_BOOTTIME on Linux, where machines are suspended).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from iscp.adapters.etcd.client import EtcdClient
from iscp.core.values.errors import ConfigurationError, IscpError
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""Renewals of a lease within its TTL."""

RETRIES_PER_TTL = 20
"""Attempts within the TTL after a renewal failed; at the end of TTL - margin the node stops to write."""

CLOSE_WAIT_S = 10.0
"""How long the renewing thread is waited for when a lease is closed; then it is left to end by itself."""


class EtcdLease:
    """Renews itself in a thread of its own until closed or gone.

    `on_lapsed` is called once each time when it can no longer be confirmed (no answer for TTL - margin, or the
    server says that it is gone), `on_gone` once, when the server says so: it never comes back then. Between the two a
    renewal may still succeed, and the lease holds as if nothing had been: its keys were there all the time.
    Both come from the renewing thread and must return soon.
    """

    def __init__(
        self,
        client: EtcdClient,
        clock: Clock,
        *,
        ttl_s: float,
        margin_s: float,
        on_lapsed: Callable[[], None] | None = None,
        on_gone: Callable[[], None] | None = None,
    ) -> None:
        """Grant it and start to renew. Raises EtcdUnavailable, and ConfigurationError on a useless margin."""
        self._client = client
        self._clock = clock
        self._margin_s = margin_s
        self._on_lapsed = on_lapsed
        self._on_gone = on_gone
        sent_s = clock.monotonic_s()
        self._lease_id, self._ttl_s = client.grant(math.ceil(ttl_s))
        if not 0 <= margin_s < self._ttl_s * (1 - 1 / RENEWALS_PER_TTL):
            client.revoke(self._lease_id)
            raise ConfigurationError(
                f"a margin of {margin_s} s leaves no time between renewals of {self._ttl_s} s",
                about="etcd.margin_s",
                remedy="Choose it well below two thirds of the TTL",
            )
        self._confirmed_until_s = sent_s + self._ttl_s - margin_s
        self._lapsed = False
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease-{self._lease_id:x}", daemon=True)
        self._thread.start()

    @property
    def lease_id(self) -> int:
        return self._lease_id

    @property
    def ttl_s(self) -> int:
        """Return the time to live in seconds, as granted."""
        return self._ttl_s

    @property
    def gone(self) -> bool:
        """Return whether the server has answered that the lease no longer exists."""
        return self._gone.is_set()

    def confirmed_until_s(self) -> float:
        return self._confirmed_until_s

    def valid(self, now_s: float) -> bool:
        return now_s < self._confirmed_until_s

    def close(self) -> None:
        """Stop renewing, and let it run out."""
        self._closed.set()
        if threading.current_thread() is not self._thread:  # a callback may close it
            self._thread.join(CLOSE_WAIT_S)

    def revoke(self) -> None:
        """Stop renewing and end it now, with its keys; raises EtcdUnavailable if that does not reach etcd."""
        with self._lock:  # together, as a renewal whose answer arrives now must not make it valid again
            self._closed.set()
            self._confirmed_until_s = float("-inf")
        self.close()
        if not self.gone:
            self._client.revoke(self._lease_id)

    def try_revoke(self) -> bool:
        """Revoke the lease; return False where etcd did not answer, and the lease runs out by itself."""
        try:
            self.revoke()
        except IscpError as error:
            log.warning("etcd.lease.not_revoked", extra={"lease": self._lease_id, "reason": str(error)})
            return False
        return True

    def _run(self) -> None:
        wait_s = self._ttl_s / RENEWALS_PER_TTL
        while not self._closed.wait(wait_s):
            wait_s = self._ttl_s / (RENEWALS_PER_TTL if self._renew() else RETRIES_PER_TTL)
            now_s = self._clock.monotonic_s()
            if self._gone.is_set():
                self._report(self._on_gone)
                return
            if not self._lapsed:
                if self.valid(now_s):
                    # Whoever writes under it is to be stopped when it lapses, not at the next renewal.
                    wait_s = min(wait_s, self._confirmed_until_s - now_s)
                else:
                    self._lapse()

    def _renew(self) -> bool:
        """Renew once, not beyond the moment at which the lease must be reported as lapsed."""
        sent_s = self._clock.monotonic_s()
        timeout_s = self._ttl_s / RENEWALS_PER_TTL
        if not self._lapsed:
            timeout_s = min(timeout_s, max(self._confirmed_until_s - sent_s, self._ttl_s / RETRIES_PER_TTL))
        try:
            ttl_s = self._client.keep_alive(self._lease_id, timeout_s=timeout_s)
        except IscpError as error:
            log.warning("etcd.lease.unconfirmed", extra={"lease": self._lease_id, "reason": error.message})
            return False
        with self._lock:
            if self._closed.is_set():
                return False
            self._confirmed_until_s = sent_s + ttl_s - self._margin_s if ttl_s > 0 else float("-inf")
        if ttl_s > 0:
            self._lapsed = self._lapsed and not self.valid(self._clock.monotonic_s())
            return True
        log.warning("etcd.lease.gone", extra={"lease": self._lease_id})
        # Before the callback: whoever is woken by it first checks whether the lease is gone.
        self._gone.set()
        if not self._lapsed:
            self._lapse()
        return False

    def _lapse(self) -> None:
        self._lapsed = True
        log.warning("etcd.lease.lapsed", extra={"lease": self._lease_id})
        self._report(self._on_lapsed)

    def _report(self, callback: Callable[[], None] | None) -> None:
        if callback is None or self._closed.is_set():
            return
        try:
            callback()
        except Exception:
            log.exception("etcd.lease.callback_failed", extra={"lease": self._lease_id})
