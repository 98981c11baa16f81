"""Certificates and keys in files, what is wrong with them, and whom they are of; and the addresses of nodes. Imports no
gRPC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol

from iscp.model.settings.variables import TLS_VARIABLES
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import SettingFault, require

if TYPE_CHECKING:
    from cryptography import x509


# --- addresses of nodes, and the bounds of messages -------------------------------------------------------------------
# The messages are those between a node and its users.

DEFAULT_ENDPOINT = "127.0.0.1:7430"
ENDPOINT_VARIABLE = "ISCP_ENDPOINT"

# What the wire's messages are written in; a node reads this and the one before.
FORMAT_VERSION = 1

MESSAGE_BYTES_MAX = 32 * 1024**2
"""Bytes of a message; a larger one is refused. A Register of REGISTRATIONS_MAX jobs fits, and everything longer travels
in pages.
"""

REGISTRATIONS_MAX = 20_000
"""Jobs in one request to register or to check them; more are refused."""

CHANGES_MAX = 10_000
"""Jobs in one request to change or to update them; more are refused."""

SPEC_BYTES_MAX = 256 * 1024
"""Characters of a spec, as JSON; a longer one is refused."""

WAIT_TIMEOUT_MAX_S = 24 * 3600.0
"""How long a wait or a comparison may be requested; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts: one's own certificate chain and key, and the authority that the other side's must come from.

    A server without `authority` requires no client certificate; a client without it trusts the public ones. A client
    expects a certificate for `server_name`, or, where it is empty, for the host that it calls.
    """

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authority: bytes = b""
    server_name: str = ""

    def current(self) -> Tls:
        """Return these very texts, for ever."""
        return self


def endpoint_or_default(endpoint: str | None) -> str:
    """Return the given endpoint, else ISCP_ENDPOINT, else the default.

    Raises ConfigurationError unless it is HOST:PORT, or several with commas between them.
    """
    require(endpoint, (str, NoneType), "endpoint", "HOST:PORT")
    chosen = endpoint or os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT
    split_addresses(chosen)
    return chosen


def split_addresses(endpoint: str) -> list[tuple[str, int]]:
    """Take one HOST:PORT apart, or several with commas between them. Raises ConfigurationError, which says which one is
    wrong.
    """
    addresses, found = endpoint.split(","), []
    for number, address in enumerate(addresses, 1):
        try:
            found.append(split_address(address))
        except ConfigurationError as error:
            if len(addresses) > 1:
                error.message += f" (the endpoint {number} of {len(addresses)}, by the commas between them)"
            raise
    return found


def split_address(address: str) -> tuple[str, int]:
    """Take HOST:PORT apart; an IPv6 host stands in brackets and keeps them."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in address or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"{address!r} is not HOST:PORT",
            about="endpoint",
            remedy=f"Give it as in {DEFAULT_ENDPOINT}, without http://",
        )
    return host, int(port)


def reachable(address: str) -> str:
    """Return the address, HOST:PORT, at which a server of this machine that listens on all interfaces is reached."""
    host, port = split_address(address)
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"


# --- names in certificates --------------------------------------------------------------------------------------------
# The names say whom a certificate that somebody shows is of: they count by their type. gRPC and ssl hand over
# alternative names of all types as if they were one. An authority that lets anybody have an e-mail address or a URI of
# their choice has not said by it that they are a host, so the certificate itself is read.

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


# --- certificates and keys in files -----------------------------------------------------------------------------------

RENEW = "Get another one (`iscp certs` makes them for development)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM, which may be replaced while they are in use; certificate and key come together.

    A client without `ca_file` trusts the public authorities, and one without `server_name` expects a certificate for
    the host that it calls.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    @classmethod
    def named(cls, ca_file: str, cert_file: str, key_file: str, server_name: str = "") -> TlsFiles:
        """Return the files that settings name, in which an empty name is of no file."""
        ca, cert, key = (Path(name) if name else None for name in (ca_file, cert_file, key_file))
        return cls(ca, cert, key, server_name)

    def read(self, section: str = "") -> Tls:
        """Return the content of the files. Raises ConfigurationError where it is unfit for use; `section` begins its
        `field`.
        """
        tls, faults = examine(self, section, datetime.now(UTC))
        for fault in faults:
            raise fault.error()
        return tls


GivenTls = Tls | TlsFiles | None
"""The certificates that clients take: texts, files, or nothing."""


def tls_of_environment(environ: Mapping[str, str]) -> TlsFiles | None:
    """Return the files in ISCP_CA_FILE, ISCP_CERT_FILE and ISCP_KEY_FILE, and ISCP_SERVER_NAME; None without the
    first.
    """
    found = TlsFiles.named(*(environ.get(name, "") for name in TLS_VARIABLES))
    return found if found.ca_file else None


class TlsSource(Protocol):
    """The source of certificates for connections: it returns the very same `Tls` until there is another one."""

    def current(self) -> Tls: ...


def examine(files: TlsFiles, section: str, now: datetime) -> tuple[Tls, list[SettingFault]]:
    """Return the content of the files, and its faults at `now` (with a time zone), each by `section` and the field."""
    named = {"cert_file": files.cert_file, "key_file": files.key_file, "ca_file": files.ca_file}
    faults: list[SettingFault] = []
    texts = dict.fromkeys(named, b"")
    for name, file in named.items():
        try:
            texts[name] = file.read_bytes() if file else b""
        except OSError as error:
            why = f"{file} cannot be read: {error.strerror or error}"
            faults.append(SettingFault.about(f"{section}{name}", why, "Give a PEM file"))
    tls = Tls(texts["cert_file"], texts["key_file"], texts["ca_file"], files.server_name)
    if not faults:  # each text is read once: what is examined is what is used
        faults += _text_faults(files, tls, section, now)
    return tls, faults


def _text_faults(files: TlsFiles, tls: Tls, section: str, now: datetime) -> Iterator[SettingFault]:
    if files.ca_file:
        yield from _certificate_faults(f"{section}ca_file", files.ca_file, tls.authority, now)
    if files.cert_file:
        yield from _certificate_faults(f"{section}cert_file", files.cert_file, tls.certificate, now)
    if bool(files.cert_file) != bool(files.key_file):
        missing = "key_file" if files.cert_file else "cert_file"
        yield SettingFault(f"{section}{missing}", "is missing", "A certificate and its key go together")
    elif files.key_file:
        yield from _key_faults(f"{section}key_file", files.key_file, tls)


def node_faults(tls: Tls, section: str, node_name: str) -> Iterator[SettingFault]:
    """Yield what other nodes would refuse in a node's certificate, which is fit for use otherwise."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    path, (own, *between) = f"{section}cert_file", certificates_of(tls.certificate)
    names = dns_names_of(own)
    if node_name not in names:
        known = ", ".join(names) or "none"
        yield SettingFault(path, f"does not have {node_name} among its DNS names, which are {known}", RENEW)
    try:
        uses = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        wanted = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        if not set(wanted) <= set(uses):
            yield SettingFault(path, "is not for servers and clients alike, and a node is both", RENEW)
    except x509.ExtensionNotFound:
        pass  # then it is for anything
    if not _leads_to(own, between, certificates_of(tls.authority)):
        yield SettingFault(path, f"does not come from an authority of {section}ca_file", "Give the authority's, too")


def certificates_of(pem: bytes) -> list[x509.Certificate]:
    """Raises ValueError where there is none, or one that cannot be read."""
    from cryptography import x509

    return x509.load_pem_x509_certificates(pem)


def _certificate_faults(path: str, file: Path, pem: bytes, now: datetime) -> Iterator[SettingFault]:
    try:
        first, *others = certificates_of(pem)
    except ValueError:
        yield SettingFault.about(path, f"{file} holds no certificate that can be read", "Give a PEM file")
        return
    # Of several authorities one may have ended: the others are there for that.
    lasting = max((first, *others), key=lambda each: each.not_valid_after_utc) if path.endswith("ca_file") else first
    if now > lasting.not_valid_after_utc:
        yield SettingFault.about(path, f"{file} ended at {lasting.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", RENEW)
    elif now < lasting.not_valid_before_utc:
        begin = f"{lasting.not_valid_before_utc:%Y-%m-%d %H:%M}"
        yield SettingFault.about(
            path, f"{file} begins at {begin} UTC", "Wait, or see whether this machine's clock is right"
        )


def _key_faults(path: str, file: Path, tls: Tls) -> Iterator[SettingFault]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        own = certificates_of(tls.certificate)[0].public_key()
    except ValueError:
        return  # is named already
    try:
        public = load_pem_private_key(tls.key, None).public_key()
    except TypeError:
        yield SettingFault.about(path, f"{file} is encrypted", "Give a key without a password, that only iscp may read")
    except (ValueError, UnsupportedAlgorithm):
        yield SettingFault.about(path, f"{file} holds no key that can be read", "Give a PEM file")
    else:
        if public != own:
            yield SettingFault.about(
                path, f"{file} does not belong to the certificate", "Give the one that was made with it"
            )


def _leads_to(
    own: x509.Certificate, between: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> bool:
    """Return whether one of the authorities has signed it, or another that is given with it and is signed so."""
    if any(_is_signed_by(own, authority) for authority in authorities):
        return True
    left = [each for each in between if each != own]
    return any(
        _is_signed_by(own, each) and _leads_to(each, [other for other in left if other != each], authorities)
        for each in left
    )


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
