"""Closes connections without a call where they leave too little room for others.

gRPC bounds how many there are, and then refuses whoever is new: a few thousand connections that answer pings, and do
nothing else, would shut everybody out. gRPC neither counts them by address nor closes one, so their sockets are
searched among the files of the process, and shut down.

The connections to a port that give way to new ones. Knows no clock, and closes nothing.

The bounds of a gRPC server: its connections, and the time for which nothing may happen on one.

Handlers of gRPC's methods: those of a service by its descriptor, and another one around a handler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from iscp.system.http_exchange import Peer, connections_to, end_connection, files_count, peer_of
from iscp.system.small_files import open_files_limit

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


log = logging.getLogger(__name__)


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
