"""The page of a node: its application on a port of its own, beside the servers of a node.

Whatever happens to the page, the node goes on: it shares no thread with anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import Clock
from iscp.server.http.http_server import STOP_S, HttpServer
from iscp.server.page.page_app import PageApp
from iscp.server.page.page_boards import OF_A_CLUSTER, Offer
from iscp.server.page.page_viewers import HeldAnswers, PageClients, ViewerClients, Viewers
from iscp.system.tls.tls_files import TlsSource


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
        self._connect = connect
        self._server: HttpServer | None = None
        self._clients: ViewerClients | None = None
        self._answers: HeldAnswers | None = None
        self._app: PageApp | None = None

    @property
    def address(self) -> str:
        return self._server.address if self._server is not None else self._settings.listen

    def start(self) -> None:
        """Take the port; nobody is answered yet. Raises ConfigurationError if it cannot be had."""
        self._others.start()
        try:
            self._server = HttpServer("page.listen", self._settings.listen, self._tls)
        except ConfigurationError:
            self._others.stop(0.0)
            raise

    def ready(self) -> None:
        """Serve users."""
        self._others.ready()
        if self._server is None:
            return
        self._clients = self._connect(self._admin_address(), self._tls)
        self._answers = HeldAnswers(self._clients, self._clock)
        settings = self._settings
        viewers = Viewers(settings.authentication, settings.hosts, self._tls is not None)
        self._app = PageApp(
            self._clients, self._answers, viewers, self._clock, settings.cluster, settings.node_id, settings.offer
        )
        self._server.start(self._app.guarded, "iscp-page", lifespan=True)

    def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more, and end the live streams; then stop the other servers, which have `grace_s`."""
        if self._server is not None:
            self._server.end()
            if self._app is not None:
                self._server.call(self._app.streams.end_all)
            self._server.stop(STOP_S)
        if self._answers is not None:
            self._answers.close()
        self._others.stop(grace_s)
        if self._clients is not None:
            self._clients.close()
