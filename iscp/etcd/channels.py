"""The connections to etcd's endpoints: which one is used, tokens, and what is tried again.

The module also has etcd's messages, which nothing outside this package sees, and its errors: those of gRPC do not leave
this package.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Any, assert_never

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from iscp.etcd.keys import EtcdSettings
from iscp.model.values.errors import (
    ConfigurationError,
    ErrorCode,
    IscpError,
    LeaseLost,
    OutcomeUnknown,
    TemporaryError,
    Unavailable,
)
from iscp.ports.system import Clock
from iscp.system.child_process import OwnProcess
from iscp.system.tls.certificate_watch import CertificateWatch
from iscp.system.tls.renewing_channel import REFUSED_REMEDY, handshake_fault, may_be_refused, secure_channel
from iscp.system.tls.tls_files import Tls, TlsSource

log = logging.getLogger(__name__)

# --- etcd's messages --------------------------------------------------------------------------------------------------
# The messages are built from a descriptor set in a pool of their own. Generated modules would register in protobuf's
# default pool, where a second copy of etcd's messages in the same interpreter (any other client) clashes: `duplicate
# symbol mvccpb.KeyValue`. The set is compiled from proto/etcd by `scripts/generate-etcd`. Nothing outside this package
# sees these dynamically typed messages.

_PACKAGE = "etcdserverpb"


def _load() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("etcd.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for file in files.file
        for message in file.message_type
    }


_CLASSES = _load()

RangeRequest = _CLASSES["RangeRequest"]
RangeResponse = _CLASSES["RangeResponse"]
PutRequest = _CLASSES["PutRequest"]
PutResponse = _CLASSES["PutResponse"]
DeleteRangeRequest = _CLASSES["DeleteRangeRequest"]
DeleteRangeResponse = _CLASSES["DeleteRangeResponse"]
RequestOp = _CLASSES["RequestOp"]
Compare = _CLASSES["Compare"]
TxnRequest = _CLASSES["TxnRequest"]
TxnResponse = _CLASSES["TxnResponse"]
CompactionRequest = _CLASSES["CompactionRequest"]
CompactionResponse = _CLASSES["CompactionResponse"]
WatchRequest = _CLASSES["WatchRequest"]
WatchCreateRequest = _CLASSES["WatchCreateRequest"]
WatchResponse = _CLASSES["WatchResponse"]
LeaseGrantRequest = _CLASSES["LeaseGrantRequest"]
LeaseGrantResponse = _CLASSES["LeaseGrantResponse"]
LeaseRevokeRequest = _CLASSES["LeaseRevokeRequest"]
LeaseRevokeResponse = _CLASSES["LeaseRevokeResponse"]
LeaseKeepAliveRequest = _CLASSES["LeaseKeepAliveRequest"]
LeaseKeepAliveResponse = _CLASSES["LeaseKeepAliveResponse"]
LeaseTimeToLiveRequest = _CLASSES["LeaseTimeToLiveRequest"]
LeaseTimeToLiveResponse = _CLASSES["LeaseTimeToLiveResponse"]
MemberListRequest = _CLASSES["MemberListRequest"]
MemberListResponse = _CLASSES["MemberListResponse"]
StatusRequest = _CLASSES["StatusRequest"]
StatusResponse = _CLASSES["StatusResponse"]
AuthenticateRequest = _CLASSES["AuthenticateRequest"]
AuthenticateResponse = _CLASSES["AuthenticateResponse"]

# Path of a call -> the class of its answer.
ANSWERS: dict[str, Any] = {
    f"/{_PACKAGE}.{service}/{method}": answer
    for service, method, answer in (
        ("KV", "Range", RangeResponse),
        ("KV", "Put", PutResponse),
        ("KV", "DeleteRange", DeleteRangeResponse),
        ("KV", "Txn", TxnResponse),
        ("KV", "Compact", CompactionResponse),
        ("Lease", "LeaseGrant", LeaseGrantResponse),
        ("Lease", "LeaseRevoke", LeaseRevokeResponse),
        ("Lease", "LeaseTimeToLive", LeaseTimeToLiveResponse),
        ("Lease", "LeaseKeepAlive", LeaseKeepAliveResponse),
        ("Watch", "Watch", WatchResponse),
        ("Cluster", "MemberList", MemberListResponse),
        ("Maintenance", "Status", StatusResponse),
        ("Auth", "Authenticate", AuthenticateResponse),
    )
}


def path(service: str, method: str) -> str:
    return f"/{_PACKAGE}.{service}/{method}"


# --- etcd's errors ----------------------------------------------------------------------------------------------------
# The line that matters is whether a write may have happened. `EtcdUnavailable` and `EtcdRefusedError`: it has not.
# `EtcdOutcomeUnknown`: it may have, or may yet; the caller has to read before the write is repeated.


class EtcdUnavailable(Unavailable):
    """No endpoint answered within the deadline; nothing was written."""


class EtcdOutcomeUnknown(OutcomeUnknown):
    """A write was sent and its answer lost: it may have happened."""


class EtcdRefusedError(IscpError):
    """The server understood and refused; nothing was written."""


class EtcdCompactedError(EtcdRefusedError, TemporaryError):
    """The revision requested has been compacted away: read again from now."""


class EtcdExhaustedError(EtcdRefusedError, TemporaryError):
    """The server takes no writes at present: its quota is used up, or too many wait."""

    code = ErrorCode.NO_SPACE


class EtcdLeaseGoneError(EtcdRefusedError, LeaseLost):
    """The lease has expired or was revoked."""

    code = ErrorCode.LEASE_LOST


class EtcdDeniedError(EtcdRefusedError, ConfigurationError):
    """Wrong user, password or certificate, or a role that does not allow it."""

    code = ErrorCode.CONFIGURATION


class EtcdFault(Enum):
    """The kinds of an error of gRPC, by the next step."""

    UNSENT = auto()  # no connection could be made: whatever it was, the server has not seen it
    LOST = auto()  # sent, and no answer
    TOKEN = auto()  # the token is no longer known (it expires, and dies with the server): get a new one
    REFUSED = auto()


_LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
# gRPC's own text where no subchannel of the channel is connected. If it changes, such calls count as LOST,
# which is the safe side.
_NEVER_CONNECTED = "failed to connect to all addresses"
# The second: users or roles were changed since the token was made; the third: authentication was switched on.
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")


def fault_of(error: Any) -> EtcdFault:
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE and text.startswith(_NEVER_CONNECTED):
        return EtcdFault.UNSENT
    if any(stale in text for stale in _STALE_TOKEN):
        return EtcdFault.TOKEN
    return EtcdFault.LOST if code in _LOST else EtcdFault.REFUSED


def translated(error: Any, *, writes: bool) -> IscpError:
    """Return our error for a gRPC error that is not tried again."""
    text = f"{error.code().name}: {error.details()}"
    fault = fault_of(error)
    match fault:
        case EtcdFault.UNSENT:
            return _no_connection(text)
        case EtcdFault.LOST:
            return EtcdOutcomeUnknown(text) if writes else EtcdUnavailable(text)
        case EtcdFault.TOKEN:
            return EtcdDeniedError(text, about="etcd.user", remedy="Check etcd's user and password")
        case EtcdFault.REFUSED:
            return _refusal(error.code(), text)
        case _:
            assert_never(fault)


def _no_connection(text: str) -> IscpError:
    if fault := handshake_fault(text):
        return EtcdUnavailable(f"no TLS with etcd: {fault[0]} ({text})", about="etcd.ca_file", remedy=fault[1])
    if may_be_refused(text):
        return EtcdUnavailable(text, about="etcd.ca_file", remedy=REFUSED_REMEDY)
    return EtcdUnavailable(text)


def _refusal(code: Any, text: str) -> IscpError:
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or "authentication failed" in text:
        return EtcdDeniedError(text, about="etcd.user", remedy="Check etcd's user, password and role")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return EtcdExhaustedError(text)
    if "has been compacted" in text:
        return EtcdCompactedError(text)
    if "requested lease not found" in text:
        return EtcdLeaseGoneError(text)
    return EtcdRefusedError(text)


# --- connections ------------------------------------------------------------------------------------------------------
# Calls that may be repeated without harm (reads, keep-alives, grants) go from endpoint to endpoint until their
# deadline. A write is repeated only where the server cannot have seen it; otherwise it ends as EtcdOutcomeUnknown.

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
        return self._channel.unary_unary(path, _serialize, ANSWERS[path].FromString)

    def stream(self, path: str) -> Any:
        return self._channel.stream_stream(path, _serialize, ANSWERS[path].FromString)

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
        method = path("Auth", "Authenticate")
        request = AuthenticateRequest(name=self._settings.username, password=self._settings.password)

        def attempt(endpoint: Endpoint, attempt_s: float, metadata: Metadata) -> Any:
            return endpoint.unary(method)(request, timeout=attempt_s, metadata=metadata)

        try:
            return str(self._call(attempt, writes=False, timeout_s=timeout_s, authenticate=False).token)
        except EtcdRefusedError as error:
            if "authentication is not enabled" not in error.message:
                raise
            log.warning("etcd.auth.disabled", extra={"username": self._settings.username})
            return ""


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())
