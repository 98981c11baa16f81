"""Serves the service `Admin` as JSON over HTTP, on a port of its own, with bounded connections.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from typing import Any, Protocol

import grpc

from iscp.adapters.gateway.caller_watch import CallerWatch
from iscp.adapters.gateway.json_calls import JsonCalls
from iscp.adapters.gateway.json_request import GatewayBounds, JsonRequest
from iscp.adapters.gateway.pending_connections import PENDING_MAX, PendingConnections
from iscp.adapters.grpc.channel.call_metadata import open_channel
from iscp.adapters.grpc.channel.client_watch import ClientWatch
from iscp.adapters.tls.endpoint import reachable, split_address
from iscp.adapters.tls.server_credentials import ServerContext
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.errors import ConfigurationError

log = logging.getLogger(__name__)

ACCEPT_LOOK_S = 0.5
"""How often the thread that accepts checks whether it is to end."""


class _Listener(socketserver.ThreadingTCPServer):
    """A socket that accepts; each connection has a thread."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = PENDING_MAX

    def __init__(
        self,
        address: tuple[str, int],
        family: socket.AddressFamily,
        bounds: GatewayBounds,
        version: str,
        tls: TlsSource | None,
    ) -> None:
        self.address_family = family
        self.bounds = bounds
        self.version = version
        self.calls: JsonCalls | None = None
        self.pending = PendingConnections()
        self.callers = CallerWatch()
        self._tls = ServerContext(tls) if tls is not None else None
        super().__init__(address, JsonRequest)

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
                request.settimeout(self.bounds.read_timeout_s)
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
        log.info("gateway.failed", exc_info=True)


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
        self._listener: _Listener | None = None
        self._channel: grpc.Channel | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if it cannot be had."""
        self._admin.start()
        host, port = split_address(self._address)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            self._listener = _Listener((host.strip("[]"), port), family, self._bounds, self._version, self._tls)
        except OSError as error:
            self._admin.stop(0.0)
            raise ConfigurationError(
                f"cannot listen on {self._address} ({error.strerror or error})",
                field="gateway.listen",
                remedy="Is the port taken? Choose another",
            ) from error
        self._address = f"{host}:{self._listener.server_address[1]}"

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
