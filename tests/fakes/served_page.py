"""The page over HTTP, served as a node serves it: beside a gRPC server, or for a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from iscp.ports.system import Clock
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from iscp.server.page.page_boards import OF_A_CLUSTER, Offer
from iscp.server.page.page_server import NoServers, PageServer, PageSettings
from iscp.system.threads import SystemClock
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator
from tests.fakes.viewed_cluster import ViewedCluster


@contextmanager
def page_of(
    cluster: ViewedCluster, clock: Clock | None = None, authentication: bool = False, offer: Offer = OF_A_CLUSTER
) -> Iterator[PageServer]:
    settings = PageSettings("127.0.0.1:0", cluster="demo", node_id="iscp-0", authentication=authentication, offer=offer)
    server = PageServer(NoServers(), lambda: "", settings, clock or SystemClock(), connect=lambda *_: cluster)
    with running(server):
        yield server


@contextmanager
def page_beside(admin: FakeAdmin, access: Access | None = None, tls: Any = None) -> Iterator[PageServer]:
    """Serve the page beside the real gRPC server over `admin`; with `access` callers are authenticated."""
    server = AdminServer(
        admin,
        "localhost:0",
        tls=tls,
        services=[OperatorServer(FakeOperator()), *([AccessServer(access.service)] if access else [])],
        interceptors=[access.interceptor] if access else [],
    )
    settings = PageSettings("localhost:0", cluster="demo", node_id="n1", authentication=access is not None)
    page = PageServer(server, lambda: server.address, settings, SystemClock(), tls)
    with running(page):
        yield page


@contextmanager
def running(server: PageServer) -> Iterator[None]:
    server.start()
    try:
        server.ready()
        yield
    finally:
        server.stop(0.0)
