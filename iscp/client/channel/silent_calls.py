"""Guards of a gRPC server's threads and connections against clients that occupy them, and the caller of a node by
threads.

A server's threads are guarded by `SilentCalls`, its connections by `ConnectionGuard`; a `ClientWatch` runs the checks
of both. `Caller` makes the calls of a client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from iscp.client.channel.attempts import CallerBase, GivenToken, Notice
from iscp.client.channel.grpc_calls import abort
from iscp.model.values.errors import InvalidRequest
from iscp.ports.system import Clock
from iscp.system.http_exchange import Peer, connections_to, end_connection, files_count, peer_of
from iscp.system.small_files import open_files_limit
from iscp.system.tls.tls_files import GivenTls

log = logging.getLogger(__name__)


# --- calls whose client neither sends its request nor reads the answer ------------------------------------------------
# gRPC gives a call a thread as soon as it begins, and so a few hundred calls without a request, on one connection,
# would leave none for anybody else. Those calls are ended that take too long, and, where many wait, the oldest.

SILENT_MAX_S = 30.0
"""How long a call may wait for its request to come whole, or for a page of its answer to be read, and how long a stream
of reflection may last; then it is cancelled.
"""

SILENT_GIVE_WAY_S = 1.0
"""How long the oldest of the calls that so wait may do it where they are too many; then they are cancelled."""

SILENT_IN_POOL_MAX = 32
"""Calls that may so wait for longer than SILENT_GIVE_WAY_S in threads that only some methods use, as those of nodes."""


class SilentCalls:
    """The calls that wait for their clients, by the threads that they occupy. A ClientWatch ends those beyond the
    bound.

    `waiting_max`: how many may wait for longer than SILENT_GIVE_WAY_S in the server's own threads.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[ThreadPoolExecutor | None, OrderedDict[object, tuple[float, grpc.ServicerContext]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, pool: ThreadPoolExecutor | None, context: grpc.ServicerContext) -> Iterator[None]:
        """Count the call for the time of the block, which depends on the client alone."""
        call = object()
        with self._lock:
            self._waiting.setdefault(pool, OrderedDict())[call] = time.monotonic(), context
        try:
            yield
        finally:
            with self._lock:
                self._waiting[pool].pop(call, None)

    def end_surplus(self) -> None:
        if over := self._take_over(time.monotonic()):
            log.warning("grpc.silent_calls", extra={"ended": len(over)})
        for context in over:
            context.cancel()

    def _take_over(self, now_s: float) -> list[grpc.ServicerContext]:
        found = []
        with self._lock:
            for pool, calls in self._waiting.items():
                too_many = len(calls) - (self._waiting_max if pool is None else SILENT_IN_POOL_MAX)
                for call, (since_s, context) in list(calls.items()):
                    if now_s < since_s + (SILENT_GIVE_WAY_S if too_many > 0 else SILENT_MAX_S):
                        break
                    del calls[call]
                    found.append(context)
                    too_many -= 1
        return found


class SilentCallGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server before all other interceptors. Streams of `unbounded` methods may last; methods that are in
    `pools` run in threads of their own.

    On the wire a single request is a stream of one, and who waits for that knows the call, to end it.
    """

    def __init__(
        self, calls: SilentCalls, unbounded: Iterable[str] = (), pools: Mapping[str, ThreadPoolExecutor] | None = None
    ) -> None:
        self._calls = calls
        self._unbounded = frozenset(unbounded)
        self._pools = pools or {}

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None or details.method in self._unbounded:
            return there
        method, kind = behaviour_of(there), _GuardedMethod
        if there.response_streaming:
            kind = _SentMethod if getattr(method, "experimental_non_blocking", False) else _PagedMethod
        guarded = kind(self._calls, method, there.request_streaming, self._pools.get(details.method))
        return handler_around(there, guarded, request_streaming=True)


class _GuardedMethod:
    """A method that answers once; gRPC reads its attributes."""

    def __init__(
        self,
        calls: SilentCalls,
        method: Callable[..., Any],
        request_streaming: bool,
        own: ThreadPoolExecutor | None = None,
    ) -> None:
        self._calls = calls
        self._method = method
        self._request_streaming = request_streaming
        pool = own or getattr(method, "experimental_thread_pool", None)
        self.experimental_thread_pool = pool if isinstance(pool, ThreadPoolExecutor) else None

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        return self._method(self._request(requests, context), context)

    def _request(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        if self._request_streaming:
            return requests
        with self._waiting(context):
            if (request := next(requests, None)) is not None:
                return request
        return abort(context, InvalidRequest("the call has no request", about="request", remedy="Send one message"))

    def _waiting(self, context: grpc.ServicerContext) -> Any:
        return self._calls.waiting(self.experimental_thread_pool, context)


class _SentMethod(_GuardedMethod):
    """One that holds no thread once it has its request, and sends by a callback."""

    experimental_non_blocking = True

    def __call__(
        self,
        requests: Iterator[Any],
        context: grpc.ServicerContext,
        send_response_callback: Callable[[Any], None] | None = None,
    ) -> Any:
        return self._method(self._request(requests, context), context, send_response_callback)


class _PagedMethod(_GuardedMethod):
    """One that answers by pages, each of which is to be read."""

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        if self._request_streaming:
            with self._waiting(context):
                yield from self._method(requests, context)
            return
        for page in self._method(self._request(requests, context), context):
            with self._waiting(context):
                yield page


# --- checks of clients ------------------------------------------------------------------------------------------------
# One thread of a server ends, again and again, the calls and connections that clients leave behind, or by which they
# leave too little room for others.

CLIENTS_CHECK_S = 0.5
"""How often a server counts calls that wait for their clients, and connections without a call."""


class ClientWatch:
    """Runs all its checks, one after the other, between `start` and `stop`; a check must not wait."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iscp-clients", daemon=True)

    def add(self, check: Callable[[], None]) -> None:
        self._checks.append(check)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(CLIENTS_CHECK_S):
            for check in tuple(self._checks):
                try:
                    check()
                except Exception:  # the other checks go on
                    log.exception("grpc.check_failed")


# --- calls to one node ------------------------------------------------------------------------------------------------
# Each call is repeated within its time where that is safe.

R = TypeVar("R")


class Caller(CallerBase):
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries."""

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(endpoint, timeout_s, tls, token, notice, wait_for_ready, clock)
        self._sleep = sleep
        self.channel = self._open_channels(grpc)

    def close(self) -> None:
        self._closed = True
        for each in self.channel.drain():
            each.close()

    def call(
        self,
        method: Callable[..., R],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over; `once`: as in Attempts."""
        self._refuse_closed()
        attempts = self._attempts(changes, once, timeout_s)
        while True:
            try:
                return method(request, **attempts.begin(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except ValueError:  # gRPC's own: another thread has closed the channel
                self._refuse_closed()
                raise
            self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return the method with its streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, **how: Any) -> list[Any]:
        return list(method(request, **how))

    return call


# --- connections to a port that give way to new ones ------------------------------------------------------------------
# This part decides; it knows no clock, and closes nothing.

CROWDED_RATIO = 0.75
"""Part of the places for connections from which on those without a call are closed, the longest idle first."""

HOST_RATIO = 0.25
"""Part of the places for connections that one address has; where it has more, those without a call are closed."""

IDLE_LEAST_S = 1.0
"""How long a connection may be without a call, however many there are."""


class ConnectionPlaces:
    """`most`: how many connections there are room for. Times are of any clock that does not go back."""

    def __init__(self, most: int) -> None:
        self._total_max = int(most * CROWDED_RATIO)
        self._host_max = max(1, int(most * HOST_RATIO))
        self._calls: Counter[Peer] = Counter()
        self._idle_since_s: dict[Peer, float] = {}

    @property
    def unobserved_max(self) -> int:
        """Return up to how many connections nobody has to give way, whoever they are."""
        return min(self._total_max, self._host_max)

    def begin_call(self, peer: Peer) -> None:
        self._calls[peer] += 1
        self._idle_since_s.pop(peer, None)

    def end_call(self, peer: Peer, now_s: float) -> None:
        self._calls[peer] -= 1
        if self._calls[peer] <= 0:
            del self._calls[peer]
            self._idle_since_s[peer] = now_s

    def surplus(self, there: Collection[Peer], now_s: float) -> list[Peer]:
        """Return which of the connections that are there are to be closed, the longest idle first."""
        since_s = self._idle_since_s
        self._idle_since_s = {peer: since_s.get(peer, now_s) for peer in there if peer not in self._calls}
        idle = sorted(self._idle_since_s.items(), key=lambda each: each[1])
        total, of_host = len(there), Counter(host for host, _ in there)
        found = []
        for peer, idle_s in idle:
            if now_s - idle_s < IDLE_LEAST_S:
                break
            if total > self._total_max or of_host[peer[0]] > self._host_max:
                found.append(peer)
                total -= 1
                of_host[peer[0]] -= 1
        return found


# --- handlers of gRPC's methods ---------------------------------------------------------------------------------------

_KINDS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return what the handler calls, whichever of the four kinds it is."""
    kinds = handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream
    found: Callable[..., Any] = next(each for each in kinds if each is not None)
    return found


def handler_around(
    handler: grpc.RpcMethodHandler,
    behaviour: Callable[..., Any],
    *,
    request_streaming: bool | None = None,
    request_deserializer: Callable[[bytes], Any] | None = None,
) -> grpc.RpcMethodHandler:
    """Return a handler like another one, with another behaviour; what is None stays as it is."""
    streaming = handler.request_streaming if request_streaming is None else request_streaming
    return _KINDS[streaming, handler.response_streaming](
        behaviour,
        request_deserializer=request_deserializer or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def handlers_of(
    service: ServiceDescriptor, behaviours: Mapping[str, Callable[..., Any]]
) -> Mapping[str, grpc.RpcMethodHandler]:
    """Return a handler for each method of the service. Raises KeyError where `behaviours` has none."""
    return {
        method.name: _KINDS[method.client_streaming, method.server_streaming](
            behaviours[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }


# --- the bounds of a gRPC server's connections ------------------------------------------------------------------------

GRPC_CONNECTIONS_MAX = 4_096
"""Connections to a node's gRPC port, at most half of the files that the process may have open; one more is closed at
once, until another one ends. Open ones, of the nodes of a cluster and of users, go on.
"""

PROBE_CONNECTIONS_MAX = 256
"""Connections to `health.listen`; one more is closed at once."""

HANDSHAKE_MAX_MS = 5_000
"""How long a connection may take to begin with TLS and HTTP/2; then it is closed, and its place is free."""

IDLE_CONNECTION_MAX_MS = 600_000
"""How long a connection may be without a call; then it is closed, and a client opens another one with its next call."""

STREAMS_MAX = 1_000
"""Calls at a time of one connection, answers that are not read yet among them; a client holds further ones back."""

Options = tuple[tuple[str, int], ...]


def connections_most(connections_max: int) -> int:
    """Return `connections_max`, or as many as the open files allow."""
    return min(connections_max, open_files_limit() // 2)


def server_bounds(connections_max: int) -> Options:
    """Return the options of a server with up to `connections_max` connections."""
    return (
        ("grpc.max_allowed_incoming_connections", connections_most(connections_max)),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MAX_MS),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MAX_MS),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        # Two servers on one port would otherwise share it without a word.
        ("grpc.so_reuseport", 0),
    )


# --- connections without a call that leave too little room for others -------------------------------------------------
# gRPC bounds how many connections there are, and then refuses whoever is new: a few thousand connections that answer
# pings, and do nothing else, would shut everybody out. gRPC neither counts connections by address nor closes one, so
# their sockets are searched among the files of the process, and shut down.


class ConnectionGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Give it to a server after what waits for requests, and all else after it: a call that has none does not count.

    `connections_max`: of the server's bounds.
    """

    def __init__(self, connections_max: int) -> None:
        self._places = ConnectionPlaces(connections_most(connections_max))
        self._lock = threading.Lock()

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        there = continuation(details)
        if there is None:
            return None
        method = behaviour_of(there)

        @wraps(method)  # gRPC reads in which threads it runs
        def counted(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
            self._count(context)
            return method(request, context, *more)

        return handler_around(there, counted)

    def _count(self, context: grpc.ServicerContext) -> None:
        if (peer := _peer_of(context)) is None:
            return
        with self._lock:
            self._places.begin_call(peer)
        if not context.add_callback(lambda: self._end(peer)):
            self._end(peer)

    def _end(self, peer: Peer) -> None:
        with self._lock:
            self._places.end_call(peer, time.monotonic())

    def make_room(self, port: int) -> None:
        """Close connections to the server, which listens on `port`, where there are too many; for a ClientWatch."""
        try:
            if files_count() <= self._places.unobserved_max:
                return
            there = connections_to(port)
        except OSError:
            log.exception("grpc.connections_unread")
            return
        with self._lock:
            surplus = self._places.surplus(there, time.monotonic())
        if surplus:
            log.warning("grpc.idle_connections", extra={"there": len(there), "closed": len(surplus)})
        for peer in surplus:
            with suppress(OSError):
                end_connection(there[peer], peer, port)


def _peer_of(context: grpc.ServicerContext) -> Peer | None:
    """Return the peer that gRPC writes as `ipv4:10.0.0.1:50000` or `ipv6:%5B::1%5D:50000`; None: one of a kind without
    port.
    """
    family, _, rest = unquote(context.peer()).partition(":")
    host, _, port = rest.rpartition(":")
    try:
        return peer_of(host.strip("[]"), int(port)) if family in ("ipv4", "ipv6") else None
    except ValueError:
        return None
