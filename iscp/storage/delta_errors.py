"""Translates what deltalake and the file system raise into errors of iscp, without loading Spark."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from iscp.model.values.errors import (
    Conflict,
    ErrorCode,
    PermanentError,
    StorageError,
    TableNotFound,
)
from iscp.storage.regular_files import REFUSED_REMEDY, RefusedFileError

MESSAGE_LENGTH_MAX = 1_000
"""Characters of another system's message that an error keeps; the rest is cut off, and its stack is in the log."""

NO_SPACE = "No space left on device"
# deltalake raises its own errors, and Python's for I/O and for what it cannot read.
FOREIGN_ERRORS = (DeltaError, OSError, ValueError, pa.ArrowException)
_FULL_TEXTS = (NO_SPACE, "Disk quota exceeded")


def is_full(error: BaseException) -> bool:
    """Return whether the storage failed because it is full, be it the operating system or a library that reports it."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    return full or any(text in str(error) for text in _FULL_TEXTS)


class CheckpointDamagedError(DeltaError):
    """A checkpoint of a log is damaged; `file` is its path, which deltalake does not say."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}, a checkpoint of the table, cannot be read: {why}")


_CHECKPOINT_REMEDY = (
    "Restore the file; or, if every commit from version 0 on is there, remove it and _last_checkpoint. Jobs go on then"
)


@contextmanager
def storage_faults(what: str) -> Iterator[None]:
    """Turn OSError into StorageError; FileNotFoundError passes: only the caller knows what it means."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        remedy = "Check the path and its permissions"
        raise storage_error(error, f"cannot {what}", error.strerror, remedy) from error


_PANIC = "pyo3_runtime.PanicException"
"""What a panic of Rust's becomes: no Exception, so that it would end the thread, and there is no name to import."""


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust has given up, and not said why by an error of its own."""
    return f"{type(error).__module__}.{type(error).__qualname__}" == _PANIC


@contextmanager
def delta_faults(what: str) -> Iterator[None]:
    """Turn what deltalake raises into Conflict, TableNotFound or StorageError, and its panics into PermanentError: they
    come back whenever it is tried again.
    """
    try:
        yield
    except CommitFailedError as error:
        if is_full(error):
            raise storage_error(error, what) from error
        raise Conflict(f"{what}: another writer was first") from error
    except TableNotFoundError as error:
        raise TableNotFound(f"cannot {what}: there is no Delta table", remedy="Check the path") from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise storage_error(error, what) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise PermanentError(
            f"{what}: delta-rs gave up: {str(error)[:MESSAGE_LENGTH_MAX]}",
            remedy="Check the table's path and its log for what is unusual",
            code=ErrorCode.TABLE_UNREADABLE,
        ) from error


class _Spent(threading.local):
    """Seconds that this thread has spent in Spark, or directly at data, and whether it is in Spark now."""

    seconds = 0.0
    direct_s = 0.0
    inside = False


spent = _Spent()


@contextmanager
def direct_work() -> Iterator[None]:
    """Counts the time that this thread reads or writes data itself."""
    began_s = time.perf_counter()
    try:
        yield
    finally:
        spent.direct_s += time.perf_counter() - began_s


def storage_error(error: BaseException, what: str, why: str | None = None, remedy: str = "") -> StorageError:
    """Return a fault of the storage in iscp's words; a full disk gets its own code and remedy. One of iscp stays as it
    is.

    `why`: instead of the error's own text.
    """
    if isinstance(error, StorageError):
        return error
    if is_full(error):
        return StorageError(
            f"{what}: {NO_SPACE}", code=ErrorCode.NO_SPACE, remedy="Free space on the disk that holds the table"
        )
    if isinstance(error, RefusedFileError):
        return StorageError(str(error.strerror), code=ErrorCode.LOG_CORRUPT, remedy=REFUSED_REMEDY)
    text = f"{what}: {(why or str(error))[:MESSAGE_LENGTH_MAX]}"
    if isinstance(error, CheckpointDamagedError):
        return StorageError(text, code=ErrorCode.LOG_CORRUPT, remedy=_CHECKPOINT_REMEDY)
    return StorageError(text, remedy=remedy)
