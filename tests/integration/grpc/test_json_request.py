"""JSON over HTTP in front of a real gRPC server: what is answered, what is refused, and what is cut off."""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from iscp.model.settings.config import WaitBounds
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import (
    ConfigurationError,
    ErrorCode,
    NotOwner,
    OutcomeUnknown,
    QueueFull,
    TimedOut,
    Unavailable,
)
from iscp.server.admin.admin_server import AdminServer
from iscp.server.admin.forwarding import Forwarding
from iscp.server.http.gateway_server import BODY_BYTES_MAX, GatewayServer
from iscp.server.http.http_server import HEAD_BYTES_MAX, HttpBounds
from iscp.server.http.json_calls import LONG_CALL_MAX_S
from tests.fakes.admin import MISSING, FakeAdmin
from tests.fakes.certificates import certified, known

SPEC = JobSpec(ConsumerSpec("replica", "/copy")).to_json()
JOB = {"table": "/sales", "name": "copy"}
DOCUMENT = Path(__file__).parents[3] / "docs/gateway.md"
JSON = {"content-type": "application/json"}


def serve(service: FakeAdmin, address: str = "127.0.0.1:0", **more: Any) -> GatewayServer:
    made = GatewayServer(
        AdminServer(service, "127.0.0.1:0", max_workers=8, waits=WaitBounds(node_max=64)), address, "1.2.3", **more
    )
    made.start()
    made.ready()
    return made


@pytest.fixture
def service() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def gateway(service: FakeAdmin) -> Iterator[GatewayServer]:
    made = serve(service)
    yield made
    made.stop(0.0)


def send(
    gateway: GatewayServer, path: str, body: str | bytes | None = None, method: str = "", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(gateway.address, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(
        method or ("GET" if body is None else "POST"), path, body, given or (JSON if body is not None else {})
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def call(gateway: GatewayServer, name: str, request: object) -> tuple[int, Any]:
    """The status, and the answer: of a stream a list of its lines."""
    response, content = send(gateway, f"/v1/{name}", json.dumps(request))
    lines = [json.loads(line) for line in content.splitlines()]
    return response.status, lines if response.headers["content-type"] == "application/x-ndjson" else lines[0]


def register(gateway: GatewayServer, *names: str) -> tuple[int, Any]:
    jobs = [{"job": {**JOB, "name": name}, "spec_json": SPEC} for name in names]
    return call(gateway, "Register", {"registrations": jobs})


def raw(gateway: GatewayServer, sent: bytes) -> bytes:
    """All that comes back for these bytes."""
    host, _, port = gateway.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        try:
            connection.sendall(sent)
            return b"".join(iter(lambda: connection.recv(65_536), b""))
        except ConnectionError:
            return b""


def test_the_examples_of_the_document_work(gateway: GatewayServer, service: FakeAdmin) -> None:
    service.before = lambda verb: service.apply("/tmp/lake/orders", "copy", 7) if verb == "wait" else None
    lines = re.findall(r"^curl .*$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line)[1:]
        url, options = words.pop(), dict(zip(*[iter(words[1:])] * 2, strict=True))
        assert words[0] == "-s"
        assert options.keys() <= {"-H", "-d"}
        path = url.removeprefix("http://127.0.0.1:7431")
        headers = dict([options["-H"].split(": ")]) if "-H" in options else {}
        response, content = send(
            gateway, path, options.get("-d"), **{k.replace("-", "_"): v for k, v in headers.items()}
        )
        assert response.status == 200, (line, content)
        assert all(json.loads(each) for each in content.splitlines())


def test_a_job_is_registered_and_seen_with_all_its_fields(gateway: GatewayServer) -> None:
    status, answer = register(gateway, "copy")
    assert (status, answer["results"][0]["created"]) == (200, True)
    status, job = call(gateway, "GetJob", {"job": JOB})
    assert status == 200
    assert (job["name"], job["table"], job["late"]) == ("copy", "/sales", False)
    assert job["applied_version"] == "-1" or int(job["applied_version"]) >= 0
    assert job["state"].startswith("JOB_STATE_")


def test_streams_are_a_line_for_each_page(gateway: GatewayServer) -> None:
    register(gateway, "a", "b")
    status, pages = call(gateway, "ListJobs", {})
    assert status == 200
    assert [job["name"] for page in pages for job in page["jobs"]] == ["a", "b"]
    assert call(gateway, "ListJobs", {"filter": {"account": "nobody"}})[0] == 200


def test_the_listing_and_the_openapi_document_agree(gateway: GatewayServer) -> None:
    response, content = send(gateway, "/v1")
    assert response.status == 200
    listed = {each["path"]: each["stream"] for each in json.loads(content)["methods"]}
    _, content = send(gateway, "/v1/openapi.json")
    openapi = json.loads(content)
    assert set(openapi["paths"]) == set(listed)
    assert openapi["info"]["version"] == "1.2.3"
    assert listed["/v1/ListJobs"]


@pytest.mark.parametrize(
    ("failure", "status", "name"),
    [
        (NotOwner("between terms"), 503, "NOT_OWNER"),
        (Unavailable("etcd"), 503, "UNAVAILABLE"),
        (TimedOut("too long"), 504, "TIMEOUT"),
        (QueueFull("full"), 429, "QUEUE_FULL"),
        (OutcomeUnknown("lost"), 500, "OUTCOME_UNKNOWN"),
        (RuntimeError("bug"), 500, "INTERNAL"),
        (ConfigurationError("no", about="x", remedy="y"), 409, "CONFIGURATION"),
    ],
)
def test_errors_have_a_status_and_say_all(
    gateway: GatewayServer, service: FakeAdmin, failure: Exception, status: int, name: str
) -> None:
    service.failures.append(failure)
    found, answer = call(gateway, "GetJob", {"job": JOB})
    assert (found, answer["error"]["name"]) == (status, name)
    assert answer["error"].keys() == {"code", "name", "field", "message", "remedy"}


def test_what_is_not_there_is_404_with_field_and_remedy(gateway: GatewayServer) -> None:
    request = {"registrations": [{"job": {"table": MISSING, "name": "x"}, "spec_json": SPEC}]}
    status, answer = call(gateway, "Register", request)
    assert (status, answer["error"]["code"]) == (404, ErrorCode.TABLE_NOT_FOUND)
    assert answer["error"]["field"]
    assert call(gateway, "GetJob", {"job": JOB})[0] == 404
    assert call(gateway, "Nothing", {})[0] == 404
    assert send(gateway, "/v1/nothing")[0].status == 404
    assert send(gateway, "/")[0].status == 404


def test_a_wrong_request_is_400_and_reaches_nobody(gateway: GatewayServer, service: FakeAdmin) -> None:
    for body in ("{", "[]", '{"x": 1}', '{"job": ' * 1_000):
        response, content = send(gateway, "/v1/GetJob", body)
        assert (response.status, json.loads(content)["error"]["name"]) == (400, "INVALID_REQUEST")
    status, answer = call(gateway, "WaitJob", {"job": JOB, "timeout_s": LONG_CALL_MAX_S + 1})
    assert (status, answer["error"]["field"]) == (400, "timeout_s")
    status, answer = call(gateway, "WaitJob", {"job": JOB, "timeout_s": "NaN"})
    assert (status, answer["error"]["field"]) == (400, "timeout_s")
    assert service.asked == {}


def test_what_is_not_json_or_from_a_browser_or_no_post_is_refused(gateway: GatewayServer, service: FakeAdmin) -> None:
    assert send(gateway, "/v1/GetCluster", "{}", content_type="text/plain")[0].status == 415
    assert send(gateway, "/v1/GetCluster", "{}", content_type="application/json", origin="http://a")[0].status == 403
    response, _ = send(gateway, "/v1/GetCluster")
    assert (response.status, response.headers["allow"]) == (405, "POST")
    for path, verb in (("/v1/GetCluster", "POST"), ("/v1", "GET"), ("/v1/openapi.json", "GET")):
        for wrong in ("PUT", "DELETE", "PATCH", "NOPE"):
            response, content = send(gateway, path, "{}", wrong, content_type="application/json")
            assert (response.status, response.headers["allow"]) == (405, verb)
            assert json.loads(content)["error"]["remedy"] == f"Send a {verb}"
    assert send(gateway, "/v1/Nope", "{}", "PUT", content_type="application/json")[0].status == 404
    assert service.asked == {}


def test_bodies_without_a_length_too_large_or_cut_short_are_refused(gateway: GatewayServer, service: FakeAdmin) -> None:
    head = b"POST /v1/GetCluster HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    assert raw(gateway, head + b"\r\n").startswith(b"HTTP/1.1 411 ")
    assert raw(gateway, head + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n").startswith(b"HTTP/1.1 411 ")
    assert raw(gateway, head + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}").startswith(b"HTTP/1.1 400 ")
    assert raw(gateway, head + b"content-length: -1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(gateway, head + f"content-length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode()).startswith(b"HTTP/1.1 413 ")
    padded = b'{"format_version": 1' + b" " * (BODY_BYTES_MAX - 21) + b"}"
    assert send(gateway, "/v1/GetCluster", padded)[0].status == 200
    assert service.asked == {"cluster": 1}


def test_who_sends_all_of_a_body_that_is_refused_reads_why(gateway: GatewayServer, service: FakeAdmin) -> None:
    response, content = send(gateway, "/v1/GetCluster", b" " * (2 * BODY_BYTES_MAX))
    assert (response.status, json.loads(content)["error"]["name"]) == (413, "INVALID_REQUEST")
    response, _ = send(gateway, "/v1/GetCluster", b" " * (2 * BODY_BYTES_MAX), content_type="text/plain")
    assert response.status == 415
    assert service.asked == {}


def test_a_head_without_end_is_cut_off(gateway: GatewayServer) -> None:
    assert b"200" not in raw(gateway, b"GET /v1 HTTP/1.1\r\n" + b"x: y\r\n" * (HEAD_BYTES_MAX // 4))
    assert b"200" not in raw(gateway, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert send(gateway, "/v1")[0].status == 200


def test_a_request_that_trickles_is_cut_off_and_its_place_is_free_again(service: FakeAdmin) -> None:
    gateway = serve(service, bounds=HttpBounds(request_s=0.3))
    host, _, port = gateway.address.rpartition(":")
    over = threading.Event()
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(b"POST /v1/GetCluster HTTP/1.1\r\n")

        def trickle() -> None:
            while not over.wait(0.02):
                try:
                    connection.sendall(b"x: y\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        with suppress(ConnectionError):  # reset, as it was still sending
            assert connection.recv(1) == b""
        over.set()
        thread.join(20)
    gateway.stop(0.0)
    assert service.asked == {}


def test_a_node_that_is_not_the_owner_forwards(service: FakeAdmin) -> None:
    owner = AdminServer(service, "127.0.0.1:0", max_workers=8, waits=WaitBounds(node_max=4))
    owner.start()
    forwarding, here = Forwarding(lambda: owner.address), FakeAdmin()
    gateway = GatewayServer(AdminServer(here, "127.0.0.1:0", interceptors=[forwarding]), "127.0.0.1:0", "1.2.3")
    gateway.start()
    gateway.ready()
    assert register(gateway, "copy")[0] == 200
    assert [job["name"] for page in call(gateway, "ListJobs", {})[1] for job in page["jobs"]] == ["copy"]
    gateway.stop(0.0)
    forwarding.close()
    owner.stop(0.0)
    assert here.asked == {}


def test_with_mutual_tls_only_who_has_a_certificate_is_answered(service: FakeAdmin) -> None:
    tls = certified()
    gateway = GatewayServer(AdminServer(service, "localhost:0", tls=tls), "localhost:0", "1.2.3", tls=tls)
    gateway.start()
    gateway.ready()
    stranger = ssl.create_default_context(cadata=tls.authority.decode())
    connection = HTTPSConnection(gateway.address, context=stranger, timeout=60)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _get(connection)
    connection = HTTPSConnection(gateway.address, context=known(tls), timeout=60)
    connection.request("POST", "/v1/GetCluster", "{}", JSON)
    assert connection.getresponse().status == 200
    connection.close()
    gateway.stop(0.0)
    assert service.asked == {"cluster": 1}


def _get(connection: HTTPConnection) -> HTTPResponse:
    connection.request("GET", "/v1")
    return connection.getresponse()


def test_a_port_that_is_taken_ends_the_start_and_frees_the_other(gateway: GatewayServer) -> None:
    admin = AdminServer(FakeAdmin(), "127.0.0.1:0")
    second = GatewayServer(admin, gateway.address, "1.2.3")
    with pytest.raises(ConfigurationError) as refused:
        second.start()
    assert refused.value.field == "gateway.listen"
    again = AdminServer(FakeAdmin(), admin.address)
    again.start()
    again.stop(0.0)
