"""What `iscp.Client`, `iscp.aio.Client` and `iscp.changefeed` raise, and what consumers of your own may raise.

Every one is an `IscpError` and has `code` (an `ErrorCode`), `message` (what is wrong), `field` (the path of what it is
wrong with, may be empty) and `remedy` (what to do about it, may be empty); `str(error)` is all of them in a sentence.
A `TemporaryError` may be gone at the next attempt, a `PermanentError` needs a person. A call with too few or unknown
arguments is a TypeError, as everywhere in Python.
"""

from iscp.core.errors import (
    PERMANENT_FROM,
    Canceled,
    ConfigurationError,
    Conflict,
    CursorBehind,
    EngineError,
    ErrorCode,
    FeedIncident,
    FileLost,
    HistoryDamaged,
    InvalidRequest,
    InvariantBroken,
    IscpError,
    JobFailed,
    JobLogDamaged,
    JobNotFound,
    LeaseLost,
    NotOwner,
    OutcomeUnknown,
    PermanentError,
    QueueFull,
    StorageError,
    Superseded,
    TableNotFound,
    TargetLost,
    TemporaryError,
    TimedOut,
    Unavailable,
)

__all__ = [
    "PERMANENT_FROM",
    "Canceled",
    "ConfigurationError",
    "Conflict",
    "CursorBehind",
    "EngineError",
    "ErrorCode",
    "FeedIncident",
    "FileLost",
    "HistoryDamaged",
    "InvalidRequest",
    "InvariantBroken",
    "IscpError",
    "JobFailed",
    "JobLogDamaged",
    "JobNotFound",
    "LeaseLost",
    "NotOwner",
    "OutcomeUnknown",
    "PermanentError",
    "QueueFull",
    "StorageError",
    "Superseded",
    "TableNotFound",
    "TargetLost",
    "TemporaryError",
    "TimedOut",
    "Unavailable",
]
