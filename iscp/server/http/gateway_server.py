"""The port of the gateway: the service `Admin` as JSON over HTTP, with bounded connections.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Hashable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

import grpc

from iscp.client.channel.grpc_calls import open_channel
from iscp.client.channel.silent_calls import ClientWatch
from iscp.model.values.errors import ConfigurationError
from iscp.server.http.json_calls import CallerWatch, GatewayBounds, JsonCalls, JsonRequest
from iscp.system.tls.renewing_channel import ServerContext
from iscp.system.tls.tls_files import TlsSource, reachable, split_address

log = logging.getLogger(__name__)


# --- connections whose request has not come yet -----------------------------------------------------------------------
# Nobody knows whose these connections are, so they give way to each other.

PENDING_MAX = 256
"""Connections to the gateway whose request has not come whole, TLS included; for one more the oldest is closed."""

PENDING_PER_HOST_MAX = 64
"""Connections from one address among these; for one more the oldest of them is closed."""

Address = tuple[Hashable, ...]
"""A peer's: the host, the port, and what else the family has."""


class PendingConnections:
    """The pending connections by the addresses of their peers, the oldest first. Several threads may use it."""

    def __init__(self) -> None:
        self._pending: dict[Address, socket.socket] = {}
        self._lock = threading.Lock()

    def enter(self, address: Address, connection: socket.socket) -> None:
        """Add a connection, without waiting or refusing it. A later socket of the same connection takes the earlier
        one's place.
        """
        with self._lock:
            if address not in self._pending:
                of_host = [each for each in self._pending if each[0] == address[0]]
                if len(of_host) >= PENDING_PER_HOST_MAX:
                    self._close(of_host[0])
                elif len(self._pending) >= PENDING_MAX:
                    self._close(next(iter(self._pending)))
            self._pending[address] = connection

    def leave(self, address: Address) -> None:
        """Forget a connection whose request is there, or that is about to be closed."""
        with self._lock:
            self._pending.pop(address, None)

    def _close(self, address: Address) -> None:
        log.info("gateway.gave_way", extra={"peer": str(address[0])})
        with suppress(OSError):  # its peer has gone
            # Its thread wakes and ends it. Not SSLSocket's own, which would have that thread go on without TLS.
            socket.socket.shutdown(self._pending.pop(address), socket.SHUT_RDWR)


# --- a port with a thread for each connection -------------------------------------------------------------------------

ACCEPT_LOOK_S = 0.5
"""How often the thread that accepts checks whether it is to end."""


class BoundedListener(socketserver.ThreadingTCPServer):
    """Listens at HOST:PORT, where port 0 takes any free one; `bound_address` says which.

    A connection is closed if it takes longer than `read_s` seconds for the handshake of TLS. The handler calls
    `pending.leave` once a request has been read.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = PENDING_MAX

    def __init__(
        self, setting: str, address: str, handler: type[BaseHTTPRequestHandler], tls: TlsSource | None, read_s: float
    ) -> None:
        """Raises ConfigurationError, which names the setting that the address is of, if the port cannot be had."""
        host, port = split_address(address)
        self.address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        self.pending = PendingConnections()
        self._setting = setting
        self._tls = ServerContext(tls) if tls is not None else None
        self._read_s = read_s
        try:
            super().__init__((host.strip("[]"), port), handler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {address} ({error.strerror or error})",
                field=setting,
                remedy="Is the port taken? Choose another",
            ) from error
        self.bound_address = f"{host}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.pending.enter(client_address, request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread did not start
            self.pending.leave(client_address)
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                request.settimeout(self._read_s)
                request = self._tls.current().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                self.pending.enter(client_address, request)
                request.do_handshake()
            super().finish_request(request, client_address)
        finally:
            self.pending.leave(client_address)
            if self._tls is not None:
                request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called where an exception is being handled."""
        log.info("listener.failed", extra={"setting": self._setting}, exc_info=True)


# --- the gateway ------------------------------------------------------------------------------------------------------


class _GatewayListener(BoundedListener):
    """The port of the gateway, with what its requests need."""

    def __init__(self, address: str, bounds: GatewayBounds, version: str, tls: TlsSource | None) -> None:
        self.bounds = bounds
        self.version = version
        self.calls: JsonCalls | None = None
        self.callers = CallerWatch()
        super().__init__("gateway.listen", address, JsonRequest, tls, bounds.read_timeout_s)


class AdminEndpoint(Protocol):
    """This node's gRPC server; `address` is known once it has started."""

    @property
    def address(self) -> str: ...

    @property
    def watch(self) -> ClientWatch: ...

    def start(self) -> None: ...

    def ready(self) -> None: ...

    def stop(self, grace_s: float = ...) -> None: ...


class GatewayServer:
    """Serves beside `admin`, with which it starts and stops. `address` is HOST:PORT, and port 0 takes any free one.

    If `tls` is given, HTTP is served by it, and clients need a certificate of its authority if there is one, as for
    gRPC.
    """

    def __init__(
        self,
        admin: AdminEndpoint,
        address: str,
        version: str,
        *,
        tls: TlsSource | None = None,
        bounds: GatewayBounds = GatewayBounds(),  # noqa: B008  (frozen)
    ) -> None:
        self._admin = admin
        self._address = address
        self._version = version
        self._tls = tls
        self._bounds = bounds
        self._listener: _GatewayListener | None = None
        self._channel: grpc.Channel | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if it cannot be had."""
        self._admin.start()
        try:
            self._listener = _GatewayListener(self._address, self._bounds, self._version, self._tls)
        except ConfigurationError:
            self._admin.stop(0.0)
            raise
        self._address = self._listener.bound_address

    def ready(self) -> None:
        """Serve users."""
        self._admin.ready()
        if (listener := self._listener) is None:
            return
        admin = reachable(self._admin.address)
        self._channel = open_channel(admin, self._tls)
        listener.calls = JsonCalls(self._channel, admin)
        self._admin.watch.add(listener.callers.end_gone)
        self._thread = threading.Thread(
            target=lambda: listener.serve_forever(ACCEPT_LOOK_S), name="iscp-gateway", daemon=True
        )
        self._thread.start()
        log.info("gateway.serving", extra={"address": self._address})

    def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more; what is being answered may end within the gRPC server's `grace_s`."""
        if self._listener is not None:
            if self._thread is not None:
                self._listener.shutdown()
            self._listener.server_close()
        self._admin.stop(grace_s)
        if self._channel is not None:
            self._channel.close()
