"""Closes connections without a call where they leave too little room for others.

gRPC bounds how many there are, and then refuses whoever is new: a few thousand connections that answer pings, and do
nothing else, would shut everybody out. gRPC neither counts them by address nor closes one, so their sockets are
searched among the files of the process, and shut down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from urllib.parse import unquote

import grpc

from iscp.adapters.grpc.channel.connection_places import ConnectionPlaces
from iscp.adapters.grpc.channel.method_kinds import behaviour_of, handler_around
from iscp.adapters.grpc.channel.server_bounds import connections_most
from iscp.adapters.system.open_connections import Peer, connections_to, end_connection, files_count, peer_of

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
