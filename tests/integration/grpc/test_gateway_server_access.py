"""Who calls by JSON over HTTP: by a token in a header, or by a certificate, decided where gRPC's calls are."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from iscp.client.admin_client import Client
from iscp.model.access.service_table import Role
from iscp.model.values.errors import NotAuthenticated
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.access.known_callers import CertificateCaller
from iscp.server.admin.admin_server import AdminServer
from iscp.server.http.gateway_server import GatewayServer
from iscp.system.threads import SystemClock
from iscp.system.tls.development_authority import CertificateKind, CertificateRequest
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.certs import NODE_NAME, Certs, spelled_as

ADDRESS = "2001:db8::1"
JOB = {"job": {"table": "/lake/t", "name": "j"}}


def admin_server(access: Access, tls: Any = None) -> AdminServer:
    return AdminServer(
        FakeAdmin(),
        "localhost:0",
        tls=tls,
        services=[AccessServer(access.service)],
        interceptors=[access.interceptor],
    )


def serve(server: AdminServer, tls: Any = None) -> GatewayServer:
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
    made = serve(admin_server(access))
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


class Guarded:
    """A gateway with TLS, that knows the certificates `client` and of an address, and callers with certificates."""

    def __init__(self, root: Path) -> None:
        self.certs = Certs(root / "certs")
        self.certs.make(CertificateKind.CLIENT, "nobody")
        abroad = CertificateRequest(CertificateKind.NODE, "abroad", (ADDRESS,), "node.other.iscp")
        self.certs.authority.make(abroad)
        editor = CertificateCaller("acme", Role.EDITOR)
        self.access = Access(SystemClock(), {"client": editor, ADDRESS: editor}, NODE_NAME)
        tls = self.certs.files("node", NODE_NAME).read()
        self.server = admin_server(self.access, tls)
        self.gateway = serve(self.server, tls)

    def post(self, name: str, method: str, body: object, *headers: tuple[str, str]) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(self.certs.directory / "ca.pem"))
        context.load_cert_chain(self.certs.directory / f"{name}.pem", self.certs.directory / f"{name}.key")
        connection = HTTPSConnection(self.gateway.address, timeout=30, context=context)
        status, _, answer = post(connection, method, body, *headers)
        return status, answer


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.gateway.stop(0.0)


def test_a_header_cannot_end_and_another_begin(guarded: Guarded) -> None:
    """What looks like a further header within a value reaches nobody as one; as one of its own each would count."""
    said = json.dumps({"names": ["client"], "peer": "ipv4:1.1.1.1:1"})
    name, token = bearer(guarded.access.token(Role.VIEWER, "other"))
    assert guarded.post("nobody", "ListJobs", {}, (name, token))[0] == 200
    for folded in (f"x\r\n {name}: {token}", f"x\r\n iscp-caller: {said}", f"x\r\n iscp-forwarded: {said}"):
        assert guarded.post("nobody", "ListJobs", {}, ("x-any", folded))[0] == 401
    assert guarded.post("nobody", "ListJobs", {}, (name, f"{token}\r\n iscp-caller: {said}"))[0] == 401


def test_what_nodes_say_of_callers_is_not_taken_from_a_request(guarded: Guarded) -> None:
    said = json.dumps({"names": ["client"], "peer": "ipv4:1.1.1.1:1"})
    for forged in ((("iscp-caller", said),), (("iscp-forwarded", said),), (("Grpc-Metadata-iscp-caller", said),)):
        assert guarded.post("nobody", "GetJob", JOB, *forged)[0] == 401
        assert guarded.post("client", "ListJobs", {}, *forged)[0] == 200


def test_an_address_in_a_certificate_is_written_as_grpc_writes_it(guarded: Guarded) -> None:
    """ssl writes out an IPv6 address in full."""
    assert guarded.post("abroad", "ListJobs", {})[0] == 200
    tls = guarded.certs.files("abroad", NODE_NAME)
    with Client(guarded.server.address, tls=tls, timeout_s=10.0) as client:
        assert client.jobs() == []


def test_only_a_name_of_a_host_or_a_common_name_is_a_caller(guarded: Guarded) -> None:
    """By gRPC and by HTTP, what looks like `client` as an e-mail address, a URI or another type is of nobody."""
    for kind, name in spelled_as("client").items():
        files = guarded.certs.make_odd(f"odd-{kind}", x509.DNSName("x.example"), name)
        assert guarded.post(f"odd-{kind}", "ListJobs", {})[0] == 401
        with Client(guarded.server.address, tls=files, timeout_s=10.0) as client, pytest.raises(NotAuthenticated):
            client.jobs()
    files = guarded.certs.make_odd("right", x509.DNSName("client"))
    assert guarded.post("right", "ListJobs", {})[0] == 200
    with Client(guarded.server.address, tls=files, timeout_s=10.0) as client:
        assert client.jobs() == []


def test_a_certificate_says_who_calls_and_from_where(guarded: Guarded) -> None:
    access = guarded.access
    assert guarded.post("client", "Unregister", JOB) == (200, {"changed": False})
    assert guarded.post("client", "GetJob", JOB, bearer("garbage"))[0] == 401  # a token counts alone
    token = access.token(Role.VIEWER, "other")
    assert guarded.post("nobody", "ListJobs", {}, bearer(token))[0] == 200
    (entry,) = access.audit.entries
    assert (entry.caller, entry.known_by, entry.account) == ("client", "certificate", "acme")
    assert entry.peer.startswith(("ipv4:127.0.0.1:", "ipv6:[::1]:"))
