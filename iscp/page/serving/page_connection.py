"""A connection to the page, bounded while its request has not come: nobody knows whose it is until then."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from iscp.adapters.tls.certificate_names import shown_names
from iscp.page.serving.page_viewers import NAMES_STATE

REQUEST_S = 10.0
"""Seconds that a request's head may take to come in; then the connection is closed."""

CONNECTIONS_MAX = 256
"""Connections at a time; a request on one more is answered with 503."""

SILENT_MAX = 128
"""Connections whose request has not come among these; for one more the oldest of them is closed."""

HEAD_BYTES_MAX = 32 * 1024
"""Bytes of a request's line and headers; with more the request is refused."""


class PageConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; what the certificate says stands in the state of each request."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        socket = transport.get_extra_info("ssl_object")
        if socket is not None:
            shown = shown_names(socket.getpeercert(binary_form=True) or b"")
            self.app_state = {**self.app_state, NAMES_STATE: frozenset(shown.dns | shown.others)}
        self._await_request()
        silent = [each for each in self.connections if isinstance(each, PageConnection) and each._silent is not None]
        if len(silent) > SILENT_MAX:
            min(silent, key=_due_s).cut_off()

    def data_received(self, data: bytes) -> None:
        if self._silent is None and not self._answering:
            self._await_request()
        super().data_received(data)
        if self._answering:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """Close the connection at once; what it sent is dropped."""
        self._stop_waiting()
        self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        self._silent = self.loop.call_later(REQUEST_S, self.cut_off)

    def _stop_waiting(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None


def _due_s(connection: PageConnection) -> float:
    return connection._silent.when() if connection._silent is not None else 0.0
