"""Connections to the page, bounded in number, and in time while a request has not come, or an answer is not taken.

Nobody knows whose a connection is until its request has come.
"""

from __future__ import annotations

import asyncio
import socket
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

UNTAKEN_S = 10.0
"""Seconds for which a client may leave a part of an answer untaken, beyond what the kernel holds; then the connection
is closed.
"""

SOCKETS_MAX = 400
"""Connections that are open at a time, with those that only begin TLS or are refused; one more is closed at once."""

HEAD_BYTES_MAX = 32 * 1024
"""Bytes of a request's line and headers; with more the request is refused."""


class PageListener(socket.socket):
    """Accepts connections for an event loop; whoever comes, the node keeps its files."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection. Raises ConnectionAbortedError, with which loops go on, for one too many."""
        made, address = super().accept()
        if len(self._accepted) >= SOCKETS_MAX:
            self._accepted = [each for each in self._accepted if each.fileno() >= 0]
        if len(self._accepted) >= SOCKETS_MAX:
            made.close()
            raise ConnectionAbortedError("there are too many connections")
        self._accepted.append(made)
        return made, address


class PageConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; what the certificate says stands in the state of each request."""

    _silent: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # writing is paused while something is not taken
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            shown = shown_names(secured.getpeercert(binary_form=True) or b"")
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(UNTAKEN_S, self.cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_counting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_counting()
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """Close the connection at once; what it sent is dropped, and what it has not taken."""
        self._stop_waiting()
        self._stop_counting()
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

    def _stop_counting(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None


def _due_s(connection: PageConnection) -> float:
    return connection._silent.when() if connection._silent is not None else 0.0
