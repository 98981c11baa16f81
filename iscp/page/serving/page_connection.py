"""Connections to the page, bounded in number, and in time while a request has not come, or an answer is not taken.

Nobody knows whose a connection is until its request has come: until then it gives way to others, as on the other ports.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from iscp.adapters.gateway.pending_connections import PENDING_MAX, Address, PendingConnections
from iscp.adapters.tls.certificate_names import shown_names
from iscp.page.serving.page_viewers import NAMES_STATE

REQUEST_S = 10.0
"""Seconds that a request's head may take to come in; then the connection is closed."""

ANSWERS_MAX = 256
"""Connections whose answer is under way or was the last; as many more may be pending (`PENDING_MAX`)."""

CONNECTIONS_MAX = ANSWERS_MAX + PENDING_MAX
"""Connections at a time; a request on one more is answered with 503."""

UNTAKEN_S = 10.0
"""Seconds for which a client may leave a part of an answer untaken, beyond what the kernel holds; then the connection
is closed.
"""

SOCKETS_MAX = CONNECTIONS_MAX + 128
"""Connections that are open at a time, with those that are being refused or closed; one more is closed at once."""

HEAD_BYTES_MAX = 32 * 1024
"""Bytes of a request's line and headers; with more the request is refused."""


class PageListener(socket.socket):
    """Accepts connections for an event loop; whoever comes, the node keeps its files."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._pending = PendingConnections()
        self._accepted: dict[Address, socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection. Raises ConnectionAbortedError, with which loops go on, for one too many."""
        made, address = super().accept()
        if len(self._accepted) >= SOCKETS_MAX:
            self._accepted = {key: each for key, each in self._accepted.items() if each.fileno() >= 0}
        if len(self._accepted) >= SOCKETS_MAX:
            made.close()
            raise ConnectionAbortedError("there are too many connections")
        self._accepted[address] = made
        self.await_request(address)
        return made, address

    def await_request(self, address: Address) -> None:
        """Have a connection give way to others until its next request is there."""
        if (made := self._accepted.get(address)) is not None:
            self._pending.enter(address, made)

    def leave(self, address: Address) -> None:
        """Wait no longer for a connection: its request is there, or it is closed."""
        self._pending.leave(address)


class PageConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; what the certificate says stands in the state of each request."""

    listener: PageListener
    """The port: each has a class of its own (`connection_of`)."""

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

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self.listener.await_request(self._address)

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

    @property
    def _address(self) -> Address:
        return tuple(self.transport.get_extra_info("peername") or ())

    def _stop_waiting(self) -> None:
        self.listener.leave(self._address)
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _stop_counting(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None


def connection_of(listener: PageListener) -> type[PageConnection]:
    """Return the class of the connections of a port."""
    return type("PortConnection", (PageConnection,), {"listener": listener})
