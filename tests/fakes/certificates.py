"""Certificates of a test's own authority."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from iscp.system.tls.tls_files import Tls


def certified() -> Tls:
    """A new authority, and a certificate of it for localhost that serves both sides."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("authority", authority_key, authority_key)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Tls(_certificate("localhost", key, authority_key), pem, authority)


def known(tls: Tls) -> ssl.SSLContext:
    """Of a client that shows the certificate."""
    context = ssl.create_default_context(cadata=tls.authority.decode())
    with tempfile.NamedTemporaryFile() as file:
        file.write(tls.certificate + tls.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def certificate_of(common: str, *names: x509.GeneralName) -> bytes:
    """In PEM, with these alternative names; an empty common name is none."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _certificate(common, key, key, names)


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName] = (x509.DNSName("localhost"),),
) -> bytes:
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=subject == "authority", path_length=None), critical=True)
    )
    if names:
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return built.sign(issuer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])
