"""The page's HTTP server, in a thread with an event loop of its own, beside the servers of a node.

Whatever happens to the page, the node goes on: the server shares no thread with anything else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import Clock
from iscp.server.http.gateway_server import PENDING_MAX, Address, PendingConnections
from iscp.server.page.page_app import PageApp
from iscp.server.page.page_boards import OF_A_CLUSTER, Offer
from iscp.server.page.page_viewers import NAMES_STATE, HeldAnswers, PageClients, ViewerClients, Viewers
from iscp.system.tls.renewing_channel import ServerContext
from iscp.system.tls.tls_files import TlsSource, shown_names, split_address

# --- connections ------------------------------------------------------------------------------------------------------
# Connections are bounded in number, and in time while a request has not come, or an answer is not taken. Nobody knows
# whose a connection is until its request has come: until then it gives way to others, as on the other ports.

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


# --- the server -------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that the kernel holds until they are accepted; further ones are refused."""

HANDSHAKE_S = 10.0
"""Seconds that TLS may take to begin; then the connection is closed."""

KEEP_ALIVE_S = 5
"""Seconds that a connection without a request is kept open after an answer."""

STOP_S = 2
"""Seconds that answers may take to end when the node stops; then they are cut."""


class NodeServers(Protocol):
    """The other servers of a node, with which the page starts and stops."""

    def start(self) -> None: ...

    def ready(self) -> None: ...

    def stop(self, grace_s: float = ...) -> None: ...


@dataclass(frozen=True, slots=True)
class PageSettings:
    """`listen` is HOST:PORT, where port 0 takes any free one; `hosts` are names by which the page is reached."""

    listen: str
    hosts: tuple[str, ...] = ()
    authentication: bool = False
    cluster: str = ""
    node_id: str = ""
    offer: Offer = OF_A_CLUSTER


class NoServers(NodeServers):
    """The other servers of a process that has none."""

    def start(self) -> None: ...

    def ready(self) -> None: ...

    def stop(self, grace_s: float = 0.0) -> None: ...


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers bound the time that TLS takes to begin, for which uvicorn has no setting."""

    async def create_server(self, *arguments: Any, **given: Any) -> Any:
        if given.get("ssl") is not None:
            given["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(*arguments, **given)


class PageServer:
    """Serves beside `others`, with which it starts and stops. `admin_address` is known once those have started."""

    def __init__(
        self,
        others: NodeServers,
        admin_address: Callable[[], str],
        settings: PageSettings,
        clock: Clock,
        tls: TlsSource | None = None,
        connect: Callable[[str, TlsSource | None], ViewerClients] = PageClients,
    ) -> None:
        self._others = others
        self._admin_address = admin_address
        self._settings = settings
        self._clock = clock
        self._tls = tls
        self._address = settings.listen
        self._socket: PageListener | None = None
        self._connect = connect
        self._clients: ViewerClients | None = None
        self._answers: HeldAnswers | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._end_streams: Callable[[], object] = lambda: None

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if it cannot be had."""
        self._others.start()
        host, port = split_address(self._settings.listen)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        made = PageListener(family)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host.strip("[]"), port))
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            self._others.stop(0.0)
            raise ConfigurationError(
                f"cannot listen on {self._settings.listen} ({error.strerror or error})",
                field="page.listen",
                remedy="Is the port taken? Choose another",
            ) from error
        self._socket = made
        self._address = f"{host}:{made.getsockname()[1]}"

    def ready(self) -> None:
        """Serve users."""
        self._others.ready()
        if self._socket is None:
            return
        self._clients = self._connect(self._admin_address(), self._tls)
        self._answers = HeldAnswers(self._clients, self._clock)
        viewers = Viewers(self._settings.authentication, self._settings.hosts, self._tls is not None)
        settings = self._settings
        app = PageApp(
            self._clients, self._answers, viewers, self._clock, settings.cluster, settings.node_id, settings.offer
        )
        self._server = uvicorn.Server(self._config(app, self._socket))
        self._thread = threading.Thread(target=self._serve, args=(self._server, app), name="iscp-page", daemon=True)
        self._thread.start()
        log.info("page.serving", extra={"address": self._address})

    def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more, and end the live streams; then stop the other servers, which have `grace_s`."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            with suppress(RuntimeError):  # the loop has ended by itself
                self._end_streams()
            self._thread.join(STOP_S + 1.0)
        if self._socket is not None:
            self._socket.close()
        if self._answers is not None:
            self._answers.close()
        self._others.stop(grace_s)
        if self._clients is not None:
            self._clients.close()

    def _config(self, app: PageApp, listener: PageListener) -> uvicorn.Config:
        context = _renewed_context(self._tls) if self._tls is not None else None

        def given_context(config: uvicorn.Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
            assert context is not None
            return context

        return uvicorn.Config(
            app.guarded,
            http=connection_of(listener),
            ws="none",
            lifespan="on",
            loop="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
            ssl_context_factory=given_context if context is not None else None,
        )

    def _serve(self, server: uvicorn.Server, app: PageApp) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                loop = runner.get_loop()
                self._end_streams = lambda: loop.call_soon_threadsafe(app.streams.end_all)
                runner.run(server.serve(sockets=[self._socket] if self._socket is not None else []))
        except BaseException:
            log.exception("page.failed")  # the node goes on without its page


def _renewed_context(tls: TlsSource) -> ssl.SSLContext:
    """Return a context that takes the newest certificates for each connection, as they are renewed in use."""
    contexts = ServerContext(tls)

    def take_newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    first = contexts.current()
    first.sni_callback = take_newest
    return first
