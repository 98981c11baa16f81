"""Serves the service `Admin` as JSON over HTTP, on a port of its own, with bounded connections.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

import grpc

from iscp.adapters.gateway.bounded_listener import ACCEPT_LOOK_S, BoundedListener
from iscp.adapters.gateway.caller_watch import CallerWatch
from iscp.adapters.gateway.json_calls import JsonCalls
from iscp.adapters.gateway.json_request import GatewayBounds, JsonRequest
from iscp.adapters.grpc.channel.call_metadata import open_channel
from iscp.adapters.grpc.channel.client_watch import ClientWatch
from iscp.adapters.tls.endpoint import reachable
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.errors import ConfigurationError

log = logging.getLogger(__name__)


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
