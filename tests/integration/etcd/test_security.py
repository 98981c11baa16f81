"""Authentication of the etcd client by passwords and by certificates."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from iscp.etcd.channels import EtcdDeniedError, EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Changed, EtcdSettings
from iscp.etcd.server import EtcdServer, find_etcd, member_releases
from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import Clock
from iscp.system.tls.tls_files import TlsFiles

PASSWORD = "correct horse"
TOKEN_TTL_S = 1


def etcdctl(endpoint: str, *words: str) -> None:
    binary = find_etcd({}).with_name("etcdctl")
    subprocess.run([str(binary), f"--endpoints={endpoint}", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def locked(tmp_path: Path, clock: Clock) -> Iterator[EtcdServer]:
    """A server where `root` may do all and `iscp` what is below /iscp/."""
    args = ("--bcrypt-cost=4", f"--auth-token-ttl={TOKEN_TTL_S}")
    server = EtcdServer.start(tmp_path / "etcd", clock=clock, extra_args=args)
    for words in (
        ("user", "add", f"root:{PASSWORD}"),
        ("user", "add", f"iscp:{PASSWORD}"),
        ("role", "add", "iscp"),
        ("role", "grant-permission", "--prefix=true", "iscp", "readwrite", "/iscp/"),
        ("user", "grant-role", "iscp", "iscp"),
        ("user", "grant-role", "root", "root"),
        ("auth", "enable"),
    ):
        etcdctl(server.endpoint, *words)
    yield server
    server.kill()


def user(server: EtcdServer, clock: Clock, name: str = "iscp", password: str = PASSWORD) -> EtcdClient:
    return EtcdClient(EtcdSettings((server.endpoint,), username=name, password=password), clock)


def test_a_password_opens_what_the_role_allows_and_nothing_else(locked: EtcdServer, clock: Clock) -> None:
    with user(locked, clock) as client:
        assert client.put("/iscp/a", b"1") > 0
        with pytest.raises(EtcdDeniedError, match="permission denied"):
            client.put("/other", b"1")
        with pytest.raises(EtcdDeniedError, match="permission denied"):
            next(iter(client.watch("/other", start_revision=1)))
    with user(locked, clock, password="wrong") as stranger, pytest.raises(EtcdDeniedError):
        stranger.get("/iscp/a")
    with user(locked, clock, name="") as nobody, pytest.raises(EtcdDeniedError):
        nobody.get("/iscp/a")


def test_a_role_of_its_own_prefix_learns_the_release_of_each_member_or_of_the_one_that_answers(
    locked: EtcdServer, clock: Clock
) -> None:
    settings = EtcdSettings((locked.endpoint,), username="iscp", password=PASSWORD)
    with EtcdClient(settings, clock) as etcd:
        releases = member_releases(etcd, settings, clock, settings.timeout_s)
        assert list(releases.values()) == [etcd.status().version]


def test_a_token_that_expires_or_dies_with_the_server_is_renewed_unseen(
    locked: EtcdServer,
    clock: Clock,
    kill_9: Callable[[EtcdServer], None],
    eventually: Callable[..., float],
) -> None:
    """Calls, writes among them, and the watch go on."""
    with user(locked, clock) as client:
        start = client.put("/iscp/a", b"0") + 1
        told: list[bytes] = []
        watch = client.watch("/iscp/", prefix=True, start_revision=start)
        reader = threading.Thread(
            target=lambda: told.extend(
                event.kv.value for item in watch if isinstance(item, Changed) for event in item.events
            )
        )
        reader.start()
        threading.Event().wait(TOKEN_TTL_S + 1.2)
        client.put("/iscp/a", b"1")
        eventually(lambda: told == [b"1"])
        kill_9(locked)
        back = EtcdServer.start(locked.data_dir, locked.client_port, clock=clock, extra_args=("--bcrypt-cost=4",))
        client.put("/iscp/a", b"2")
        eventually(lambda: told == [b"1", b"2"])
        watch.close()
        reader.join(5)
        back.kill()


def test_a_user_and_password_where_authentication_is_off_do_no_harm(
    shared_server: EtcdServer, clock: Clock, prefix: str
) -> None:
    with user(shared_server, clock) as client:
        assert client.put(f"{prefix}a", b"1") > 0


def _certificate(
    directory: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Written as NAME.pem and NAME.key; without an issuer it is a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    certificate = built.sign(issuer[1] if issuer else key, hashes.SHA256())
    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, key


def test_certificates_are_wanted_and_checked_on_both_sides(tmp_path: Path, clock: Clock) -> None:
    authority = _certificate(tmp_path, "ca", None)
    for name in ("server", "client"):
        _certificate(tmp_path, name, authority)
    _certificate(tmp_path, "stranger", None)

    def tls(ca: str, name: str = "") -> TlsFiles:
        own = (tmp_path / f"{name}.pem", tmp_path / f"{name}.key") if name else (None, None)
        return TlsFiles(tmp_path / f"{ca}.pem", *own)

    server = EtcdServer.start(
        tmp_path / "etcd",
        clock=clock,
        tls=tls("ca", "client"),
        extra_args=(
            f"--cert-file={tmp_path / 'server.pem'}",
            f"--key-file={tmp_path / 'server.key'}",
            f"--trusted-ca-file={tmp_path / 'ca.pem'}",
            "--client-cert-auth",
        ),
    )
    try:
        with EtcdClient(EtcdSettings((f"https://{server.endpoint}",), tls=tls("ca", "client")), clock) as client:
            assert client.put("/k", b"1") > 0
        for refused in (tls("stranger", "client"), tls("ca"), tls("ca", "stranger")):
            settings = EtcdSettings((server.endpoint,), tls=refused, timeout_s=0.5)
            with EtcdClient(settings, clock) as client, pytest.raises(EtcdUnavailable):
                client.get("/k")
    finally:
        server.kill()


def test_a_certificate_file_that_is_missing_is_named(tmp_path: Path, clock: Clock) -> None:
    settings = EtcdSettings(("127.0.0.1:1",), tls=TlsFiles(ca_file=tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match=r"etcd.ca_file.*none\.pem"):
        EtcdClient(settings, clock)
