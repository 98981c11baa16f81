"""Every fault that iscp names, and whose move is next.

Codes follow the job log: 0 is no error, 1-9999 temporary (retried with backoff), 10000 and up permanent (a person has
to act). Foreign errors are translated into these at the edge, in the adapters.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

PERMANENT_FROM = 10_000
EXIT_JOB_LOG_DAMAGED = 3
"""The exit status of a node that found the job log lost or damaged: starting it again does not help."""


class ErrorCode(IntEnum):
    """The codes that are written as `error_code` into a job's status."""

    OK = 0
    # Temporary: the same attempt may succeed later.
    UNAVAILABLE = 1
    CANCELED = 2
    TIMEOUT = 3
    CONFLICT = 4
    NO_SPACE = 5
    NOT_OWNER = 6
    LEASE_LOST = 7
    QUEUE_FULL = 8
    STORAGE = 9
    ENGINE = 10
    OUTCOME_UNKNOWN = 11
    NOT_READY = 12
    CONSUMER_FAILED = 13
    TRIGGER_FAILED = 14
    FEED_INCIDENT = 15
    TARGET_LOST = 16
    LOG_CORRUPT = 17
    JOB_LOG_DAMAGED = 18
    HISTORY_DAMAGED = 19
    FILE_LOST = 20
    PLAN_OUTDATED = 21
    NODE_KILLED = 22
    EMBEDDER_FAILED = 23
    INTERNAL = 99
    # Permanent: retrying alone cannot help.
    INVALID_REQUEST = 10_000
    TABLE_NOT_FOUND = 10_001
    JOB_NOT_FOUND = 10_002
    TARGET_UNUSABLE = 10_003
    DUPLICATE_KEY = 10_004
    SCHEMA_CHANGED = 10_005
    SOURCE_REPLACED = 10_006
    CONSUMER_UNKNOWN = 10_007
    CONFIGURATION = 10_008
    SELF_TEST = 10_009
    JOB_FAILED = 10_010
    SUPERSEDED = 10_011
    CONSUMER_BROKEN = 10_012
    CONSUMER_NOT_ALLOWED = 10_013
    VERSION_GONE = 10_015
    ADOPT_DIFFERS = 10_016
    CDF_OFF = 10_017
    FEED_PURGED = 10_018
    TABLE_UNREADABLE = 10_019
    NOT_AUTHORIZED = 10_020
    NOT_AUTHENTICATED = 10_021
    OUTSIDE_ROOTS = 10_022
    EMBEDDER_BROKEN = 10_023

    @property
    def temporary(self) -> bool:
        return 0 < self < PERMANENT_FROM


class IscpError(Exception):
    """Base of all errors of iscp.

    `field` is the path of what is wrong (`spec.iteration.consumer.key`), `remedy` what to do about it; both may
    be empty where there is neither. Whoever raises an error about a field chooses one of two ways to say it:

    - `InvalidRequest("is missing", field="spec.key")`: the field is the subject, and the message goes on from it;
    - `InvalidRequest("there is no table t", about="table")`: the message is a whole sentence.

    `others` are further faults that were found with this one.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    message: str
    field: str
    remedy: str
    field_is_subject: bool
    others: tuple[IscpError, ...] = ()

    def __init__(
        self, message: str, *, field: str = "", about: str = "", remedy: str = "", code: ErrorCode | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field or about
        self.field_is_subject = bool(field)
        self.remedy = remedy
        if code is not None:
            self.code = code

    @classmethod
    def from_error(
        cls, error: IscpError, *, field: str | None = None, remedy: str | None = None, code: ErrorCode | None = None
    ) -> Self:
        """Return an error of this class that says what `error` says, of another `field` or with another `remedy` where
        one is given. The code is that of the class unless one is given.
        """
        made = cls(error.message, remedy=error.remedy if remedy is None else remedy, code=code)
        made.field = error.field if field is None else field
        made.field_is_subject = error.field_is_subject
        return made

    @property
    def sentence(self) -> str:
        """Return what is wrong, with its subject."""
        return f"{self.field} {self.message}" if self.field and self.field_is_subject else self.message

    def __str__(self) -> str:
        return "\n".join((self._line(), *map(str, self.others)))

    def _line(self) -> str:
        named = not self.field or self.field_is_subject
        head = self.sentence if named else f"{self.field}: {self.message}"
        return f"{head}. {self.remedy}" if self.remedy else head


class TemporaryError(IscpError):
    """An error that is retried with backoff; nothing is lost by it."""

    code = ErrorCode.UNAVAILABLE


class PermanentError(IscpError):
    """An error that is not retried: it needs a person, `remedy` says for what."""

    code = ErrorCode.INVALID_REQUEST


class InvalidRequest(PermanentError):
    """A request is refused before anything was written."""


class TableNotFound(InvalidRequest):
    """There is no table at this place or of this name, or it is none that can be read."""

    code = ErrorCode.TABLE_NOT_FOUND


class JobNotFound(InvalidRequest):
    """There is no job of this name on this table, in this account."""

    code = ErrorCode.JOB_NOT_FOUND


class CursorBehind(InvalidRequest):
    """The part of a changefeed that a reader would have had next was purged, at least in part.

    `first_cursor` is the text of the cursor behind which nothing is missing.
    """

    code = ErrorCode.FEED_PURGED

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        about: str = "",
        remedy: str = "",
        code: ErrorCode | None = None,
        first_cursor: str = "",
    ) -> None:
        super().__init__(message, field=field, about=about, remedy=remedy, code=code)
        self.first_cursor = first_cursor


class ConfigurationError(PermanentError):
    """A setting is wrong: a node's, an endpoint, or what a changefeed was opened with."""

    code = ErrorCode.CONFIGURATION


class NotAuthorized(PermanentError):
    """The caller may not do this: nothing was done."""

    code = ErrorCode.NOT_AUTHORIZED


class NotAuthenticated(NotAuthorized):
    """The caller is not known: there is no token or certificate, or one that is not valid. Nothing was done."""

    code = ErrorCode.NOT_AUTHENTICATED


class JobFailed(PermanentError):
    """The job cannot come to what was waited for: it has failed for good, is paused or was dropped."""

    code = ErrorCode.JOB_FAILED


class Superseded(PermanentError):
    """The sink belongs to a later registration: whatever is still under way for this one must not touch it."""

    code = ErrorCode.SUPERSEDED


class Unavailable(TemporaryError):
    """A part outside (etcd, a node, the storage) does not answer; nothing was done."""


class OutcomeUnknown(TemporaryError):
    """The answer was lost: the change may or may not have been made. Check before repeating the request."""

    code = ErrorCode.OUTCOME_UNKNOWN


class NotOwner(TemporaryError):
    """This node is not the owner (any more)."""

    code = ErrorCode.NOT_OWNER


class LeaseLost(TemporaryError):
    """The lease can no longer be confirmed: no write may begin or be committed."""

    code = ErrorCode.LEASE_LOST


class Conflict(TemporaryError):
    """Somebody else has won this version or seq: start over from what the sink says."""

    code = ErrorCode.CONFLICT


class Canceled(TemporaryError):
    """The work was ended before it was done, by whoever requested it or by a node that stops."""

    code = ErrorCode.CANCELED


class TimedOut(TemporaryError):
    """The work was not done within the time allowed for it."""

    code = ErrorCode.TIMEOUT


class QueueFull(TemporaryError):
    """More was requested at a time than is taken: retry later."""

    code = ErrorCode.QUEUE_FULL


class FeedIncident(TemporaryError):
    """The holder of a changefeed's lock was found to be gone, and its lock was given up: try again at once."""

    code = ErrorCode.FEED_INCIDENT


class StorageError(TemporaryError):
    """The storage failed: a full disk, a missing directory, no permission."""

    code = ErrorCode.STORAGE


class FileLost(StorageError):
    """A data file that a table's log names is gone or damaged: a retry finds the same until that changes."""

    code = ErrorCode.FILE_LOST


class PlanOutdated(TemporaryError):
    """The tables or jobs of a build are not there any more: its job requests another, or is built without."""

    code = ErrorCode.PLAN_OUTDATED


class NodeKilled(TemporaryError):
    """A node's process has died again and again while it worked for the job, which it does not run any more."""

    code = ErrorCode.NODE_KILLED


class JobLogDamaged(StorageError):
    """The job log is lost or corrupt: no owner begins before a person has restored it."""

    code = ErrorCode.JOB_LOG_DAMAGED


class HistoryDamaged(StorageError):
    """The history of iterations is corrupt: nothing is decided by it, and jobs go on without."""

    code = ErrorCode.HISTORY_DAMAGED


class TargetLost(TemporaryError):
    """A target does not hold what was applied to it, as it is gone or others wrote to it; the job sets it right."""

    code = ErrorCode.TARGET_LOST


class EngineError(TemporaryError):
    """Spark failed in a way that a later attempt may not."""

    code = ErrorCode.ENGINE


def no_owner(fault: IscpError | None = None) -> NotOwner:
    """Return the error between terms; `fault` says why nobody can claim the job log.

    A damaged job log is claimed by nobody before it is restored.
    """
    code = fault.code if isinstance(fault, JobLogDamaged) else None
    why = str(fault) if fault else "try again in a moment"
    return NotOwner(f"no owner has claimed the job log yet: {why}", code=code)


def no_etcd(error: IscpError) -> Unavailable:
    """Return the error of what needs etcd while that does not answer; `error` is what a call to it met."""
    return Unavailable(
        f"etcd does not answer this node ({error.message})",
        remedy=error.remedy or "Check whether etcd runs and can be reached; nodes go on by themselves once it answers",
    )


def no_jobs_on(table: str) -> TableNotFound:
    """Return the error for a table without jobs, also where it has other accounts' jobs alone."""
    return TableNotFound(f"{table} has no jobs", about="table", remedy="See `iscp-admin job list`")


def no_index_at(uri: str) -> TableNotFound:
    """Return the error for a place that is the target of no index's job, also where other accounts' jobs have it."""
    return TableNotFound(
        f"{uri} is the target of no job that maintains an index",
        about="uri",
        remedy="Name the target of a job of the kind fulltext, vector or search; see `iscp-admin job list`",
    )


class InvariantBroken(IscpError):
    """An invariant is broken: the node stops rather than write on."""
