"""Shared parts of calls to a node, for threads and for asyncio: the token that a client sends, the nodes that it may
call and their channels, and how often a call is repeated.

The module also has the caller for asyncio; the caller for threads is in `silent_calls`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import grpc

from iscp.client.channel.grpc_calls import (
    CONNECT_MAX_MS,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    from_rpc,
    keepalive,
    never_sent,
    nobody_there,
    said_by_node,
    traced_metadata,
)
from iscp.model.access.authorization import TOKEN_CHARS_MAX
from iscp.model.values.errors import (
    Canceled,
    ConfigurationError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    LeaseLost,
    NotOwner,
    OutcomeUnknown,
    TemporaryError,
    TimedOut,
    Unavailable,
)
from iscp.model.values.untrusted_values import is_loopback, require, require_seconds
from iscp.ports.system import Clock
from iscp.system.child_process import Before, OwnProcess, refuse_fork
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import CertificateWatch
from iscp.system.tls.renewing_channel import secure_channel
from iscp.system.tls.tls_files import (
    MESSAGE_BYTES_MAX,
    GivenTls,
    Tls,
    TlsFiles,
    endpoint_or_default,
    tls_of_environment,
)

# --- the token that a client sends with each of its calls -------------------------------------------------------------

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "ISCP_TOKEN", "ISCP_TOKEN_FILE"

TOKEN_CHECK_S = 1.0
"""Least time between two checks whether a file with a token has changed; calls that begin later send what it holds."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")

GivenToken = str | Path | None
"""The token that clients take: a text, the file that has it, or nothing."""


def token_of_environment(environ: Mapping[str, str]) -> GivenToken:
    """Return the token in ISCP_TOKEN, or the file in ISCP_TOKEN_FILE. Raises ConfigurationError where both are set."""
    token, file = environ.get(TOKEN_VARIABLE, ""), environ.get(TOKEN_FILE_VARIABLE, "")
    if token and file:
        raise ConfigurationError(f"is set beside {TOKEN_FILE_VARIABLE}", field=TOKEN_VARIABLE, remedy="Unset one")
    return Path(file) if file else token or None


class CallerToken:
    """A token, or what a file holds, which may be replaced while it is in use. Safe to use from several threads.

    Raises ConfigurationError, which never shows the token, where it can be none; of a later one, the one before stays.
    """

    def __init__(self, given: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = given if isinstance(given, Path) else None
        self._clock = clock
        self._stamp: object = _stamp_of(self._file) if self._file else None
        self._token = _read(self._file) if self._file else _checked(str(given), "token")
        self._due_s = clock() + TOKEN_CHECK_S

    def current(self) -> str:
        if self._file is not None and self._clock() >= self._due_s:
            self._due_s = self._clock() + TOKEN_CHECK_S
            stamp = _stamp_of(self._file)
            if stamp != self._stamp:
                # Of half a renewal what was read before it is used, and refused where it is not good any more.
                with suppress(ConfigurationError):
                    self._token, self._stamp = _read(self._file), stamp
        return self._token


class TokenChannel:
    """The part of a channel, of threads or of asyncio, that clients use: each call shows by a token who makes it."""

    def __init__(self, channel: Any, token: CallerToken) -> None:
        self._channel = channel
        self._token = token

    def unary_unary(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_unary(*arguments, **given))

    def unary_stream(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_stream(*arguments, **given))

    def close(self) -> Any:
        return self._channel.close()

    def _with_token(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, *, metadata: Sequence[tuple[str, str]] = (), **given: Any) -> Any:
            shown = "authorization", f"Bearer {self._token.current()}"
            return method(request, metadata=(shown, *metadata), **given)

        return call


def refuse_plain(endpoint: str) -> None:
    """Raise ConfigurationError where a token would go over a network that anybody may read."""
    for address in endpoint.split(","):
        if not is_loopback(address):
            raise ConfigurationError(
                f"would go to {address} in clear text",
                field="token",
                remedy="Use TLS: name the authority (ISCP_CA_FILE, `iscp-admin context set --ca-file`)",
            )


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror or error}", about="token_file", remedy="Give a file with a token"
        ) from error
    return _checked(text.strip(), "token_file")


def _checked(token: str, field: str) -> str:
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_CHARS_MAX:
        raise ConfigurationError(
            "holds no token", field=field, remedy="Give what `iscp-admin token create` or your provider has shown"
        )
    return token


def _stamp_of(file: Path) -> object:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# --- the nodes that a client may call, and which of them it calls next ------------------------------------------------

ENDPOINT_AVOIDED_S = 30.0
"""How long a node that could not answer is called only where all others could not either."""


class Endpoints:
    """Several nodes' addresses. Whoever answers is called on and on. Safe to use from several threads.

    Times are of any clock that does not go back.
    """

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._lock = threading.Lock()
        self._failed_s: dict[str, float] = {}
        self._current = addresses[0]

    def choose(self, now_s: float) -> str:
        with self._lock:
            bad_s = {each: at_s for each, at_s in self._failed_s.items() if now_s - at_s < ENDPOINT_AVOIDED_S}
            if self._current in bad_s:
                # Of those that have not failed, in their order, the first; else whoever did so first.
                self._current = min(self.addresses, key=lambda each: bad_s.get(each, float("-inf")))
            return self._current

    def avoid(self, address: str, now_s: float) -> None:
        with self._lock:
            self._failed_s[address] = now_s


_OF_FORMER_PROCESSES: list[dict[str, Any]] = []
"""Channels that were open at a fork: to close them would wait for threads that are gone."""


class EndpointChannel:
    """The part of the channels to several nodes, of threads or of asyncio, that clients use: each call names its node.

    A channel is opened when its node is called first. A fork opens others, as calls by those of the process that it
    comes from may wait without end.
    """

    def __init__(self, addresses: tuple[str, ...], open_channel: Callable[[str], Any]) -> None:
        self._first = addresses[0]
        self._open = open_channel
        self._lock = threading.Lock()
        self._channels: dict[str, Any] | None = {}
        self._made_in = OwnProcess("client")

    def unary_unary(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_unary", arguments, given)

    def unary_stream(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_stream", arguments, given)

    def drain(self) -> list[Any]:
        """Return the channels, to be closed; no other is opened from now on."""
        self._leave_behind()
        with self._lock:
            channels, self._channels = self._channels or {}, None
        return list(channels.values())

    def _method(self, kind: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Callable[..., Any]:
        made: dict[tuple[int, str], Any] = {}

        def call(request: Any, *, endpoint: str = "", **how: Any) -> Any:
            address = endpoint or self._first
            key = (os.getpid(), address)
            method = made.get(key)
            if method is None:
                method = made[key] = getattr(self._channel(address), kind)(*arguments, **given)
            return method(request, **how)

        return call

    def _channel(self, address: str) -> Any:
        self._leave_behind()
        with self._lock:
            if self._channels is None:
                raise ValueError("the channel is closed")  # as gRPC's own
            if address not in self._channels:
                self._channels[address] = self._open(address)
            return self._channels[address]

    def _leave_behind(self) -> None:
        """Begin without channels in a fork, and with a lock that no thread of another process holds."""
        if self._made_in.is_this:
            return
        if self._channels is not None:
            _OF_FORMER_PROCESSES.append(self._channels)
            self._channels = {}
        self._lock, self._made_in = threading.Lock(), OwnProcess("client")


# --- attempts of a call -----------------------------------------------------------------------------------------------
# A call is repeated within its time where that is safe.

BACKOFF_S = 0.1
"""Pause before the second attempt; it doubles up to BACKOFF_MAX_S."""

BACKOFF_MAX_S = 2.0
"""Longest pause between two attempts."""

NOTICE_AFTER_S = 3.0
"""Without an answer for so long, a client reports why, once, and goes on trying."""

# The owner is changing, or the node is restarting: soon another answer is to be had. Repeating is safe, as a
# change carries its request_id. (Not Unavailable's siblings: a full disk does not repair itself within seconds.)
_RETRIED = (Unavailable, NotOwner, LeaseLost, OutcomeUnknown)

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Otherwise gRPC itself, once refused, would not try again within our own attempts.
    ("grpc.initial_reconnect_backoff_ms", int(BACKOFF_S * 1000)),
    # A node that is frozen, or cut off, accepts connections and answers nothing: then another one is called.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MAX_MS),
    *keepalive(KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", int(BACKOFF_MAX_S * 1000)),
)

Notice = Callable[[IscpError, float], None]
"""Called once in a call that goes on trying: with the last error, and the seconds for which it will."""


@dataclass(frozen=True, slots=True)
class CallBounds:
    """`timeout_s` is for all attempts of a call; `reach_s` for those, in a row, in which no node could be reached.

    `once`: the change carries no request_id; where it may have been made it is not repeated, as that makes it twice.
    `wait_for_ready`: where no node is there, one is awaited. `shared`: a node that another may stand in for gets half
    of the time, so that the other has the rest.
    """

    timeout_s: float
    reach_s: float
    changes: bool = False
    once: bool = False
    wait_for_ready: bool = True
    shared: bool = False


class Attempts:
    """The attempts of one call, from `begun_s` of the caller's monotonic clock on."""

    def __init__(self, endpoints: Endpoints, begun_s: float, bounds: CallBounds, notice: Notice) -> None:
        self._endpoints = endpoints
        self._begun_s = self._contact_s = begun_s
        self._end_s = begun_s + bounds.timeout_s
        self._bounds = bounds
        self._notice = notice
        self._unknown, self._noticed, self._reached, self._backoff_s = False, False, False, BACKOFF_S
        self._met: IscpError | None = None
        self._endpoint, self._tried, self._cut = "", set[str](), False
        self._silent: dict[str, IscpError] = {}

    def begin(self, now_s: float) -> dict[str, Any]:
        """The next attempt: which node is called, and for how long, as its method takes them."""
        self._endpoint = self._endpoints.choose(now_s)
        self._tried.add(self._endpoint)
        self._cut = self._bounds.shared and self._others_left
        left_s = max(0.0, self._end_s - now_s)
        how: dict[str, Any] = {"endpoint": self._endpoint, "timeout": left_s / 2 if self._cut else left_s}
        return how | {"metadata": traced} if (traced := traced_metadata()) else how

    def pause_s(self, cause: grpc.RpcError, now_s: float) -> float:
        """Return for how many seconds to wait before the next attempt; raises the call's error where there is to be
        none.
        """
        error = from_rpc(cause, self._endpoint, changes=self._bounds.changes)
        self._unknown = self._unknown or isinstance(error, OutcomeUnknown)
        late = cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not said_by_node(cause)
        if late or _retried(error):
            self._endpoints.avoid(self._endpoint, now_s)
        if not said_by_node(cause):
            self._silent[self._endpoint] = error
        again = _retried(error) or (late and self._cut)
        # Jitter: those who lost the same owner must not come back at the same moment.
        pause_s = self._backoff_s * random.uniform(0.5, 1.0)
        end_s = self._end_of_retries_s(cause, now_s)
        if not again or (self._bounds.once and self._unknown) or now_s + pause_s >= end_s:
            raise self._final(error) from cause
        if not self._noticed and now_s - self._begun_s >= NOTICE_AFTER_S:
            self._noticed = True
            self._notice(error, end_s - now_s)
        self._met, self._backoff_s = error, min(BACKOFF_MAX_S, self._backoff_s * 2)
        return pause_s

    @property
    def _others_left(self) -> bool:
        return len(self._tried) < len(self._endpoints.addresses)

    def _end_of_retries_s(self, cause: grpc.RpcError, now_s: float) -> float:
        """Return until when to retry: nodes that may come are awaited, though not as long as an answer may take; or not
        at all.
        """
        self._reached = self._reached or not nobody_there(cause)
        if not never_sent(cause):
            self._contact_s = now_s
            return self._end_s
        hopeless = not (self._bounds.wait_for_ready or self._reached or self._others_left)
        return now_s if hopeless else min(self._end_s, self._contact_s + self._bounds.reach_s)

    def _final(self, error: IscpError) -> IscpError:
        """Return the error of the call, beside those of the other nodes if this one did not answer either.

        Where this attempt failed for certain, an earlier one may still have been carried out.
        """
        if self._unknown and isinstance(error, TemporaryError) and not isinstance(error, OutcomeUnknown):
            return OutcomeUnknown.from_error(error, remedy="Check the job's status")
        if isinstance(error, TimedOut) and self._met is not None:
            return self._met  # the last attempt had but the rest of the time: what the one before it met says more
        if self._silent.get(self._endpoint) is error:
            error.others = tuple(each for endpoint, each in self._silent.items() if endpoint != self._endpoint)
        return error


def _retried(error: IscpError) -> bool:
    return isinstance(error, _RETRIED) and error.code not in (ErrorCode.TIMEOUT, ErrorCode.JOB_LOG_DAMAGED)


class CallerBase:
    """A caller of a node, without its calls; `timeout_s` bounds each call with its retries."""

    def __init__(
        self,
        endpoint: str | None,
        timeout_s: float,
        tls: GivenTls,
        token: GivenToken,
        notice: Notice,
        wait_for_ready: bool,
        clock: Clock | None,
    ) -> None:
        """Raises InvalidRequest, ConfigurationError."""
        require(tls, (Tls, TlsFiles, NoneType), "tls", "Tls or TlsFiles")
        given = tls_of_environment(os.environ) if tls is None else tls
        self._tls = CertificateWatch(given) if isinstance(given, TlsFiles) else given
        self._notice = notice
        self._clock = clock or SystemClock()
        self._wait_for_ready = wait_for_ready
        named = endpoint_or_default(endpoint)
        self._endpoints = Endpoints(tuple(named.split(",")))
        require(token, (str, Path, NoneType), "token", "a token, or the path of its file")
        shown = token_of_environment(os.environ) if token is None else token
        self._token = CallerToken(shown) if shown is not None else None
        if self._token is not None and self._tls is None:
            refuse_plain(named)
        self._timeout_s = require_seconds(timeout_s, "timeout_s")
        self._closed = False

    def _open_channels(self, library: Any) -> EndpointChannel:
        """Return the channels of `library`, which is `grpc` or `grpc.aio`."""
        return EndpointChannel(self._endpoints.addresses, partial(self._open_channel, library))

    def _open_channel(self, library: Any, address: str) -> Any:
        if self._tls is None:
            # A proxy would be given the token in clear text, though the node is on this machine.
            direct = (("grpc.enable_http_proxy", 0),) if self._token is not None else ()
            channel = library.insecure_channel(address, options=(*_CHANNEL_OPTIONS, *direct))
        else:
            channel = secure_channel(library, address, self._tls, _CHANNEL_OPTIONS)
        return channel if self._token is None else TokenChannel(channel, self._token)

    def _attempts(self, changes: bool, once: bool, timeout_s: float | None) -> Attempts:
        """Return the attempts of a call that begins now; raises InvalidRequest."""
        own = timeout_s is None
        within_s = self._timeout_s if timeout_s is None else require_seconds(timeout_s, "timeout_s")
        # A call that has a time of its own is to wait for so long, or takes long: half of it would not do.
        bounds = CallBounds(within_s, self._timeout_s, changes, once, self._wait_for_ready, shared=own and not once)
        return Attempts(self._endpoints, self._clock.monotonic_s(), bounds, self._notice)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed", about="client", remedy="Make another one")


# --- how long a call may wait for what it wants -----------------------------------------------------------------------
# The request says how long, and so does the call's own deadline.


def waiting_s(timeout_s: float, most_s: float, remedy: str, context: grpc.ServicerContext) -> float:
    """Return for how many seconds a call may wait that wants `timeout_s`. Raises InvalidRequest beyond `most_s`."""
    if not 0 <= timeout_s <= most_s:
        raise InvalidRequest(f"must be 0 to {most_s:.0f} seconds", field="timeout_s", remedy=remedy)
    # Nobody hears an answer that comes after the call's own deadline.
    remaining_s = context.time_remaining()
    return timeout_s if remaining_s is None else max(0.0, min(timeout_s, remaining_s))


# --- calls from asyncio -----------------------------------------------------------------------------------------------

R = TypeVar("R")


class AsyncCaller(CallerBase):
    """A channel to `endpoint`, for the tasks of the event loop in which it is made.

    `timeout_s` bounds each call with its retries. A task that is cancelled ends its call at the node too.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: GivenTls = None,
        token: GivenToken = None,
        notice: Notice = lambda error, left_s: None,
        wait_for_ready: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(endpoint, timeout_s, tls, token, notice, wait_for_ready, clock)
        self._sleep = sleep
        refuse_fork("client", Before.ASYNCIO)
        self._loop = _running_loop()
        self.channel = self._open_channels(grpc.aio)

    async def close(self) -> None:
        """Ends the calls that are under way with Canceled."""
        self._closed = True
        await asyncio.gather(*(each.close() for each in self.channel.drain()))

    async def call(
        self,
        method: Callable[..., Awaitable[R]],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over; `once`: as in Attempts."""
        self._refuse_misuse()
        attempts = self._attempts(changes, once, timeout_s)
        while True:
            try:
                return await method(request, **attempts.begin(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except asyncio.CancelledError as ended:
                # gRPC raises it too where another task has closed the channel: that one does not cancel this task.
                if not self._closed or _is_cancelled():
                    raise
                raise Canceled("the client was closed during the call", about="client") from ended
            await self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))
            self._refuse_misuse()

    def _refuse_misuse(self) -> None:
        refuse_fork("client", Before.ASYNCIO)
        self._refuse_closed()
        if _running_loop() is not self._loop:
            raise InvalidRequest(
                "the client belongs to another event loop", about="client", remedy="Make one in each loop"
            )


def listing(method: Callable[..., Any]) -> Callable[..., Awaitable[list[Any]]]:
    """Return the method with its streamed answer as a list, so that a retry starts from its beginning."""

    async def call(request: Any, **how: Any) -> list[Any]:
        stream = method(request, **how)
        try:
            return [page async for page in stream]
        finally:
            stream.cancel()  # where this task was cancelled; of a stream that has ended it changes nothing

    return call


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InvalidRequest(
            "there is no running event loop", about="client", remedy="Make and use the client within a coroutine"
        ) from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
