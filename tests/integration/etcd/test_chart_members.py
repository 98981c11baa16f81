"""The chart's etcd for real: a member with the certificates and options that it renders lets in nodes alone."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from iscp.etcd.channels import EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import EtcdServer
from iscp.ports.system import Clock
from iscp.system.tls.tls_files import TlsFiles
from tests.chart.installations import INSTALLATIONS
from tests.chart.rendering import Rendered, render
from tests.fakes.certs import Certs

DOMAIN = "lake-iscp-etcd.data.svc"
MEMBER = f"lake-iscp-etcd-0.{DOMAIN}"


def start(chart: Rendered, certificates: Path, root: Path, clock: Clock, own: TlsFiles) -> EtcdServer:
    """A member with the options of the chart's that say whom it lets in; they name files in `certificates`."""
    options = [each for each in chart.container("etcd")["args"] if "cert" in each or "-file" in each]
    assert len(options) >= 8
    placed = [each.replace("/etc/etcd/tls", str(certificates)) for each in options]
    return EtcdServer.start(root / "etcd", clock=clock, tls=own, extra_args=placed)


def lets_in(server: EtcdServer, files: TlsFiles | None, clock: Clock) -> bool:
    scheme = "https" if files else "http"
    settings = EtcdSettings((f"{scheme}://{server.endpoint}",), tls=files, timeout_s=1.0)
    with EtcdClient(settings, clock) as client:
        try:
            client.put("/k", b"1")
        except EtcdUnavailable:
            return False
        return client.get("/k") is not None


def files_in(directory: Path, name: str = MEMBER) -> TlsFiles:
    return TlsFiles(directory / "ca.crt", directory / "tls.crt", directory / "tls.key", name)


@pytest.fixture
def made_by_the_chart(tmp_path: Path, clock: Clock) -> Iterator[tuple[EtcdServer, Path]]:
    chart = render(INSTALLATIONS["smallest"])
    for secret in chart.of("Secret", "etcd"):
        directory = tmp_path / secret["metadata"]["name"]
        directory.mkdir()
        for name, content in secret["data"].items():
            (directory / name).write_bytes(b64decode(content))
    own = files_in(tmp_path / "lake-iscp-etcd-client")
    server = start(chart, tmp_path / "lake-iscp-etcd-server", tmp_path, clock, own)
    yield server, tmp_path
    server.kill()


def test_nodes_get_in_by_the_certificate_that_the_chart_makes_and_nobody_without(
    made_by_the_chart: tuple[EtcdServer, Path], clock: Clock, tmp_path: Path
) -> None:
    server, directory = made_by_the_chart
    client = directory / "lake-iscp-etcd-client"
    assert lets_in(server, files_in(client), clock)
    stranger = Certs(tmp_path / "strangers").directory
    for files in (
        None,
        TlsFiles(client / "ca.crt", server_name=MEMBER),
        TlsFiles(client / "ca.crt", stranger / "client.pem", stranger / "client.key", MEMBER),
        files_in(client, "etcd.elsewhere"),  # whoever has another's address is not taken for a member
    ):
        assert not lets_in(server, files, clock)


@pytest.fixture
def made_by_an_issuer(tmp_path: Path, clock: Clock) -> Iterator[tuple[EtcdServer, Certs]]:
    """An issuer that makes certificates for others, too, as a company's does."""
    certs = Certs(tmp_path / "certs")
    chart = render(INSTALLATIONS["by a web identity"])
    for made in chart.of("Certificate", "etcd"):
        names = [x509.DNSName(each) for each in made["spec"]["dnsNames"]]
        files = certs.make_odd(made["spec"]["secretName"], *names)
        directory = tmp_path / made["spec"]["secretName"]
        directory.mkdir()
        for file, name in ((files.ca_file, "ca.crt"), (files.cert_file, "tls.crt"), (files.key_file, "tls.key")):
            assert file is not None
            (directory / name).write_bytes(file.read_bytes())
    own = files_in(tmp_path / "lake-iscp-etcd-client")
    server = start(chart, tmp_path / "lake-iscp-etcd-server", tmp_path, clock, own)
    yield server, certs
    server.kill()


def test_other_certificates_of_the_same_issuer_are_not_let_in(
    made_by_an_issuer: tuple[EtcdServer, Certs], clock: Clock, tmp_path: Path
) -> None:
    server, certs = made_by_an_issuer
    assert lets_in(server, files_in(tmp_path / "lake-iscp-etcd-client"), clock)
    assert lets_in(server, files_in(tmp_path / "lake-iscp-etcd-server"), clock), "a member calls itself and others"
    certs.make_odd("other", x509.DNSName("client.other-etcd.data.svc"))
    for name in ("client", "node", "other"):
        assert not lets_in(server, certs.files(name, MEMBER), clock)
