"""A port of a node on which HTTP is served, by uvicorn in a thread with an event loop of its own.

The page, the gateway and the metrics are applications (ASGI) on such ports. Whatever happens to a port, the node goes
on. Nobody knows whose a connection is until its request has come: until then it gives way to others.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from iscp.model.values.errors import ConfigurationError
from iscp.system.tls.renewing_channel import ServerContext
from iscp.system.tls.tls_files import TlsSource, shown_names, split_address

log = logging.getLogger(__name__)

PENDING_MAX = 256
"""Connections to a port whose request has not come whole, TLS included; for one more the oldest is closed."""

PENDING_PER_HOST_MAX = 64
"""Connections from one address among these; for one more the oldest of them is closed."""

ANSWERS_MAX = 256
"""Connections whose answer is under way or was the last; as many more may be pending (`PENDING_MAX`)."""

CONNECTIONS_MAX = ANSWERS_MAX + PENDING_MAX
"""Connections at a time; a request on one more is answered with 503."""

SOCKETS_MAX = CONNECTIONS_MAX + 128
"""Connections that are open at a time, with those that are being refused or closed; one more is closed at once."""

REQUEST_S = 10.0
"""Seconds that a request may take to come in, from the connection to its last byte; then the connection is closed."""

HEAD_BYTES_MAX = 32 * 1024
"""Bytes of a request's line and headers; with more the request is refused."""

BACKLOG = 128
"""Connections that the kernel holds until they are accepted; further ones are refused."""

ACCEPTS_MAX = 8
"""Connections that are accepted in one turn of the event loop: requests that have come with them are read in the next
ones, before their connections would have to give way to each other.
"""

HANDSHAKE_S = 10.0
"""Seconds that TLS may take to begin; then the connection is closed."""

KEEP_ALIVE_S = 5
"""Seconds that a connection without a request is kept open after an answer."""

STOP_S = 2.0
"""Seconds that answers may take to end when a port stops, unless more are given; then they are cut."""

STOP_S_LEAST = 0.2
"""Seconds that the loop of a port has at least to close its connections."""

NAMES_STATE = "names"
"""The key, in the state of a request, of the names in the certificate that its client has shown."""

Address = tuple[Hashable, ...]
"""A peer's: the host, the port, and what else the family has."""

Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""An application by the protocol ASGI 3."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds of a port's connections. `untaken_s`: seconds for which a client may leave a part of an answer
    untaken, beyond what the kernel holds; then the connection is closed.
    """

    request_s: float = REQUEST_S
    untaken_s: float = 10.0


# --- connections ------------------------------------------------------------------------------------------------------


class PendingConnections:
    """The pending connections by the addresses of their peers, the oldest first; for one thread at a time."""

    def __init__(self) -> None:
        self._pending: dict[Address, socket.socket] = {}

    def enter(self, address: Address, connection: socket.socket) -> None:
        """Add a connection, without waiting or refusing it."""
        if address not in self._pending:
            of_host = [each for each in self._pending if each[0] == address[0]]
            if len(of_host) >= PENDING_PER_HOST_MAX:
                self._close(of_host[0])
            elif len(self._pending) >= PENDING_MAX:
                self._close(next(iter(self._pending)))
        self._pending[address] = connection

    def leave(self, address: Address) -> None:
        """Forget a connection whose request is there, or that is closed."""
        self._pending.pop(address, None)

    def _close(self, address: Address) -> None:
        log.info("port.gave_way", extra={"peer": str(address[0])})
        with suppress(OSError):  # its peer has gone
            self._pending.pop(address).shutdown(socket.SHUT_RDWR)


class BoundedSocket(socket.socket):
    """Accepts connections for an event loop; whoever comes, the node keeps its files."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._pending = PendingConnections()
        self._accepted: dict[Address, socket.socket] = {}

    def listen(self, _backlog: int = BACKLOG, /) -> None:
        """Listen with BACKLOG; event loops have one number for that and for how many are accepted in a turn."""
        super().listen(BACKLOG)

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


class BoundedConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; what the certificate says stands in the state of each request."""

    listener: BoundedSocket
    """The port: each has a class of its own (`_connection_of`)."""

    bounds: HttpBounds

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
        if self._answering and not self.cycle.more_body:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(self.bounds.untaken_s, self.cut_off)

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
        self._silent = self.loop.call_later(self.bounds.request_s, self.cut_off)

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


def _connection_of(listener: BoundedSocket, bounds: HttpBounds) -> type[BoundedConnection]:
    """Return the class of the connections of a port."""
    return type("PortConnection", (BoundedConnection,), {"listener": listener, "bounds": bounds})


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers bound the time that TLS takes to begin, for which uvicorn has no setting."""

    async def create_server(self, *arguments: Any, **given: Any) -> Any:
        if given.get("ssl") is not None:
            given["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(*arguments, **given)


# --- the port ---------------------------------------------------------------------------------------------------------


class HttpServer:
    """Takes its port at once, and serves an application from `start` to `stop`, in a thread.

    `address` is HOST:PORT; port 0 takes any free one. If `tls` is given, clients need a certificate of its authority if
    there is one, as for gRPC.
    """

    def __init__(
        self,
        setting: str,
        address: str,
        tls: TlsSource | None = None,
        bounds: HttpBounds = HttpBounds(),
    ) -> None:
        """Raises ConfigurationError, which names the setting that the address is of, if the port cannot be had."""
        host, port = split_address(address)
        self._setting = setting
        self._bounds = bounds
        self._tls = tls
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = BoundedSocket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host.strip("[]"), port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"cannot listen on {address} ({error.strerror or error})",
                field=setting,
                remedy="Is the port taken? Choose another",
            ) from error
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def start(self, application: Application, thread_name: str, *, lifespan: bool = False) -> None:
        """Serve; with `lifespan` the application hears when it begins and ends."""
        self._server = uvicorn.Server(self._config(application, lifespan))
        self._thread = threading.Thread(target=self._serve, args=(self._server,), name=thread_name, daemon=True)
        self._thread.start()
        log.info("port.serving", extra={"setting": self._setting, "address": self.address})

    def end(self, grace_s: float = STOP_S) -> None:
        """Accept nothing more, without waiting; what is being answered has `grace_s` seconds."""
        if self._server is not None:
            # The least is for connections that idle; uvicorn awaits it as a float.
            self._server.config.timeout_graceful_shutdown = max(grace_s, STOP_S_LEAST)  # type: ignore[assignment]
            self._server.should_exit = True

    def call(self, function: Callable[[], object]) -> None:
        """Have the event loop call a function, if it runs."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(function)

    def stop(self, grace_s: float = STOP_S) -> None:
        self.end(grace_s)
        if self._thread is not None:
            self._thread.join(grace_s + 1.0)
        self._socket.close()

    def _config(self, application: Application, lifespan: bool) -> uvicorn.Config:
        tls: Mapping[str, Any] = {}
        if self._tls is not None:
            context = _renewed_context(self._tls)
            tls = {"ssl_context_factory": lambda config, default: context}
        return uvicorn.Config(
            application,
            http=_connection_of(self._socket, self._bounds),
            ws="none",
            lifespan="on" if lifespan else "off",
            loop="none",
            log_config=None,
            log_level="error",  # who sends what is no HTTP shall not fill the log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=ACCEPTS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            **tls,
        )

    def _serve(self, server: uvicorn.Server) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                self._loop = runner.get_loop()
                runner.run(server.serve(sockets=[self._socket]))
        except BaseException:
            log.exception("port.failed", extra={"setting": self._setting})  # the node goes on without this port


def _renewed_context(tls: TlsSource) -> ssl.SSLContext:
    """Return a context that takes the newest certificates for each connection, as they are renewed in use."""
    contexts = ServerContext(tls)

    def take_newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    first = contexts.current()
    first.sni_callback = take_newest
    return first
