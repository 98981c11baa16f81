"""An authority of certificates for development, in a directory: `ca.pem`, `ca.key`, and NAME.pem, NAME.key beside.

Decides what certificates of nodes, clients and etcd say. Keys are readable for their owner alone, and nothing is
overwritten unless it is renewed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from iscp.model.values.errors import ConfigurationError
from iscp.system.small_files import replace_file

AUTHORITY_DAYS = 3650
"""Days for which a development authority is valid, unless `--days` says otherwise."""

CERTIFICATE_DAYS = 365
"""Days for which certificates of a development authority are valid, unless `--days` says otherwise."""

_EARLIER = timedelta(minutes=5)  # clocks of machines differ
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_OF_NODES = re.compile(r"(\*|node)\.(.+\.)?iscp", re.IGNORECASE)
_CA = "ca"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CertificateKind(StrEnum):
    NODE = "node"
    CLIENT = "client"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """The purpose and names of a certificate. `hosts` are names and addresses at which a server is called."""

    kind: CertificateKind
    name: str
    hosts: tuple[str, ...] = ()
    node_name: str = ""

    def alternative_names(self) -> list[x509.GeneralName]:
        """Raises ConfigurationError where a host cannot be one, or would make a node of what is none."""
        if self.kind is CertificateKind.CLIENT:
            if self.hosts:
                raise ConfigurationError("is for servers alone", field="--host", remedy="Leave it out for a client")
            return []
        for host in self.hosts:
            if self.kind is CertificateKind.ETCD and _OF_NODES.fullmatch(host):
                raise ConfigurationError(f"{host} is what nodes are known by", about="--host", remedy="Leave it out")
        nodes = [x509.DNSName(self.node_name)] if self.kind is CertificateKind.NODE else []
        return [
            *nodes,
            *(_general_name(host) for host in dict.fromkeys(("localhost", "127.0.0.1", "::1", *self.hosts))),
        ]


class DevelopmentAuthority:
    """The one in `directory`. `now` says when its certificates begin, with a time zone."""

    def __init__(self, directory: Path, now: Callable[[], datetime] = _utc_now) -> None:
        """Raises ConfigurationError where there is none that can be read."""
        self._directory = directory
        self._now = now
        self._certificate, self._key = _load(directory, _CA, "Make one with `iscp certs init`")

    @classmethod
    def init(cls, directory: Path, days: int = AUTHORITY_DAYS) -> DevelopmentAuthority:
        """Make a new one. Raises ConfigurationError where there is one, or nothing can be written."""
        key, name = ec.generate_private_key(ec.SECP256R1()), _subject("iscp development authority")
        usage = _usage(key_cert_sign=True, crl_sign=True)
        built = _builder(name, name, key.public_key(), datetime.now(UTC), timedelta(days=days))
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        built = built.add_extension(usage, critical=True)
        with _writing(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_existing(directory, _CA)
        _write(directory, _CA, built.sign(key, hashes.SHA256()), key)
        return cls(directory)

    def make(self, wanted: CertificateRequest, days: int = CERTIFICATE_DAYS) -> datetime:
        """Make a key and its certificate; return when that ends. Raises ConfigurationError where there are some of this
        name.
        """
        _refuse_odd_name(wanted.name)
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if wanted.kind is not CertificateKind.CLIENT:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        names = wanted.alternative_names()
        _refuse_existing(self._directory, wanted.name)
        certificate = self._sign(_subject(wanted.name), key.public_key(), uses, names, days)
        _write(self._directory, wanted.name, certificate, key)
        return certificate.not_valid_after_utc

    def renew(self, name: str, days: int = CERTIFICATE_DAYS, new_key: bool = False) -> datetime:
        """Make another certificate with the same names and uses, and the same key unless a new one is wanted; return
        its end.

        The key is replaced first: whoever reads between the two finds a pair that does not fit, and waits for the next.
        """
        _refuse_odd_name(name)
        last, key = _load(self._directory, name, "Make one with `iscp certs`")
        if new_key:
            key = ec.generate_private_key(ec.SECP256R1())
        uses = list(last.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        try:
            names = list(last.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            names = []
        certificate = self._sign(last.subject, key.public_key(), uses, names, days)
        _write(self._directory, name, certificate, key if new_key else None)
        return certificate.not_valid_after_utc

    def _sign(
        self,
        subject: x509.Name,
        public: ec.EllipticCurvePublicKey,
        uses: Sequence[x509.ObjectIdentifier],
        names: Sequence[x509.GeneralName],
        days: int,
    ) -> x509.Certificate:
        now, end = self._now(), self._certificate.not_valid_after_utc
        built = _builder(subject, self._certificate.subject, public, now, min(timedelta(days=days), end - now))
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(_usage(digital_signature=True), critical=True)
        built = built.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        built = built.add_extension(authority, critical=False)
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return built.sign(self._key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    if valid <= timedelta():
        raise ConfigurationError("the authority has ended", about="--dir", remedy="Make another one elsewhere")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise ConfigurationError(f"{host!r} is no name of a host", about="--host", remedy="Give a name or an address")
    return x509.DNSName(host)


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _refuse_odd_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == _CA:
        raise ConfigurationError(
            f"{name!r} is no name for a certificate",
            about="NAME",
            remedy="Use up to 64 letters, digits, dots, dashes and underscores; ca is the authority's, never renewed",
        )


def _refuse_existing(directory: Path, name: str) -> None:
    for file in _paths(directory, name):
        with _writing(file):
            exists = file.exists()
        if exists:
            raise ConfigurationError(
                f"{file} is there already", about="--dir", remedy="Renew it, or name another directory or certificate"
            )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: of a path with a null in it
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{path} cannot be written: {why}", about="--dir", remedy="Name another directory"
        ) from error


def _load(directory: Path, name: str, remedy: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = _paths(directory, name)
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{certificate} and {key} cannot be read ({error})", remedy=remedy) from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != found.public_key():
        raise ConfigurationError(f"{key} does not belong to {certificate}", remedy=remedy)
    return found, loaded


def _write(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None) -> None:
    path, key_path = _paths(directory, name)
    if key is not None:
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        _put(key_path, key.private_bytes(serialization.Encoding.PEM, *form), 0o600)
    _put(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _put(path: Path, content: bytes, mode: int) -> None:
    with _writing(path):
        replace_file(path, content, mode)
