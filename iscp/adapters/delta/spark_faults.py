"""Translates what Spark and the JVM raise into errors of iscp."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from iscp.adapters.delta.faults import MESSAGE_LENGTH_MAX, NO_SPACE, no_space, spent
from iscp.core.errors import Canceled, Conflict, EngineError, ErrorCode, InvalidRequest, IscpError, Unavailable

_CONFLICTS = ("ConcurrentTransactionException", "ConcurrentModificationException", "DELTA_CONCURRENT")
_CANCELED = ("cancelled part of cancelled job group", "SPARK_JOB_CANCELLED", "was cancelled", "InterruptedException")


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
        raise Unavailable(f"{what}: Spark's JVM does not answer: {str(error)[:MESSAGE_LENGTH_MAX]}") from error
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
    if NO_SPACE in text:
        return no_space(what, error)
    if "DELTA_MULTIPLE_SOURCE_ROW_MATCHING" in text:
        return InvalidRequest(
            f"{what}: several rows share a key",
            field="spec.iteration.consumer.key",
            remedy="Choose a key that is unique in the source",
            code=ErrorCode.DUPLICATE_KEY,
        )
    return EngineError(f"{what}: {text[:MESSAGE_LENGTH_MAX]}")
