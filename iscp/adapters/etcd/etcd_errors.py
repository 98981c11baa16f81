"""Translates etcd's errors: gRPC's do not leave this package.

The line that matters is whether a write may have happened. `EtcdUnavailable` and `EtcdRefusedError`: it has not.
`EtcdOutcomeUnknown`: it may have, or may yet; the caller has to read before it repeats it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, assert_never

import grpc

from iscp.adapters.tls.handshake_faults import REFUSED_REMEDY, handshake_fault, may_be_refused
from iscp.core.values.errors import (
    ConfigurationError,
    ErrorCode,
    IscpError,
    LeaseLost,
    OutcomeUnknown,
    TemporaryError,
    Unavailable,
)


class EtcdUnavailable(Unavailable):
    """No endpoint answered within the deadline; nothing was written."""


class EtcdOutcomeUnknown(OutcomeUnknown):
    """A write was sent and its answer lost: it may have happened."""


class EtcdRefusedError(IscpError):
    """The server understood and refused; nothing was written."""


class EtcdCompactedError(EtcdRefusedError, TemporaryError):
    """The revision requested has been compacted away: read again from now."""


class EtcdExhaustedError(EtcdRefusedError, TemporaryError):
    """The server takes no writes at present: its quota is used up, or too many wait."""

    code = ErrorCode.NO_SPACE


class EtcdLeaseGoneError(EtcdRefusedError, LeaseLost):
    """The lease has expired or was revoked."""

    code = ErrorCode.LEASE_LOST


class EtcdDeniedError(EtcdRefusedError, ConfigurationError):
    """Wrong user, password or certificate, or a role that does not allow it."""

    code = ErrorCode.CONFIGURATION


class EtcdFault(Enum):
    """The kinds of an error of gRPC, by the next step."""

    UNSENT = auto()  # no connection could be made: whatever it was, the server has not seen it
    LOST = auto()  # sent, and no answer
    TOKEN = auto()  # the token is no longer known (it expires, and dies with the server): get a new one
    REFUSED = auto()


_LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
# gRPC's own text where no subchannel of the channel is connected. If it changes, such calls count as LOST,
# which is the safe side.
_NEVER_CONNECTED = "failed to connect to all addresses"
# The second: users or roles were changed since the token was made; the third: authentication was switched on.
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")


def fault_of(error: Any) -> EtcdFault:
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE and text.startswith(_NEVER_CONNECTED):
        return EtcdFault.UNSENT
    if any(stale in text for stale in _STALE_TOKEN):
        return EtcdFault.TOKEN
    return EtcdFault.LOST if code in _LOST else EtcdFault.REFUSED


def translated(error: Any, *, writes: bool) -> IscpError:
    """Return our error for a gRPC error that is not tried again."""
    text = f"{error.code().name}: {error.details()}"
    fault = fault_of(error)
    match fault:
        case EtcdFault.UNSENT:
            return _no_connection(text)
        case EtcdFault.LOST:
            return EtcdOutcomeUnknown(text) if writes else EtcdUnavailable(text)
        case EtcdFault.TOKEN:
            return EtcdDeniedError(text, about="etcd.user", remedy="Check etcd's user and password")
        case EtcdFault.REFUSED:
            return _refusal(error.code(), text)
        case _:
            assert_never(fault)


def _no_connection(text: str) -> IscpError:
    if fault := handshake_fault(text):
        return EtcdUnavailable(f"no TLS with etcd: {fault[0]} ({text})", about="etcd.ca_file", remedy=fault[1])
    if may_be_refused(text):
        return EtcdUnavailable(text, about="etcd.ca_file", remedy=REFUSED_REMEDY)
    return EtcdUnavailable(text)


def _refusal(code: Any, text: str) -> IscpError:
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or "authentication failed" in text:
        return EtcdDeniedError(text, about="etcd.user", remedy="Check etcd's user, password and role")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return EtcdExhaustedError(text)
    if "has been compacted" in text:
        return EtcdCompactedError(text)
    if "requested lease not found" in text:
        return EtcdLeaseGoneError(text)
    return EtcdRefusedError(text)
