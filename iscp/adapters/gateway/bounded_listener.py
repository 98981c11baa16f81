"""A port on which HTTP is served by a thread for each connection; those that say nothing yet are bounded.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import logging
import socket
import socketserver
from http.server import BaseHTTPRequestHandler
from typing import Any

from iscp.adapters.gateway.pending_connections import PENDING_MAX, PendingConnections
from iscp.adapters.tls.endpoint import split_address
from iscp.adapters.tls.server_credentials import ServerContext
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.errors import ConfigurationError

log = logging.getLogger(__name__)

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
