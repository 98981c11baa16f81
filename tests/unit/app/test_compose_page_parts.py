"""The page as a node's configuration has it."""

from __future__ import annotations

from http.client import HTTPConnection
from types import SimpleNamespace
from typing import cast

from iscp.app.compose import compose_page
from iscp.app.foundation import Foundation
from iscp.model.settings.config import JobLogConfig, NodeConfig, PageConfig
from iscp.server.page.page_server import NoServers, PageServer
from iscp.system.threads import SystemClock


def test_the_page_is_served_as_the_configuration_says() -> None:
    page = PageConfig(listen="127.0.0.1:0", hosts=("lake.example",))
    config = NodeConfig(node_id="iscp-7", cluster="lake", log=JobLogConfig(uri="/log"), page=page)
    foundation = cast(Foundation, SimpleNamespace(config=config, clock=SystemClock(), tls=None))
    server = compose_page(foundation, NoServers(), lambda: "127.0.0.1:1")
    assert isinstance(server, PageServer)
    server.start()
    try:
        server.ready()
        statuses = {}
        for host in ("lake.example", "other.example"):
            connection = HTTPConnection(server.address, timeout=30)
            connection.request("GET", "/", headers={"host": host, "accept": "text/html"})
            answer = connection.getresponse()
            text = answer.read().decode()
            statuses[host] = answer.status
            connection.close()
            assert "Node iscp-7" in text
            assert "· lake</title>" in text
    finally:
        server.stop(0.0)
    # Nobody answers at the address of the gRPC server, which the page says; of a foreign name it is refused.
    assert statuses == {"lake.example": 503, "other.example": 403}
