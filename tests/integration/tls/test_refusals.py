"""Who does not belong to the cluster is refused, and is given the reason as far as TLS says it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from cryptography import x509

from iscp.client.admin_client import Client
from iscp.model.values.errors import ConfigurationError, IscpError, NotAuthorized, Unavailable
from iscp.server.admin.admin_server import AdminServer
from iscp.server.node.node_server import NodeServer
from iscp.server.node.owner_streams import describe
from iscp.system.tls.development_authority import CertificateKind
from iscp.system.tls.tls_files import TlsFiles, split_address
from iscp.wire.v1 import node_pb2
from tests.fakes.admin import FakeAdmin
from tests.fakes.certs import NODE_NAME, Certs, spelled_as
from tests.fakes.node_calls import FakeNodeCalls


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("certs") / "a")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("certs") / "b")


def serve(files: TlsFiles | None) -> AdminServer:
    node = NodeServer("n", lambda: 1, "/c", "1", FakeNodeCalls(), lambda _: None, node_name=NODE_NAME if files else "")
    made = AdminServer(FakeAdmin(), "localhost:0", tls=files.read() if files else None, services=[node])
    made.start()
    made.ready()
    return made


@pytest.fixture(scope="module")
def server(certs: Certs) -> Iterator[AdminServer]:
    made = serve(certs.files("node"))
    yield made
    made.stop(0.0)


def refusal(address: str, tls: TlsFiles | None) -> IscpError:
    with Client(address, timeout_s=1.0, tls=tls) as client, pytest.raises(IscpError) as refused:
        client.cluster()
    return refused.value


def test_only_certificates_of_the_authority_are_let_in(server: AdminServer, certs: Certs, others: Certs) -> None:
    with Client(server.address, tls=certs.files("client")) as client:
        client.cluster()
    foreign = replace(others.files("client"), ca_file=certs.directory / "ca.pem")
    nobody = TlsFiles(certs.directory / "ca.pem")
    expired = certs.make_expired(CertificateKind.CLIENT, "late")
    for tls in (None, nobody, foreign):
        error = refusal(server.address, tls)
        assert isinstance(error, Unavailable)
        assert "accepts connections and closes them" in error.message
        assert "ISCP_CA_FILE" in error.remedy
        assert "expired" in error.remedy
    with Client(server.address, timeout_s=1.0, tls=expired) as client, pytest.raises(Unavailable, match="closes them"):
        client.cluster()


def test_a_client_says_what_is_wrong_with_the_node(certs: Certs, others: Certs, server: AdminServer) -> None:
    def no_tls(error: IscpError, why: str) -> None:
        assert isinstance(error, ConfigurationError)
        assert why in error.message
        assert error.remedy

    no_tls(refusal(server.address, others.files("client")), "its certificate comes from another authority")
    no_tls(refusal(server.address, certs.files("client", "node.b.iscp")), "its certificate is for other names")
    plain = serve(None)
    no_tls(refusal(plain.address, certs.files("client")), "it does not use TLS")
    plain.stop(0.0)
    late = certs.make_expired(CertificateKind.NODE, "late-node")
    node = AdminServer(FakeAdmin(), "localhost:0", tls=late)
    node.start()
    no_tls(refusal(node.address, certs.files("client")), "its certificate has expired")
    node.stop(0.0)


def test_the_service_of_nodes_is_for_nodes_alone(server: AdminServer, certs: Certs, others: Certs) -> None:
    found = describe(server.address, tls=certs.files("node", NODE_NAME).read())
    assert found.node_id == "n"
    certs_of_none = [certs.files("client"), certs.make(CertificateKind.ETCD, "etcd")]
    for files in certs_of_none:
        with pytest.raises(NotAuthorized, match="this is for nodes alone") as refused:
            describe(server.address, tls=files.read())
        assert refused.value.field == "security.tls.node_name"
    foreign = replace(others.files("node", NODE_NAME), ca_file=certs.directory / "ca.pem")
    with pytest.raises(Unavailable):
        describe(server.address, tls=foreign.read(), timeout_s=3)


def test_a_name_of_another_type_makes_nobody_a_node(server: AdminServer, certs: Certs) -> None:
    """An e-mail address or a URI is often anybody's to choose."""
    for kind, name in spelled_as(NODE_NAME).items():
        files = certs.make_odd(f"odd-{kind}", x509.DNSName("localhost"), name)
        with pytest.raises(NotAuthorized, match="this is for nodes alone"):
            describe(server.address, tls=files.read())
    assert describe(server.address, tls=certs.make_odd("right", x509.DNSName(NODE_NAME)).read()).node_id == "n"


def test_every_method_of_the_service_is_guarded(server: AdminServer, certs: Certs) -> None:
    """A client's certificate opens none of them, whatever it sends; streams are refused before they begin."""
    tls = certs.files("client").read()
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    methods = node_pb2.DESCRIPTOR.services_by_name["Node"].methods
    assert len(methods) >= 10
    with grpc.secure_channel(server.address, credentials) as channel:
        for method in methods:
            call = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")(
                iter((b"",)), timeout=10
            )
            with pytest.raises(grpc.RpcError) as refused:
                list(call)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED, method.name


@pytest.mark.filterwarnings("ignore:.*TLSv1.* is deprecated:DeprecationWarning")
def test_older_tls_is_refused(server: AdminServer, certs: Certs) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certs.directory / "ca.pem")
    context.load_cert_chain(certs.directory / "client.pem", certs.directory / "client.key")
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = ssl.TLSVersion.TLSv1
    host, port = split_address(server.address)

    def connect(newest: ssl.TLSVersion) -> str | None:
        context.maximum_version = newest
        with (
            socket.create_connection((host, port)) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.version()

    assert connect(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        connect(ssl.TLSVersion.TLSv1_1)


def test_the_environment_brings_a_client_in(server: AdminServer, certs: Certs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("CA_FILE", "ca.pem"), ("CERT_FILE", "client.pem"), ("KEY_FILE", "client.key")):
        monkeypatch.setenv(f"ISCP_{name}", str(certs.directory / file))
    with Client(server.address) as client:
        client.cluster()
