"""Translates what deltalake, the file system, Spark and the JVM raise into errors of iscp."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from iscp.core.errors import (
    Canceled,
    Conflict,
    EngineError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    StorageError,
    TableNotFound,
    Unavailable,
)

_MESSAGE_LENGTH_MAX = 2_000
_CONFLICTS = ("ConcurrentTransactionException", "ConcurrentModificationException", "DELTA_CONCURRENT")
_CANCELED = ("cancelled part of cancelled job group", "SPARK_JOB_CANCELLED", "was cancelled", "InterruptedException")
_NO_SPACE = "No space left on device"


@contextmanager
def storage_faults(what: str) -> Iterator[None]:
    """Turn OSError into StorageError; FileNotFoundError passes: only the caller knows what it means."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        code = ErrorCode.NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.STORAGE
        remedy = "Free space on it" if code is ErrorCode.NO_SPACE else "Check the path and its permissions"
        raise StorageError(f"cannot {what}: {error.strerror or error}", code=code, remedy=remedy) from error


@contextmanager
def delta_faults(what: str) -> Iterator[None]:
    """Turn what deltalake raises into Conflict, TableNotFound or StorageError."""
    try:
        yield
    except CommitFailedError as error:
        if _NO_SPACE in str(error):
            raise _no_space(what, error) from error
        raise Conflict(f"{what}: another writer was first") from error
    except TableNotFoundError as error:
        raise TableNotFound(f"{what}: is not a Delta table", remedy="Check the path") from error
    except (DeltaError, OSError) as error:
        if _NO_SPACE in str(error):
            raise _no_space(what, error) from error
        raise StorageError(f"{what}: {str(error)[:_MESSAGE_LENGTH_MAX]}") from error


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


@contextmanager
def spark_faults(what: str) -> Iterator[None]:
    """Turn what Spark and the gateway raise into errors of iscp; counts the time spent there."""
    outermost, began_s = not spent.inside, time.perf_counter()
    spent.inside = True
    try:
        yield
    except IscpError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        raise _translated(what, error) from error
    except (Py4JNetworkError, Py4JError, ConnectionError, EOFError) as error:
        raise Unavailable(f"{what}: Spark's JVM does not answer: {str(error)[:_MESSAGE_LENGTH_MAX]}") from error
    finally:
        if outermost:
            spent.inside = False
            spent.seconds += time.perf_counter() - began_s


def _translated(what: str, error: PySparkException | Py4JJavaError) -> IscpError:
    text = f"{type(error).__name__}: {error}"
    if any(mark in text for mark in _CONFLICTS):
        return Conflict(f"{what}: another writer was first")
    if any(mark in text for mark in _CANCELED):
        return Canceled(f"{what}: was canceled")
    if _NO_SPACE in text:
        return _no_space(what, error)
    if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
        return InvalidRequest(
            f"{what}: several rows share a key",
            field="spec.iteration.consumer.key",
            remedy="Choose a key that is unique in the source",
            code=ErrorCode.DUPLICATE_KEY,
        )
    return EngineError(f"{what}: {text[:_MESSAGE_LENGTH_MAX]}")


def _no_space(what: str, error: Exception) -> StorageError:
    return StorageError(f"{what}: {_NO_SPACE}", code=ErrorCode.NO_SPACE, remedy="Free space on it")
