"""Serves a node's metrics to Prometheus, on a port of its own, with bounded connections.

Threads: one for each connection while its request is read and answered, and one that accepts.
"""

from __future__ import annotations

import io
import logging
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from iscp.model.access.service_table import Credentials
from iscp.model.values.errors import IscpError
from iscp.server.http.gateway_server import ACCEPT_LOOK_S, BoundedListener
from iscp.system.http_exchange import BoundedReader
from iscp.system.tls.tls_files import TlsSource, shown_names

log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""How long a request for metrics may take to come in, and its answer to be taken; then the connection is closed."""

REQUEST_BYTES_MAX = 16 * 1024
"""Bytes of a request's line and headers; with more the connection is closed."""

ANSWERS_MAX = 8
"""Requests for metrics that are answered at a time; one more is refused with 503."""

METRICS_PATH = "/metrics"

Allowed = Callable[[Credentials], bool]
"""Return whether such a caller may read metrics. May raise IscpError."""


class _MetricsListener(BoundedListener):
    """The port of a node's metrics, with what its requests need."""

    def __init__(self, address: str, registry: CollectorRegistry, tls: TlsSource | None, allowed: Allowed) -> None:
        self.registry = registry
        self.allowed = allowed
        self.answering = threading.BoundedSemaphore(ANSWERS_MAX)
        self.collecting = threading.Lock()
        super().__init__("metrics.listen", address, _ScrapeRequest, tls, REQUEST_S)


class _ScrapeRequest(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    server: _MetricsListener
    timeout = REQUEST_S
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
        self._listener = _MetricsListener(address, registry, tls, allowed)
        self.address = self._listener.bound_address
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
