"""Errors as the page shows them: a title, what to do, and a status of HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.values.errors import (
    InvalidRequest,
    IscpError,
    JobNotFound,
    NotAuthenticated,
    NotAuthorized,
    OutcomeUnknown,
    PermanentError,
    QueueFull,
    TableNotFound,
    TemporaryError,
    TimedOut,
)


@dataclass(frozen=True, slots=True)
class ShownError:
    """An error in words: `title` is for everybody, `message` and `remedy` are the server's own."""

    title: str
    message: str
    remedy: str
    code: str
    again: bool
    """Whether the page is worth reloading."""


_KINDS: tuple[tuple[type[IscpError], int, str], ...] = (
    (NotAuthenticated, 401, "You are not known here"),
    (NotAuthorized, 403, "You may not do this"),
    (JobNotFound, 404, "There is no such job"),
    (TableNotFound, 404, "There is no such table"),
    (InvalidRequest, 400, "This does not make sense"),
    (QueueFull, 503, "There is too much to do now"),
    (TimedOut, 504, "The cluster did not answer in time"),
    (OutcomeUnknown, 502, "It is not known whether this was done"),
    (TemporaryError, 503, "The cluster does not answer now"),
    (PermanentError, 409, "This cannot be done"),
)


def status_of_page(error: IscpError) -> int:
    """Return the status of HTTP; 500 for what is not foreseen."""
    return next((status for kind, status, _ in _KINDS if isinstance(error, kind)), 500)


def error_of(error: IscpError) -> ShownError:
    title = next((title for kind, _, title in _KINDS if isinstance(error, kind)), "This failed")
    return ShownError(title, error.sentence, error.remedy, error.code.name, isinstance(error, TemporaryError))
