"""Serves a node's metrics to Prometheus, on a port of its own, with bounded connections.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from iscp.adapters.gateway.pending_connections import PENDING_MAX, PendingConnections
from iscp.adapters.system.bounded_reader import BoundedReader
from iscp.adapters.tls.certificate_names import shown_names
from iscp.adapters.tls.endpoint import split_address
from iscp.adapters.tls.server_credentials import ServerContext
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.access_roles import Credentials
from iscp.core.values.errors import ConfigurationError, IscpError

log = logging.getLogger(__name__)

ACCEPT_LOOK_S = 0.5
"""How often the thread that accepts checks whether it is to end."""

REQUEST_S = 10.0
"""How long a request for metrics may take to come in, and its answer to be taken; then the connection is closed."""

REQUEST_BYTES_MAX = 16 * 1024
"""Bytes of a request's line and headers; with more the connection is closed."""

ANSWERS_MAX = 8
"""Requests for metrics that are answered at a time; one more is refused with 503."""

METRICS_PATH = "/metrics"

Allowed = Callable[[Credentials], bool]
"""Return whether such a caller may read metrics. May raise IscpError."""


class _MetricsListener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = PENDING_MAX

    def __init__(
        self,
        address: tuple[str, int],
        family: socket.AddressFamily,
        registry: CollectorRegistry,
        tls: TlsSource | None,
        allowed: Allowed,
    ) -> None:
        self.address_family = family
        self.registry = registry
        self.allowed = allowed
        self.pending = PendingConnections()
        self.answering = threading.BoundedSemaphore(ANSWERS_MAX)
        self.collecting = threading.Lock()
        self._tls = ServerContext(tls) if tls is not None else None
        super().__init__(address, _ScrapeRequest)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.pending.enter(client_address, request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread did not start
            self.pending.leave(client_address)
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(REQUEST_S)
            if self._tls is not None:
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
        log.info("metrics.request_failed", exc_info=True)


class _ScrapeRequest(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    server: _MetricsListener
    protocol_version = "HTTP/1.1"
    server_version = "iscp"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(BoundedReader(self.connection, REQUEST_S, REQUEST_BYTES_MAX))

    def handle(self) -> None:
        self.close_connection = True
        try:
            self.handle_one_request()
        except OSError as error:  # the client is gone, too slow, or sends too much
            log.info("metrics.cut_off", extra={"why": str(error) or type(error).__name__})

    def parse_request(self) -> bool:
        """Parse one request a connection: connections that stayed open would have to be bounded."""
        parsed = super().parse_request()
        self.close_connection = True
        return parsed

    def do_GET(self) -> None:
        self.server.pending.leave(self.client_address)
        if self.path.partition("?")[0] != METRICS_PATH:
            self.send_error(HTTPStatus.NOT_FOUND, "metrics are at /metrics")
            return
        if not self.server.answering.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at a time")
            return
        try:
            if (refusal := self._refusal()) is not None:
                self.send_error(*refusal)
            else:
                self._send_metrics()
        finally:
            self.server.answering.release()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug("metrics.request", extra={"said": format % args})

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Return why the caller is refused, or None if it is allowed."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        names = frozenset[str]()
        if isinstance(self.connection, ssl.SSLSocket):
            shown = shown_names(self.connection.getpeercert(binary_form=True) or b"")
            names = shown.dns | shown.others
        try:
            allowed = self.server.allowed(Credentials(token.strip() if scheme.lower() == "bearer" else "", names))
        except IscpError as error:
            return HTTPStatus.UNAUTHORIZED, error.sentence
        return None if allowed else (HTTPStatus.FORBIDDEN, "metrics are of all accounts: not this caller's to read")

    def _send_metrics(self) -> None:
        encode, media_type = choose_encoder(self.headers.get("Accept", ""))
        with self.server.collecting:  # OpenTelemetry's reader would mix two collections
            body: bytes = encode(self.server.registry)
        self.connection.settimeout(REQUEST_S)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class MetricsServer:
    """Takes its port at once, and serves from `start` to `close`. `address` is HOST:PORT; port 0 takes any free one.

    If `tls` is given, clients need a certificate of its authority if there is one, as for gRPC.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        *,
        tls: TlsSource | None = None,
        allowed: Allowed = lambda credentials: True,
    ) -> None:
        """Raises ConfigurationError if the port cannot be had."""
        host, port = split_address(address)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            self._listener = _MetricsListener((host.strip("[]"), port), family, registry, tls, allowed)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {address} ({error.strerror or error})",
                field="metrics.listen",
                remedy="Is the port taken? Choose another, or leave metrics.listen empty",
            ) from error
        self.address = f"{host}:{self._listener.server_address[1]}"
        self._thread = threading.Thread(
            target=lambda: self._listener.serve_forever(ACCEPT_LOOK_S), name="iscp-metrics", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        log.info("metrics.serving", extra={"address": self.address})

    def close(self) -> None:
        if self._thread.is_alive():
            self._listener.shutdown()
        self._listener.server_close()
