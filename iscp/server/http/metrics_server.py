"""Serves a node's metrics to Prometheus, on a port of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from iscp.model.access.service_table import Credentials
from iscp.model.values.errors import IscpError
from iscp.server.http.http_server import NAMES_STATE, HttpServer
from iscp.system.tls.tls_files import TlsSource

log = logging.getLogger(__name__)

ANSWERS_MAX = 8
"""Requests for metrics that are answered at a time; one more is refused with 503."""

METRICS_PATH = "/metrics"

Allowed = Callable[[Credentials], bool]
"""Return whether such a caller may read metrics. May raise IscpError."""

_CLOSE: Mapping[str, str] = {"connection": "close"}


class MetricsApp:
    """The application of the port (ASGI). Metrics are collected in threads: others' code may be in it, and wait."""

    def __init__(self, registry: CollectorRegistry, allowed: Allowed) -> None:
        self._registry = registry
        self._allowed = allowed
        self._collecting = threading.Lock()
        self._threads = ThreadPoolExecutor(ANSWERS_MAX, thread_name_prefix="iscp-metrics-read")
        self._answering = 0

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        response = await self._response(Request(scope, receive))
        await response(scope, receive, send)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _response(self, request: Request) -> Response:
        if request.url.path != METRICS_PATH or request.method != "GET":
            return _error(HTTPStatus.NOT_FOUND, "metrics are at /metrics")
        if self._answering >= ANSWERS_MAX:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at a time")
        self._answering += 1
        try:
            read = partial(self._read, _credentials_of(request), request.headers.get("accept", ""))
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)
        finally:
            self._answering -= 1

    def _read(self, credentials: Credentials, accepted: str) -> Response:
        try:
            allowed = self._allowed(credentials)
        except IscpError as error:
            return _error(HTTPStatus.UNAUTHORIZED, error.sentence)
        if not allowed:
            return _error(HTTPStatus.FORBIDDEN, "metrics are of all accounts: not this caller's to read")
        encode, media_type = choose_encoder(accepted)
        with self._collecting:  # OpenTelemetry's reader would mix two collections
            body: bytes = encode(self._registry)
        return Response(body, headers={"content-type": media_type, **_CLOSE})


def _credentials_of(request: Request) -> Credentials:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    names: frozenset[str] = request.scope.get("state", {}).get(NAMES_STATE, frozenset())
    return Credentials(token.strip() if scheme.lower() == "bearer" else "", names)


def _error(status: HTTPStatus, message: str) -> Response:
    return PlainTextResponse(f"{message}\n", status.value, _CLOSE)


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
        self._server = HttpServer("metrics.listen", address, tls)
        self._app = MetricsApp(registry, allowed)
        self.address = self._server.address

    def start(self) -> None:
        self._server.start(self._app, "iscp-metrics")

    def close(self) -> None:
        self._server.stop(0.0)
        self._app.close()
