"""Directories of certificates, as `iscp certs` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from iscp.system.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority
from iscp.system.tls.tls_files import Tls, TlsFiles

NODE_NAME = "node.default.iscp"


@dataclass(frozen=True, slots=True)
class OddRequest(CertificateRequest):
    """A certificate with alternative names of any type, as other authorities sign them."""

    names: tuple[x509.GeneralName, ...] = ()

    def alternative_names(self) -> list[x509.GeneralName]:
        return list(self.names)


def spelled_as(name: str) -> dict[str, x509.GeneralName]:
    """The text by each type of alternative name that can hold it, but for that of DNS names."""
    text = name.encode()
    return {
        "email": x509.RFC822Name(name),
        "uri": x509.UniformResourceIdentifier(name),
        "other": x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c" + bytes([len(text)]) + text),
        "registered": x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        "directory": x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])),
    }


class Certs:
    """An authority with a `node` and a `client`, and whatever is made besides."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = DevelopmentAuthority.init(directory)
        self.make(CertificateKind.NODE, "node")
        self.make(CertificateKind.CLIENT, "client")

    def make(self, kind: CertificateKind, name: str) -> TlsFiles:
        self.authority.make(CertificateRequest(kind, name, node_name=NODE_NAME))
        return self.files(name)

    def make_odd(self, name: str, *names: x509.GeneralName) -> TlsFiles:
        """For servers and clients."""
        self.authority.make(OddRequest(CertificateKind.ETCD, name, names=names))
        return self.files(name)

    def make_expired(self, kind: CertificateKind, name: str) -> Tls:
        """Its day ended long ago."""
        earlier = DevelopmentAuthority(self.directory, lambda: datetime.now(UTC) - timedelta(days=30))
        earlier.make(CertificateRequest(kind, name, node_name=NODE_NAME), days=1)
        files = f"{name}.pem", f"{name}.key", "ca.pem"
        certificate, key, authority = ((self.directory / file).read_bytes() for file in files)
        return Tls(certificate, key, authority)

    def files(self, name: str, server_name: str = "") -> TlsFiles:
        own = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        return TlsFiles(self.directory / "ca.pem", *own, server_name=server_name)
