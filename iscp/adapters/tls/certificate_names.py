"""Whom a certificate that somebody shows is of: the names in it that count, by their type.

gRPC and ssl hand over alternative names of all types as if they were one. An authority that lets anybody have an e-mail
address or a URI of their choice has not said by it that they are a host, so the certificate itself is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATES_CACHED_MAX = 4_096
"""Certificates of callers whose names are cached; one more has the one that was used least lately read again."""


@dataclass(frozen=True, slots=True)
class ShownNames:
    """`dns`: those by which nodes are known. `others`: addresses and common names, by which users are known besides."""

    dns: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


@lru_cache(CERTIFICATES_CACHED_MAX)
def shown_names(certificate: bytes) -> ShownNames:
    """Return the names in a certificate in PEM or DER; none for one that is unreadable, or has unreadable alternative
    names.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    pem = certificate.startswith(b"-----BEGIN")
    try:
        read = x509.load_pem_x509_certificate(certificate) if pem else x509.load_der_x509_certificate(certificate)
        common = {str(each.value) for each in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
        addresses = {str(each) for each in _alternative_names(read, x509.IPAddress)}
        return ShownNames(frozenset(dns_names_of(read)), frozenset(common | addresses))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return ShownNames()


def dns_names_of(certificate: x509.Certificate) -> list[str]:
    """Raises ValueError and the like where its alternative names cannot be read."""
    from cryptography import x509

    return _alternative_names(certificate, x509.DNSName)


def _alternative_names(certificate: x509.Certificate, kind: type[Any]) -> list[Any]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return found.get_values_for_type(kind)
