"""Translates what Spark and the JVM raise into errors of iscp."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from iscp.model.values.errors import (
    Canceled,
    Conflict,
    EngineError,
    ErrorCode,
    FileLost,
    InvalidRequest,
    IscpError,
    PermanentError,
    StorageError,
    Unavailable,
)
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.delta_errors import MESSAGE_LENGTH_MAX, is_full, spent, storage_error
from iscp.system.late_imports import E

log = logging.getLogger(__name__)

_CONFLICTS = ("ConcurrentTransactionException", "ConcurrentModificationException", "DELTA_CONCURRENT")
_CANCELED = ("cancelled part of cancelled job group", "SPARK_JOB_CANCELLED", "was cancelled", "InterruptedException")
# How Delta and Spark say that a file of a table cannot be had, and which: a path may hold blanks and dots.
_FILE = re.compile(
    r"Encountered error while reading file (?P<file>.+?)\.\s+"
    r"(?:File does not exist|Could not read footer|Data type mismatches|The file system|SQLSTATE)"
)
_NO_FILE = re.compile(r"java\.io\.FileNotFoundException: (?:File )?(?P<file>\S.*?)(?: does not exist| \(|$)", re.M)
_LEADING = re.compile(r"^file:/*")
# How Spark says that a file has a column of a type that it does not read as the table's.
_MISFIT = re.compile(
    r"Data type mismatches when reading Parquet column \[(?P<column>.*?)\]\.\s+"
    r"Expected Spark type (?P<wanted>.+?), actual Parquet type (?P<found>\w+)"
)
_ILLEGAL = re.compile(r"Illegal Parquet type: (?P<found>.+?)\.?\s*(?:SQLSTATE|\n|$)")
_NANOSECONDS = "NANOS"
_NO_URI = "java.net.URISyntaxException"
_UNREAD = ("FAILED_READ_FILE", "java.io.FileNotFoundException")
# What a query refuses itself (`raise_error`), also while it reads a file, whose fault it is not.
_RAISED = "USER_RAISED_EXCEPTION"
_NOT_THERE = ("FILE_NOT_EXIST", "java.io.FileNotFoundException")
# Java names a file that it may not open by the same exception as one that is not there.
_DENIED = ("(Permission denied)", "AccessDeniedException", "AccessControlException")
# A part of a checkpoint that holds no such action has no such column, which Delta allows and Spark does not.
_ACTION = r"`(?:add|remove|metaData|protocol|txn|domainMetadata)`"
_NO_ACTION = re.compile(rf"FIELD_NOT_FOUND\] No such struct field (?P<column>{_ACTION}) in (?:{_ACTION}(?:, )?)+\.")
_GONE = (
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "DELTA_CHANGE_DATA_READ_INCOMPATIBLE",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FileNotFoundException",
    "FAILED_READ_FILE",
    "VersionNotFoundException",
    "DELTA_CANNOT_RECONSTRUCT_PATH",
    "DELTA_STATE_RECOVER_ERROR",
    # Spark's reader of changes fails at a blank line of a commit, which all other readers pass over.
    "No content to map due to end-of-input",
)
_NO_RESULT = re.compile(r"SQLSTATE: 22\w{3}")
# SQL's classes of internal errors, of what is not supported, and of statements that are not right, which here are ours;
# and a fault of Spark's: where it broadcasts rows by a key with the value of a subquery, it may not have that yet.
_OF_PLAN = re.compile(r"SQLSTATE: (?:XX|0A|42)\w{3}|Subquery .* has not finished")
_STACK_LINE = re.compile(r"\s*(at |\.\.\. \d+ more)|\s*$|Driver stacktrace:|JVM stacktrace:")
_CALL = re.compile(r"^Py4JJavaError: An error occurred.*?\.\s*: ", re.DOTALL)
_CAUSE = re.compile(r"^\s*Caused by: ")
_CLASS = re.compile(r"^:?\s*(?:Caused by: )?(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")
STACK_LENGTH_MAX = 20_000
"""Characters of a JVM's stack that the log keeps of a fault; the rest is cut off."""


@contextmanager
def spark_faults(what: str) -> Iterator[None]:
    """Turn what Spark and the gateway raise into errors of iscp; counts the time spent there."""
    outermost, began_s = not spent.inside, time.perf_counter()
    spent.inside = True
    try:
        with translating(what):
            yield
    except (ConnectionError, EOFError) as error:
        raise _silent(what, error) from error
    finally:
        if outermost:
            spent.inside = False
            spent.seconds += time.perf_counter() - began_s


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Translate Spark's own errors as `spark_faults` does, around code of which only a part is Spark's; count
    no time.
    """
    try:
        yield
    except IscpError:
        raise
    except (E.PySparkException, Py4JJavaError) as error:
        raise _translate(what, error) from error
    except (Py4JNetworkError, Py4JError) as error:
        raise _silent(what, error) from error


def concerns_values(error: BaseException) -> bool:
    """Return whether an expression has no result for some value, as a quotient by zero: SQL's class of data exceptions.

    `error`: Spark's, or what it was translated to.
    """
    return _is_of(_NO_RESULT, error)


def is_of_plan(error: BaseException) -> bool:
    """Return whether another plan of the same rows may do without this error.

    That is where an expression has no result for some value, as for rows that the other plan leaves out before; where
    Spark blames itself, as where a rule of its optimizer breaks a plan; and where it refuses the plan, as one that
    compares values of a type which the query does not compare. `error`: Spark's, or what it was translated to.
    """
    return concerns_values(error) or _is_of(_OF_PLAN, error)


def _is_of(kind: re.Pattern[str], error: BaseException) -> bool:
    cause = error.__cause__ if isinstance(error, EngineError) else error
    return isinstance(cause, E.PySparkException | Py4JJavaError) and kind.search(str(cause)) is not None


def spark_message(error: E.PySparkException | Py4JJavaError) -> str:
    """Return Spark's message in a line, without the stack."""
    return ": ".join(_sentences(f"{type(error).__name__}: {error}"))[:MESSAGE_LENGTH_MAX]


def _silent(what: str, error: Exception) -> Unavailable:
    return Unavailable(f"{what}: Spark's JVM does not answer: {str(error)[:MESSAGE_LENGTH_MAX]}")


def _translate(what: str, error: E.PySparkException | Py4JJavaError) -> IscpError:
    text = f"{type(error).__name__}: {error}"
    if any(mark in text for mark in _CONFLICTS):
        return Conflict(f"{what}: another writer was first")
    if any(mark in text for mark in _CANCELED):
        return Canceled(f"{what}: was canceled")
    if is_full(error):
        return storage_error(error, what)
    if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
        return InvalidRequest(
            f"{what}: several rows share a key",
            about="spec.iteration.consumer.key",
            remedy="Choose a key that is unique in the source",
            code=ErrorCode.DUPLICATE_KEY,
        )
    log.info("spark.failed", extra={"what": what, "stack": text[:STACK_LENGTH_MAX]})
    if _NO_URI in text:
        return PermanentError(
            f"{what}: the log names a file by a path that is no URI, which Spark does not read "
            f"({_sentences(text)[-1]})"[:MESSAGE_LENGTH_MAX],
            remedy="Have its writer encode the path; or copy the rows to a new table, as deltalake can",
            code=ErrorCode.TABLE_UNREADABLE,
        )
    if found := _NO_ACTION.search(text):
        return StorageError(
            f"{what}: a file of the table's last checkpoint has no column {found['column']}, and Spark cannot read it",
            remedy="Have its writer make a checkpoint of a later version; or, if every commit from version 0 on is "
            "there, remove the checkpoint's files and _last_checkpoint",
        )
    if _RAISED not in text and any(mark in text for mark in _UNREAD):
        return _of_no_type(what, text) or _unread(what, text)
    return EngineError(f"{what}: {spark_message(error)}"[:MESSAGE_LENGTH_MAX])


def _of_no_type(what: str, text: str) -> PermanentError | None:
    """Return the error for a file with a column of a type that Spark does not read; None: it is another fault."""
    misfit, illegal = _MISFIT.search(text), _ILLEGAL.search(text)
    if misfit is None and illegal is None:
        return None
    found = _FILE.search(text)
    file = _LEADING.sub("/", found["file"]) if found else "a file of the table"
    column = f"the column {misfit['column']}" if misfit else "a column"
    # Of times Spark reads all but nanoseconds, and says of these only how they are stored.
    of_time = misfit is not None and misfit["wanted"].startswith("timestamp") and misfit["found"] == "INT64"
    if of_time or (illegal is not None and _NANOSECONDS in illegal["found"]):
        why, unit = f"times in nanoseconds in {column}", "in microseconds"
    else:
        stored_type = misfit["found"] if misfit else illegal["found"] if illegal else ""
        why = f"{stored_type} in {column}" + (f", which is {misfit['wanted']} in the table" if misfit else "")
        unit = "in the table's types"
    return PermanentError(
        f"{file} has {why}, which Spark does not read: {what} failed"[:MESSAGE_LENGTH_MAX],
        remedy=f"Have its writer write {unit}, and rewrite its rows; then resume the job",
        code=ErrorCode.TABLE_UNREADABLE,
    )


def _unread(what: str, text: str) -> StorageError:
    """A file of a table that is gone, damaged, or not to be read: which, and why."""
    # What is read with a data file, as its deletion vector, is what may be missing.
    found = _NO_FILE.search(text) or _FILE.search(text)
    file = _LEADING.sub("/", found["file"]) if found else "a file of the table"
    if any(mark in text for mark in _DENIED):
        why, remedy = "may not be read: permission denied", "Let the user that nodes run as read it"
        return StorageError(f"{file} {why}: {what} failed", remedy=remedy)
    if any(mark in text for mark in _NOT_THERE):
        why, remedy = "is not there", "Restore it, or restore the table to a version without it"
    else:
        why = f"cannot be read ({_sentences(text)[-1]})"
        remedy = "Check its permissions; restore it, or restore the table to a version without it"
    return FileLost(f"{file} {why}"[:MESSAGE_LENGTH_MAX] + f": {what} failed", remedy=remedy)


def _sentences(text: str) -> list[str]:
    """Return the first line of the text and its last cause, without the stack and the names of classes."""
    lines = [line for line in _CALL.sub("", text).splitlines() if not _STACK_LINE.match(line)]
    causes = [line for line in lines if _CAUSE.match(line)]
    sentences = [lines[0] if lines else text.strip(), *causes[-1:]]
    return list(dict.fromkeys(_CLASS.sub("", line).strip() for line in sentences))


@contextmanager
def reading_changes(what: str) -> Iterator[None]:
    """Distinguishes changes that are gone (ChangesUnavailableError) from a Spark that fails."""
    with naming_lost_changes(), spark_faults(what):
        yield


@contextmanager
def naming_lost_changes() -> Iterator[None]:
    """Raise ChangesUnavailableError where files of changes are gone, around what translates Spark's other errors
    itself.
    """
    try:
        yield
    except (EngineError, StorageError, PermanentError) as error:
        # The message may be cut before that. A file that has another type than the table may be one of former columns.
        text = f"{error.message} {error.__cause__}"
        if any(mark in text for mark in _GONE):
            raise ChangesUnavailableError(error.message) from error
        raise
