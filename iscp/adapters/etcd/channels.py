"""The connections to etcd's endpoints: which one is used, tokens, and what is tried again.

Calls that may be repeated without harm (reads, keep-alives, grants) go from endpoint to endpoint until their deadline.
A write is repeated only where the server cannot have seen it; otherwise it ends as EtcdOutcomeUnknown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from iscp.adapters.etcd import descriptors as pb
from iscp.adapters.etcd.etcd_errors import EtcdFault, EtcdRefusedError, EtcdUnavailable, fault_of, translated
from iscp.adapters.etcd.values import EtcdSettings
from iscp.adapters.system.process_fork import OwnProcess
from iscp.adapters.tls.certificate_watch import CertificateWatch
from iscp.adapters.tls.endpoint import Tls
from iscp.adapters.tls.renewing_channel import secure_channel
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.errors import ConfigurationError
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.05
"""Pause after no member of etcd answered; it doubles up to PAUSE_MAX_S."""

PAUSE_MAX_S = 0.2
"""Longest pause before the members of etcd are tried again, within the request's timeout."""

ATTEMPT_MIN_S = 0.5
"""Least time that a member of etcd is given to answer a read, before the next one is tried."""

CONNECT_MAX_MS = 1_500
"""How long a member of etcd may take to accept a connection; then the next one is tried."""

KEEPALIVE_MS = 10_000
"""Pings to a member of etcd come so often; it refuses them faster than every 5 s. A frozen or unreachable member is
noticed after this and KEEPALIVE_TIMEOUT_MS.
"""

KEEPALIVE_TIMEOUT_MS = 4_000
"""How long a member of etcd may leave a ping unanswered; then its connection is closed, and another member is tried."""

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MAX_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Otherwise a ping that another part of gRPC has sent is waited for, for a minute, before the keepalive's own.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
Metadata = tuple[tuple[str, str], ...]
# A member that has no leader is to refuse instead of waiting: the call then goes to another one.
_ANONYMOUS: Metadata = (("hasleader", "true"),)

Attempt = Callable[["Endpoint", float, Metadata], Any]


class Endpoint:
    """One server's address and the channel to it."""

    def __init__(self, address: str, tls: TlsSource | None) -> None:
        scheme, _, rest = address.rpartition("://")
        self.address = rest.rstrip("/")
        tls = tls if tls or scheme != "https" else Tls()
        if tls is None or scheme == "http":
            self._channel = grpc.insecure_channel(self.address, _OPTIONS)
        else:
            self._channel = secure_channel(grpc, self.address, tls, _OPTIONS)

    def unary(self, path: str) -> Any:
        return self._channel.unary_unary(path, _serialize, pb.ANSWERS[path].FromString)

    def stream(self, path: str) -> Any:
        return self._channel.stream_stream(path, _serialize, pb.ANSWERS[path].FromString)

    def close(self) -> None:
        self._channel.close()


class Channels:
    """Calls etcd through whichever endpoint answers. Safe to use from several threads."""

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        if not settings.endpoints:
            raise ConfigurationError(
                "no endpoint is given", about="etcd.endpoints", remedy="Name at least one host:port"
            )
        self._settings = settings
        self._clock = clock
        tls = CertificateWatch(settings.tls, "etcd.") if settings.tls else None
        self._endpoints = [Endpoint(address, tls) for address in settings.endpoints]
        self._current = 0
        self._token: str | None = None
        # Lock order: `_token_lock`, held during a call to etcd, before `_lock`, held for an instant.
        self._lock = threading.Lock()
        self._token_lock = threading.Lock()
        self._closed = threading.Event()
        self._own = OwnProcess("etcd")
        self.watch_events = 0

    def count_events(self, events: int) -> None:
        """Count what a watch has brought, in `watch_events`."""
        with self._lock:
            self.watch_events += events

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        for endpoint in self._endpoints if self._own.is_this else ():  # in a fork it would wait for threads of another
            endpoint.close()

    def pause(self, pause_s: float) -> None:
        """Wait, unless closed meanwhile."""
        self._closed.wait(pause_s)

    def unary(self, path: str, request: Any, *, writes: bool, timeout_s: float | None = None) -> Any:
        def attempt(endpoint: Endpoint, attempt_s: float, metadata: Metadata) -> Any:
            return endpoint.unary(path)(request, timeout=attempt_s, metadata=metadata)

        return self._call(attempt, writes=writes, timeout_s=timeout_s)

    def stream_once(self, path: str, request: Any, *, timeout_s: float | None = None) -> Any:
        """Send one request over a call that etcd has as a stream, and return its one answer; repeatable calls only."""

        def attempt(endpoint: Endpoint, attempt_s: float, metadata: Metadata) -> Any:
            call = endpoint.stream(path)(iter((request,)), timeout=attempt_s, metadata=metadata)
            try:
                return next(call)
            except StopIteration:
                raise EtcdUnavailable("the stream ended without an answer") from None
            finally:
                call.cancel()

        return self._call(attempt, writes=False, timeout_s=timeout_s)

    def open_stream(self, path: str, requests: Iterator[Any], *, timeout_s: float) -> tuple[Endpoint, Any]:
        """Start a stream, which lasts for `timeout_s`; raises EtcdUnavailable, EtcdDenied before anything is sent."""
        self._refuse_if_closed()
        endpoint = self._pick()
        metadata = self._metadata(self._settings.timeout_s)
        try:
            return endpoint, endpoint.stream(path)(requests, timeout=timeout_s, metadata=metadata)
        except ValueError as error:
            self._refuse_if_closed(error)
            raise

    def leave(self, endpoint: Endpoint) -> None:
        """Use another endpoint from now on, if this is still the one in use."""
        with self._lock:
            # Calls that fail at one endpoint together are to move on by one, not by one each.
            if self._endpoints[self._current] is endpoint:
                self._current = (self._current + 1) % len(self._endpoints)

    def drop_token(self) -> None:
        # Without `_token_lock`, which may be held for a whole call; at worst one token more is fetched.
        self._token = None

    def _pick(self) -> Endpoint:
        with self._lock:
            return self._endpoints[self._current]

    def _refuse_if_closed(self, cause: Exception | None = None) -> None:
        self._own.require()
        if self.closed:
            raise EtcdUnavailable("the client is closed") from cause

    def _call(self, attempt: Attempt, *, writes: bool, timeout_s: float | None, authenticate: bool = True) -> Any:
        deadline_s = self._clock.monotonic_s() + (self._settings.timeout_s if timeout_s is None else timeout_s)
        failures, token_renewed = 0, False
        while True:
            self._refuse_if_closed()
            endpoint = self._pick()
            metadata = self._metadata(deadline_s - self._clock.monotonic_s()) if authenticate else _ANONYMOUS
            try:
                return attempt(endpoint, self._attempt_s(deadline_s, writes=writes), metadata)
            except grpc.RpcError as error:
                fault = fault_of(error)
                if fault is EtcdFault.TOKEN and authenticate and not token_renewed:
                    # Known not to have been executed, a write as well.
                    token_renewed = True
                    self.drop_token()
                    continue
                if fault in (EtcdFault.UNSENT, EtcdFault.LOST):
                    self.leave(endpoint)
                failures += 1
                pause_s = self._pause_s(failures)
                # A write that may have arrived is not repeated: a compare-and-set would fail against its own first try.
                again = fault is EtcdFault.UNSENT or (fault is EtcdFault.LOST and not writes)
                if not again or self._clock.monotonic_s() + pause_s >= deadline_s:
                    raise translated(error, writes=writes) from error
                self.pause(pause_s)
            except ValueError as error:  # gRPC's way to say that the channel has just been closed
                self._refuse_if_closed(error)
                raise

    def _pause_s(self, failures: int) -> float:
        """Return the seconds to pause: none before every endpoint had its turn, then doubling after each round."""
        rounds = failures // len(self._endpoints)
        return min(PAUSE_FIRST_S * 2 ** (rounds - 1), PAUSE_MAX_S) if rounds else 0.0

    def _attempt_s(self, deadline_s: float, *, writes: bool) -> float:
        """Return how many seconds one endpoint may take: all for a write, which has but one try; else a fair part."""
        left_s = max(deadline_s - self._clock.monotonic_s(), 0.001)
        return left_s if writes else min(left_s, max(left_s / len(self._endpoints), ATTEMPT_MIN_S))

    def _metadata(self, timeout_s: float) -> Metadata:
        if not self._settings.username:
            return _ANONYMOUS
        # Held while the server answers: all who find no token wait for one, instead of each fetching its own.
        with self._token_lock:
            token = self._token
            if token is None:
                token = self._token = self._authenticate(timeout_s)
        return (*_ANONYMOUS, ("token", token)) if token else _ANONYMOUS

    def _authenticate(self, timeout_s: float) -> str:
        path = pb.path("Auth", "Authenticate")
        request = pb.AuthenticateRequest(name=self._settings.username, password=self._settings.password)

        def attempt(endpoint: Endpoint, attempt_s: float, metadata: Metadata) -> Any:
            return endpoint.unary(path)(request, timeout=attempt_s, metadata=metadata)

        try:
            return str(self._call(attempt, writes=False, timeout_s=timeout_s, authenticate=False).token)
        except EtcdRefusedError as error:
            if "authentication is not enabled" not in error.message:
                raise
            log.warning("etcd.auth.disabled", extra={"username": self._settings.username})
            return ""


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())
