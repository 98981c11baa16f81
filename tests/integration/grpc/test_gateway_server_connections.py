"""Connections to the gateway that say nothing, and callers who do not wait for their answer: neither stops others."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import pytest

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.settings.config import WaitBounds
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.server.admin.admin_server import AdminServer
from iscp.server.http.gateway_server import GatewayServer
from iscp.server.http.http_server import PENDING_MAX, PENDING_PER_HOST_MAX
from iscp.server.http.json_calls import LONG_CALLS_MAX
from iscp.system.tls.tls_files import Tls
from tests.fakes.admin import FakeAdmin
from tests.fakes.certificates import certified, known
from tests.fakes.waiting import until

JOB = {"table": "/sales", "name": "copy"}
HEAD = b"POST /v1/CountJobs HTTP/1.1\r\nhost: x\r\n"


@contextmanager
def serving(service: FakeAdmin, tls: Tls | None = None) -> Iterator[GatewayServer]:
    admin = AdminServer(service, "localhost:0", max_workers=8, waits=WaitBounds(caller_max=LONG_CALLS_MAX), tls=tls)
    made = GatewayServer(admin, "localhost:0", "1.2.3", tls=tls)
    made.start()
    made.ready()
    try:
        yield made
    finally:
        made.stop(0.0)


@pytest.fixture
def service() -> FakeAdmin:
    made = FakeAdmin()
    made.register([RegisterRequest(JobName("/sales", "copy"), JobSpec(ConsumerSpec("replica", "/copy")).to_json())])
    return made


@pytest.fixture
def gateway(service: FakeAdmin) -> Iterator[GatewayServer]:
    with serving(service) as made:
        yield made


@contextmanager
def connected(gateway: GatewayServer, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    host, _, port = gateway.address.rpartition(":")
    with ExitStack() as opened:
        made = []
        for _ in range(count):
            made.append(opened.enter_context(socket.create_connection((host, int(port)), 60)))
            made[-1].sendall(said)
        yield made


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def request(name: str, content: object) -> bytes:
    body = json.dumps(content)
    head = (
        f"POST /v1/{name} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def call(connection: HTTPConnection, name: str, content: object) -> tuple[int, Any]:
    connection.request("POST", f"/v1/{name}", json.dumps(content), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{"])
def test_connections_whose_request_does_not_come_give_way(gateway: GatewayServer, said: bytes) -> None:
    with connected(gateway, PENDING_MAX, said) as silent:
        for _ in range(5):
            assert call(HTTPConnection(gateway.address, timeout=60), "CountJobs", {})[0] == 200
        until(lambda: sum(map(is_closed, silent)) >= PENDING_MAX - PENDING_PER_HOST_MAX)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_so_do_those_that_do_not_begin_with_tls(service: FakeAdmin, said: bytes) -> None:
    tls = certified()
    with serving(service, tls) as gateway, connected(gateway, PENDING_MAX, said):
        connection = HTTPSConnection(gateway.address, timeout=60, context=known(tls))
        assert call(connection, "CountJobs", {})[0] == 200


def test_waits_leave_places_for_other_calls_and_end_with_their_callers(
    gateway: GatewayServer, service: FakeAdmin
) -> None:
    waits, brief = request("WaitJob", {"job": JOB, "timeout_s": 600}), {"job": JOB, "timeout_s": 0.01}
    with connected(gateway, LONG_CALLS_MAX, waits):
        until(lambda: service.waiting == LONG_CALLS_MAX)
        status, answer = call(HTTPConnection(gateway.address, timeout=60), "WaitJob", brief)
        assert (status, answer["error"]["name"]) == (429, "QUEUE_FULL")
        assert call(HTTPConnection(gateway.address, timeout=60), "GetJob", {"job": JOB})[0] == 200
    until(lambda: service.waiting == 0)
    until(lambda: call(HTTPConnection(gateway.address, timeout=60), "WaitJob", brief)[0] == 504)


def test_with_tls_a_wait_ends_with_its_caller_too(service: FakeAdmin) -> None:
    tls = certified()
    with serving(service, tls) as gateway:
        secure = HTTPSConnection(gateway.address, timeout=60, context=known(tls))
        secure.request(
            "POST", "/v1/WaitJob", json.dumps({"job": JOB, "timeout_s": 600}), {"content-type": "application/json"}
        )
        until(lambda: service.waiting == 1)
        secure.close()
        until(lambda: service.waiting == 0)
