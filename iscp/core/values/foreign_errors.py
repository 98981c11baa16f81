"""Other people's code may raise errors of iscp's own classes; some of these count, in a plain form."""

from __future__ import annotations

from iscp.core.values.errors import (
    Conflict,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    TemporaryError,
)
from iscp.core.values.untrusted_values import error_code, error_text, printable

_OF_THE_NODE = frozenset({ErrorCode.CANCELED, ErrorCode.LEASE_LOST, ErrorCode.QUEUE_FULL, ErrorCode.NOT_OWNER})
"""Errors that only the node may raise: such a fault is not counted against the job, and shows nowhere."""


def is_of_a_job(error: BaseException) -> bool:
    """Return whether foreign code may end its job's work with this error; another one has to be translated."""
    return isinstance(error, (TemporaryError, PermanentError)) and error_code(error) not in _OF_THE_NODE


def plain_error(error: BaseException) -> IscpError:
    """Return an error of iscp's own that somebody else has raised, without what its class and texts may have become.

    `error` is one for which `is_of_a_job` holds, or any other temporary or permanent error.
    """
    kind = next(kind for kind in (InvalidRequest, Conflict, PermanentError, TemporaryError) if isinstance(error, kind))
    code = error_code(error)
    try:
        message, field, remedy = (printable(getattr(error, part)) for part in ("message", "field", "remedy"))
        is_subject = getattr(error, "field_is_subject", False) is True
    except BaseException:  # noqa: BLE001  (attributes of its own making)
        return kind(error_text(error), code=code)
    plain = kind(message, remedy=remedy, code=code)
    plain.field, plain.field_is_subject = field, is_subject
    return plain
