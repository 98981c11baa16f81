"""The certificates that servers show and demand: for gRPC, and for sockets."""

from __future__ import annotations

import logging
import ssl
import tempfile
from pathlib import Path
from typing import Any

import grpc

from iscp.system.tls.tls_files import ShownNames, Tls, TlsSource, shown_names

log = logging.getLogger(__name__)


def server_credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Return credentials of `source` at each new connection; clients need a certificate of its authority."""
    last = source.current()

    def fetch() -> Any:
        nonlocal last
        if (found := source.current()) is last:
            return None
        last = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last), fetch, require_client_authentication=bool(last.authority)
    )


def _configuration(tls: Tls) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.authority or None)


def names_shown(context: grpc.ServicerContext) -> ShownNames:
    """Return the names in the certificate of who calls; none without TLS."""
    return shown_names(b"".join(context.auth_context().get("x509_pem_cert", ())))


class ServerContext:
    """The `server_credentials` for sockets. A source without authority requires no certificate."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._last = source.current()
        self._context = _context(self._last)

    def current(self) -> ssl.SSLContext:
        """Return the context for one more connection."""
        if (found := self._source.current()) is not self._last:
            self._context, self._last = _context(found), found
        return self._context


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="iscp-tls-") as folder:  # ssl reads a chain from files alone
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_bytes(tls.certificate)
        key.touch(0o600)
        key.write_bytes(tls.key)
        context.load_cert_chain(certificate, key)
    if tls.authority:
        context.load_verify_locations(cadata=tls.authority.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context
