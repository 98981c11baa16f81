"""Directories of certificates, as `iscp certs` makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from iscp.adapters.grpc.channel.endpoint import Tls
from iscp.adapters.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority
from iscp.adapters.tls.tls_files import TlsFiles

NODE_NAME = "node.default.iscp"


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
