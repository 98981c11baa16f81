"""Explains gRPC's errors where no connection by TLS could be made."""

from __future__ import annotations

_NEVER_CONNECTED = "failed to connect"
_CLOSED = "Socket closed"
_ISSUER = "unable to get local issuer certificate", "self signed certificate", "self-signed certificate"
_FAULTS = (  # what the words of gRPC and BoringSSL mean, and what helps
    ("Hostname Verification Check failed", "its certificate is for other names", "Name one of them by server_name"),
    ("certificate has expired", "its certificate has expired", "Have it renewed there"),
    ("certificate is not yet valid", "its certificate is not valid yet", "See whether both machines' clocks are right"),
    *((words, "its certificate comes from another authority", "Give its authority as ca_file") for words in _ISSUER),
    ("WRONG_VERSION_NUMBER", "it does not use TLS", "Leave ca_file out, or give it certificates"),
    ("create security", "the certificate or key of this side cannot be used", "Give PEM files that belong together"),
)


def handshake_fault(text: str) -> tuple[str, str] | None:
    """Return the fault and the remedy, where this side refused the other; None: it is something else."""
    if _NEVER_CONNECTED not in text:
        return None
    return next(((fault, remedy) for words, fault, remedy in _FAULTS if words in text), None)


def may_be_refused(text: str) -> bool:
    """Return whether the other side has hung up during the handshake. It gives no reason; it may also have just
    ended.
    """
    return _NEVER_CONNECTED in text and _CLOSED in text


REFUSED_REMEDY = (
    "A server with TLS does so to who has none, or shows it no certificate, or one that has expired or comes from "
    "another authority: give ca_file, cert_file and key_file"
)
