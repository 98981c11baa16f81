"""The page's HTTP server, in a thread with an event loop of its own, beside the servers of a node.

Whatever happens to it, the node goes on: it shares no thread with anything else.
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

from iscp.adapters.tls.endpoint import split_address
from iscp.adapters.tls.server_credentials import ServerContext
from iscp.adapters.tls.tls_files import TlsSource
from iscp.core.values.errors import ConfigurationError
from iscp.page.serving.held_answers import HeldAnswers
from iscp.page.serving.page_app import PageApp
from iscp.page.serving.page_boards import OF_A_CLUSTER, Offer
from iscp.page.serving.page_connection import CONNECTIONS_MAX, HEAD_BYTES_MAX, PageListener, connection_of
from iscp.page.serving.page_viewers import Viewers
from iscp.page.serving.viewer_calls import PageClients, ViewerClients
from iscp.ports.system import Clock

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
