"""Who calls by JSON over HTTP: by a token in a header, or by a certificate, decided where gRPC's calls are."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from iscp.adapters.gateway.gateway_server import GatewayServer
from iscp.adapters.grpc.access.access_server import AccessServer
from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.tls.development_authority import CertificateKind
from iscp.core.access_roles import Role
from iscp.runtime.access.known_callers import CertificateCaller
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.certs import NODE_NAME, Certs

JOB = {"job": {"table": "/lake/t", "name": "j"}}


def serve(access: Access, tls: Any = None) -> GatewayServer:
    server = AdminServer(
        FakeAdmin(),
        "localhost:0",
        tls=tls,
        services=[AccessServer(access.service)],
        interceptors=[access.interceptor],
    )
    made = GatewayServer(server, "localhost:0", "1", tls=tls)
    made.start()
    made.ready()
    return made


def post(connection: HTTPConnection, method: str, body: object, *headers: tuple[str, str]) -> tuple[int, Any, Any]:
    text = json.dumps(body).encode()
    connection.putrequest("POST", f"/v1/{method}")
    for name, value in (("content-type", "application/json"), ("content-length", str(len(text))), *headers):
        connection.putheader(name, value)
    connection.endheaders(text)
    response = connection.getresponse()
    lines = [json.loads(line) for line in response.read().splitlines()]
    connection.close()
    return response.status, response.headers, lines[0] if len(lines) == 1 else lines


@pytest.fixture
def access() -> Access:
    return Access(SystemClock())


@pytest.fixture
def gateway(access: Access) -> Iterator[GatewayServer]:
    made = serve(access)
    yield made
    made.stop(0.0)


def bearer(token: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {token}"


def test_a_token_says_who_calls(gateway: GatewayServer, access: Access) -> None:
    plain = HTTPConnection(gateway.address, timeout=30)
    editor, viewer = (bearer(access.token(role)) for role in (Role.EDITOR, Role.VIEWER))
    spec = json.dumps({"iteration": {"consumer": {"kind": "replica", "target": "/x"}}})
    register = {"registrations": [{**JOB, "spec_json": spec}]}
    assert post(plain, "Register", register, viewer)[0] == 403
    assert post(plain, "Register", register, editor)[0] == 200
    status, _, job = post(plain, "GetJob", JOB, viewer)
    assert (status, job["account"]) == (200, "acme")  # its own, as none is named
    other = bearer(access.token(Role.ADMIN, "other"))
    assert post(plain, "GetJob", JOB, other)[0] == 404
    assert post(plain, "GetJob", {"job": {**JOB["job"], "account": "acme"}}, other)[0] == 404
    assert [entry.result for entry in access.audit.entries] == ["PERMISSION_DENIED", "OK"]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (bearer("garbage"),),
        (bearer("é"),),
        (("Authorization", "Basic dXNlcjpwYXNz"),),
        (("Authorization", ""),),
        (("iscp-caller", '{"names": ["root"], "peer": ""}'), ("iscp-forwarded", "1")),
        (("Grpc-Metadata-authorization", "Bearer x"),),
    ],
)
def test_who_is_not_known_is_refused(gateway: GatewayServer, headers: tuple[tuple[str, str], ...]) -> None:
    status, answered, body = post(HTTPConnection(gateway.address, timeout=30), "GetJob", JOB, *headers)
    assert (status, body["error"]["name"]) == (401, "NOT_AUTHENTICATED")
    assert answered["www-authenticate"] == "Bearer"


def test_two_tokens_are_none(gateway: GatewayServer, access: Access) -> None:
    token = bearer(access.token(Role.ADMIN))
    assert post(HTTPConnection(gateway.address, timeout=30), "GetJob", JOB, token, token)[0] == 401


def test_a_header_cannot_end_and_another_begin(gateway: GatewayServer, access: Access) -> None:
    """What looks like a further header within a value reaches nobody as one."""
    folded = "Bearer x\r\n iscp-caller: {}"
    status, _, body = post(HTTPConnection(gateway.address, timeout=30), "GetJob", JOB, ("Authorization", folded))
    assert (status, body["error"]["name"]) == (401, "NOT_AUTHENTICATED")


def test_a_certificate_says_who_calls_and_from_where(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.make(CertificateKind.CLIENT, "nobody")
    access = Access(SystemClock(), {"client": CertificateCaller("acme", Role.EDITOR)}, NODE_NAME)
    gateway = serve(access, certs.files("node", NODE_NAME).read())

    def connect(name: str) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(certs.directory / "ca.pem"))
        context.load_cert_chain(certs.directory / f"{name}.pem", certs.directory / f"{name}.key")
        return HTTPSConnection(gateway.address, timeout=30, context=context)

    status, _, body = post(connect("client"), "Unregister", JOB)
    assert (status, body) == (200, {"changed": False})
    forged = ("iscp-caller", json.dumps({"names": ["client"], "peer": ""}))
    assert post(connect("nobody"), "GetJob", JOB, forged)[0] == 401
    assert post(connect("client"), "GetJob", JOB, bearer("garbage"))[0] == 401  # a token counts alone
    token = access.token(Role.VIEWER, "other")
    assert post(connect("nobody"), "ListJobs", {}, bearer(token))[0] == 200
    (entry,) = access.audit.entries
    assert (entry.caller, entry.known_by, entry.account) == ("client", "certificate", "acme")
    assert entry.peer.startswith(("ipv4:127.0.0.1:", "ipv6:[::1]:"))
    gateway.stop(0.0)
