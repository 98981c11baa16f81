"""Proves, before a node writes, that of two processes which commit one version exactly one wins.

The node's Spark and a child that commits through delta-rs race for the versions of a scratch table beside
the target. Decides whether a path may be written to; knows nothing of jobs, sinks or the node's start.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp.adapters.delta.launch import LOG_STORE
from iscp.adapters.delta.race import DeltaRsContender, Round, StoreContender, breaches, hadoop_uri, race
from iscp.core.errors import ErrorCode, IscpError, PermanentError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

ROUNDS = 12
"""Few, since pyspark takes its time over every exception of the JVM, and each lost round is one."""

SCRATCH_PREFIX = ".iscp-selftest-"
LOG_STORE_FIELD = "spark.conf.spark.delta.logStore.file.impl"

_LINK_REMEDY = "Use a file system where link(2) works and fails if the name exists, or an object store"


class SelfTestFailed(PermanentError):
    """This path cannot be written to safely; `field` names what is at fault, `remedy` what to change."""

    code = ErrorCode.SELF_TEST


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """A passed self-test: beside what, how many versions each contender won, and how long it took."""

    directory: Path
    wins: Mapping[str, int]
    took_s: float


def kind_of(target: Path) -> str:
    """What kind of path this is: one self-test holds for all of a kind, which is one mounted file system."""
    return f"file:{_nearest(target).stat().st_dev}"


def self_test(spark: SparkSession, target: Path, *, field: str, rounds: int = ROUNDS) -> SelfTestReport:
    """Races Spark's log store against delta-rs beside `target` (a local path, which need not exist yet).

    Raises SelfTestFailed where Spark has another log store than the package's, where the file system cannot
    do it, and where a version has not exactly one winner that knows it; `field` is what named the target. Raises
    StorageError where it could not be tried.
    """
    began_s = time.monotonic()
    beside = _nearest(target)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=beside))
    except OSError as fault:
        remedy = "Name a path that the node may write"
        raise verdict(fault, f"nothing can be written in {beside} ({fault})", field, remedy) from fault
    try:
        outcomes = _race_in(spark, scratch, field, rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return SelfTestReport(beside, require_fair(outcomes, beside, field), time.monotonic() - began_s)


def require_fair(outcomes: Sequence[Round], directory: Path, field: str) -> dict[str, int]:
    """How many versions each won. Raises SelfTestFailed if one has not exactly one winner that knows it."""
    if wrong := breaches(outcomes):
        version, breach = wrong[0]
        raise SelfTestFailed(
            f"{len(wrong)} of {len(outcomes)} raced commits in {directory} went wrong"
            f" (version {version}: {breach.value})",
            field=field,
            remedy=_LINK_REMEDY,
        )
    return dict(Counter(name for outcome in outcomes for name in outcome.winners))


def verdict(fault: Exception, message: str, field: str, remedy: str) -> IscpError:
    """A disk that is full, or a machine too busy to answer, says nothing of the file system: it is asked again."""
    if getattr(fault, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(fault):
        return StorageError(message, field=field, remedy="Free space on it", code=ErrorCode.NO_SPACE)
    if isinstance(fault, TimeoutError | ChildProcessError):
        return StorageError(message, field=field)
    return SelfTestFailed(message, field=field, remedy=remedy)


def _nearest(target: Path) -> Path:
    """The nearest directory above `target` that exists: never the target, so that no scratch lies in a table."""
    return next(parent for parent in target.absolute().parents if parent.is_dir())


def _race_in(spark: SparkSession, scratch: Path, field: str, rounds: int) -> list[Round]:
    from py4j.protocol import Py4JJavaError

    other = DeltaRsContender(scratch)  # first: it starts while Spark is asked for its log store
    log = scratch / "_delta_log"
    try:
        context: Any = spark.sparkContext._jsc
        store = _local_store(spark, log)
        own = StoreContender(spark._jvm, store, context.hadoopConfiguration(), log)
        other.await_ready()
        return race(log, [own, other], range(1, rounds + 1))
    except (OSError, Py4JJavaError) as fault:
        reason = getattr(fault, "java_exception", fault)
        raise verdict(fault, f"a commit in {scratch.parent} failed ({reason})", field, _LINK_REMEDY) from fault
    finally:
        other.close()


def _local_store(spark: SparkSession, log: Path) -> Any:
    """The log store that Spark has for local paths, if it is the package's.

    A race cannot be relied on to tell: Delta's default loses too seldom to show in a few rounds.
    """
    jvm: Any = spark._jvm
    stores = getattr(getattr(jvm.org.apache.spark.sql.delta.storage, "LogStore$"), "MODULE$")
    found = stores.apply(spark._jsparkSession)
    if _class_of(found).endswith(".DelegatingLogStore"):
        found = found.getDelegate(jvm.org.apache.hadoop.fs.Path(hadoop_uri(log)))
    if _class_of(found).endswith(".LogStoreAdaptor"):
        found = found.logStoreImpl()
    if _class_of(found) != LOG_STORE:
        raise SelfTestFailed(
            f"{_class_of(found)} excludes only writers of its own JVM",
            field=LOG_STORE_FIELD,
            remedy=f"Take it out of [spark.conf], or set it to {LOG_STORE}",
        )
    return found


def _class_of(instance: Any) -> str:
    return str(instance.getClass().getName())
