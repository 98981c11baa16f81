"""Files of certificates: each fault is named by its path, before anything is done with them.

Which names of a certificate count: DNS names, addresses and the common name, each by its type.

Endpoints are HOST:PORT, and anything else is named with a remedy.

Files that change while they are in use: whole renewals are taken up, halves and junk are not.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from iscp.model.access.security_config import OidcConfig, SecurityConfig, TlsConfig
from iscp.model.settings.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.model.values.errors import ConfigurationError
from iscp.system.tls.certificate_watch import (
    CHECK_S,
    CertificateWatch,
    certificate_faults,
    certificate_watch,
    days_left,
)
from iscp.system.tls.tls_files import (
    ShownNames,
    TlsFiles,
    endpoint_or_default,
    examine,
    node_faults,
    shown_names,
    split_address,
    tls_of_environment,
)
from tests.fakes.certificates import certificate_of
from tests.fakes.certs import NODE_NAME, Certs, spelled_as


def now() -> datetime:
    """After the certificates were made, whatever lies between that and the import."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("certs") / "a")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    return Certs(tmp_path_factory.mktemp("certs") / "b")


def test_what_fits_together_is_read(certs: Certs) -> None:
    tls, faults = examine(certs.files("node", "n"), "x.", now())
    assert faults == []
    assert (tls.authority, tls.server_name) == ((certs.directory / "ca.pem").read_bytes(), "n")
    assert certs.files("node").read().key == tls.key
    assert "PRIVATE" not in repr(tls)


def test_each_fault_is_named_by_its_path(certs: Certs, others: Certs, tmp_path: Path) -> None:
    junk, none, locked = tmp_path / "junk.pem", tmp_path / "none.pem", tmp_path / "locked.key"
    junk.write_text("no PEM")
    locked.write_bytes(_encrypted(certs.files("node")))
    good = certs.files("node")

    def found(files: TlsFiles, later: timedelta = timedelta()) -> list[tuple[str, str]]:
        faults = examine(files, "t.", now() + later)[1]
        return [(fault.path, fault.message.removeprefix(f"{tmp_path}/")) for fault in faults]

    assert found(replace(good, ca_file=none, key_file=none)) == [
        ("t.key_file", "none.pem cannot be read: No such file or directory"),
        ("t.ca_file", "none.pem cannot be read: No such file or directory"),
    ]
    assert found(replace(good, ca_file=junk)) == [("t.ca_file", "junk.pem holds no certificate that can be read")]
    assert found(replace(good, cert_file=junk)) == [("t.cert_file", "junk.pem holds no certificate that can be read")]
    assert found(replace(good, key_file=junk)) == [("t.key_file", "junk.pem holds no key that can be read")]
    assert found(replace(good, key_file=locked)) == [("t.key_file", "locked.key is encrypted")]
    assert found(replace(good, key_file=None)) == [("t.key_file", "is missing")]
    assert found(replace(good, cert_file=None)) == [("t.cert_file", "is missing")]
    ((path, message),) = found(replace(good, key_file=others.files("node").key_file))
    assert path == "t.key_file"
    assert message.endswith("does not belong to the certificate")
    ((path, message),) = found(good, timedelta(days=400))
    assert path == "t.cert_file"
    assert " ended at " in message
    assert [path for path, _ in found(good, timedelta(days=4000))] == ["t.ca_file", "t.cert_file"]
    assert all(" begins at " in message for _, message in found(good, -timedelta(days=1)))
    assert found(good, -timedelta(days=1))
    with pytest.raises(ConfigurationError, match=r"t\.ca_file: .*junk\.pem holds no certificate.*Give a PEM file"):
        replace(good, ca_file=junk).read("t.")


def test_of_a_node_it_is_checked_what_other_nodes_would_refuse(certs: Certs, others: Certs) -> None:
    assert list(node_faults(certs.files("node").read(), "s.", NODE_NAME)) == []
    (fault,) = node_faults(certs.files("node").read(), "s.", "node.other.iscp")
    assert (fault.path, "does not have node.other.iscp among its DNS names" in fault.message) == ("s.cert_file", True)
    messages = [fault.message for fault in node_faults(certs.files("client").read(), "s.", NODE_NAME)]
    assert [message.split(",")[0] for message in messages] == [
        f"does not have {NODE_NAME} among its DNS names",
        "is not for servers and clients alike",
    ]
    foreign = replace(certs.files("node"), ca_file=others.directory / "ca.pem").read()
    assert [fault.message for fault in node_faults(foreign, "s.", NODE_NAME)] == [
        "does not come from an authority of s.ca_file"
    ]


def test_a_nodes_configuration_is_checked_as_a_whole(certs: Certs) -> None:
    client = {name: str(file) for name, file in _named(certs.files("client")).items()}
    node = {name: str(file) for name, file in _named(certs.files("node")).items()}
    config = NodeConfig(
        node_id="n",
        log=JobLogConfig(uri="/lake"),
        etcd=EtcdConfig(ca_file="/none.pem"),
        security=SecurityConfig(tls=TlsConfig(**client)),
    )
    found = [fault.path for fault in certificate_faults(config)]
    assert found == ["etcd.ca_file", "security.tls.cert_file", "security.tls.cert_file"]
    oidc = replace(config, etcd=EtcdConfig(), security=SecurityConfig(oidc=OidcConfig(ca_file=client["key_file"])))
    assert [fault.path for fault in certificate_faults(oidc)] == ["security.oidc.ca_file"]
    good = replace(config, etcd=EtcdConfig(), security=SecurityConfig(tls=TlsConfig(**node)))
    assert list(certificate_faults(good)) == []
    watch = certificate_watch(good)
    assert watch is not None
    assert watch.current().server_name == NODE_NAME
    assert certificate_watch(replace(good, security=SecurityConfig())) is None


def test_clients_take_files_from_the_environment() -> None:
    assert tls_of_environment({"ISCP_CERT_FILE": "c"}) is None
    said = {"ISCP_CA_FILE": "a", "ISCP_CERT_FILE": "c", "ISCP_KEY_FILE": "k", "ISCP_SERVER_NAME": "n"}
    assert tls_of_environment(said) == TlsFiles(Path("a"), Path("c"), Path("k"), "n")
    assert tls_of_environment({"ISCP_CA_FILE": "a"}) == TlsFiles(Path("a"))


def _named(files: TlsFiles) -> dict[str, Path | None]:
    return {"ca_file": files.ca_file, "cert_file": files.cert_file, "key_file": files.key_file}


def _encrypted(files: TlsFiles) -> bytes:
    from cryptography.hazmat.primitives import serialization

    assert files.key_file is not None
    key = serialization.load_pem_private_key(files.key_file.read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


def test_dns_names_addresses_and_the_common_name_count() -> None:
    pem = certificate_of("ana", x509.DNSName("a.example"), x509.IPAddress(ip_address("2001:db8::1")))
    found = ShownNames(frozenset({"a.example"}), frozenset({"ana", "2001:db8::1"}))
    assert shown_names(pem) == found
    assert shown_names(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)) == found


@pytest.mark.parametrize("kind", spelled_as(NODE_NAME))
def test_no_other_type_counts(kind: str) -> None:
    assert shown_names(certificate_of("", spelled_as(NODE_NAME)[kind])) == ShownNames()
    beside = certificate_of("ana", x509.DNSName("a.example"), spelled_as(NODE_NAME)[kind])
    assert shown_names(beside) == ShownNames(frozenset({"a.example"}), frozenset({"ana"}))


def test_what_cannot_be_read_is_of_nobody() -> None:
    """Not even the common name counts beside alternative names that are unreadable."""
    der = x509.load_pem_x509_certificate(certificate_of("ana", x509.DNSName("a.example"))).public_bytes(Encoding.DER)
    broken = der.replace(b"a.example", b"\xff.example")
    assert broken != der
    for given in (b"", b"x", b"-----BEGIN CERTIFICATE-----\n", broken):
        assert shown_names(given) == ShownNames()


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:7430", ("127.0.0.1", 7430)), ("node-0.iscp:0", ("node-0.iscp", 0)), ("[::1]:80", ("[::1]", 80))],
)
def test_an_address_is_taken_apart(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:70000", "host:-1"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        split_address(address)


def test_several_nodes_have_commas_between_them() -> None:
    assert endpoint_or_default("127.0.0.1:1,node-1:2,[::1]:3") == "127.0.0.1:1,node-1:2,[::1]:3"
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        endpoint_or_default("127.0.0.1:1,")


@pytest.mark.parametrize(
    ("given", "place"),
    [("a:1,foo,b:2", "'foo' is not HOST:PORT (the endpoint 2 of 3"), ("a:1,", "(the endpoint 2 of")],
)
def test_of_several_nodes_the_wrong_one_is_named_with_its_place(given: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        endpoint_or_default(given)
    assert place in str(refused.value)


def test_what_is_given_wins() -> None:
    assert endpoint_or_default("a:1") == "a:1"


class Seconds:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_check(self) -> None:
        self.now_s += CHECK_S


@pytest.fixture
def certs_of_watch(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


def test_a_renewal_is_taken_up_at_the_next_check_and_not_before(certs_of_watch: Certs) -> None:
    clock = Seconds()
    watch = CertificateWatch(certs_of_watch.files("node"), clock=clock)
    first = watch.current()
    certs_of_watch.authority.renew("node")
    assert watch.current() is first
    clock.pass_check()
    second = watch.current()
    assert second.certificate != first.certificate
    assert second.key == first.key, "a renewal keeps the key"
    clock.pass_check()
    assert watch.current() is second, "the very same until the files change"


def test_of_a_pair_the_first_half_alone_is_not_used(certs_of_watch: Certs) -> None:
    clock, files = Seconds(), certs_of_watch.files("node")
    watch = CertificateWatch(files, clock=clock)
    first = watch.current()
    assert files.cert_file
    before = files.cert_file.read_bytes()
    certs_of_watch.authority.renew("node", new_key=True)
    after = files.cert_file.read_bytes()
    files.cert_file.write_bytes(before)  # with the new key: as if the certificate were not written yet
    clock.pass_check()
    assert watch.current() is first
    files.cert_file.write_bytes(after)
    clock.pass_check()
    assert watch.current().key != first.key


def test_what_cannot_be_used_is_refused_at_first_and_ignored_later(certs_of_watch: Certs, tmp_path: Path) -> None:
    clock, files = Seconds(), certs_of_watch.files("node")
    watch = CertificateWatch(files, "security.tls.", clock)
    first = watch.current()
    assert files.cert_file
    files.cert_file.unlink()
    clock.pass_check()
    assert watch.current() is first
    with pytest.raises(ConfigurationError, match=r"security\.tls\.cert_file: .*cannot be read"):
        CertificateWatch(files, "security.tls.", clock)


def test_days_are_those_of_the_own_certificate(certs_of_watch: Certs) -> None:
    assert days_left(certs_of_watch.files("client").read()) == 364
