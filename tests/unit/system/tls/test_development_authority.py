"""`iscp certs`: what the certificates say, who may read the keys, and what is never overwritten."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from iscp.cli.iscp import iscp
from iscp.model.values.errors import ConfigurationError
from iscp.system.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def run(*words: str) -> str:
    result = CliRunner().invoke(iscp, ["certs", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def uses(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def names(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def test_the_commands_make_what_a_cluster_needs(tmp_path: Path) -> None:
    where = "--dir", str(tmp_path / "c")
    run("init", *where, "--days", "20")
    assert "is valid until" in run(
        "issue", "node", "n0", *where, "--host", "n0.lake", "--host", "10.0.0.1", "--cluster", "x"
    )
    run("issue", "client", "ana", *where, "--days", "5")
    run("issue", "etcd", "e0", *where)
    authority, node, client, etcd = (read(tmp_path / "c" / f"{name}.pem") for name in ("ca", "n0", "ana", "e0"))
    assert names(node) == ["node.x.iscp", "localhost", "127.0.0.1", "::1", "n0.lake", "10.0.0.1"]
    assert names(etcd) == ["localhost", "127.0.0.1", "::1"]
    assert (uses(node), uses(client), uses(etcd)) == ({SERVER, CLIENT}, {CLIENT}, {SERVER, CLIENT})
    assert client.subject.rfc4514_string() == "CN=ana"
    with pytest.raises(x509.ExtensionNotFound):
        names(client)
    for each in (node, client, etcd):
        each.verify_directly_issued_by(authority)
        assert not each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (client.not_valid_after_utc - client.not_valid_before_utc).days == 5
    assert node.not_valid_after_utc == authority.not_valid_after_utc, "none outlives its authority"


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    authority = DevelopmentAuthority.init(tmp_path / "c")
    authority.make(CertificateRequest(CertificateKind.CLIENT, "ana"))
    authority.renew("ana", new_key=True)
    for name in ("ca", "ana"):
        assert stat.S_IMODE((tmp_path / "c" / f"{name}.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["ana.key", "ana.pem", "ca.key", "ca.pem"]


def test_nothing_is_overwritten_but_by_a_renewal(tmp_path: Path) -> None:
    authority = DevelopmentAuthority.init(tmp_path)
    request = CertificateRequest(CertificateKind.NODE, "n0", ("h",), "node.x.iscp")
    authority.make(request)
    held = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="is there already"):
        DevelopmentAuthority.init(tmp_path)
    with pytest.raises(ConfigurationError, match="is there already"):
        authority.make(request)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == held
    before, key = read(tmp_path / "n0.pem"), (tmp_path / "n0.key").read_bytes()
    authority.renew("n0", days=7)
    after = read(tmp_path / "n0.pem")
    assert after.serial_number != before.serial_number
    assert (names(after), uses(after), after.subject) == (names(before), uses(before), before.subject)
    assert (tmp_path / "n0.key").read_bytes() == key
    authority.renew("n0", new_key=True)
    assert (tmp_path / "n0.key").read_bytes() != key


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CertificateRequest(CertificateKind.CLIENT, "ana", ("h",)), "--host is for servers alone"),
        (CertificateRequest(CertificateKind.ETCD, "e", ("node.default.iscp",)), "what nodes are known by"),
        (CertificateRequest(CertificateKind.ETCD, "e", ("*.iscp",)), "what nodes are known by"),
        (CertificateRequest(CertificateKind.NODE, "n", ("a b",)), "no name of a host"),
        (CertificateRequest(CertificateKind.NODE, "../n"), "no name for a certificate"),
        (CertificateRequest(CertificateKind.NODE, "ca"), "no name for a certificate"),
    ],
)
def test_a_bad_request_writes_nothing(tmp_path: Path, request_: CertificateRequest, words: str) -> None:
    authority = DevelopmentAuthority.init(tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        authority.make(request_)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem"]


def test_without_an_authority_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="iscp certs init"):
        DevelopmentAuthority(tmp_path)
    authority = DevelopmentAuthority.init(tmp_path)
    for name, words in (("none", "cannot be read"), ("ca", "never renewed")):
        with pytest.raises(ConfigurationError, match=words):
            authority.renew(name)
