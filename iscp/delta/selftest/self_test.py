"""Proves, before a node writes, that of two processes which commit one version exactly one wins.

The node's Spark and a child that commits through delta-rs race for the versions of a scratch table beside
the target, on its file system or in its bucket. Decides whether a place may be written to; knows nothing of jobs,
sinks or the node's start.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from iscp.delta.selftest.commit_race import (
    DELTA_RS,
    DeltaRsContender,
    DeltaRsThread,
    Round,
    StoreContender,
    breaches,
    hadoop_uri,
    race,
)
from iscp.model.values.errors import ErrorCode, IscpError, PermanentError, StorageError
from iscp.spark.jvm_launch import LOG_STORE
from iscp.storage import files, s3_settings
from iscp.storage.locations import S3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

ROUNDS = 12
"""Races of the self-test. Few, since pyspark takes its time over every exception of the JVM, and each lost round is
one.
"""

_WRITABLE = "Name a path that the node may write"
SCRATCH_PREFIX = ".iscp-selftest-"


@dataclass(frozen=True, slots=True)
class _TestedStore:
    """A log store with put-if-absent: its class in Spark, the setting that names it, and the remedy where it fails."""

    log_store: str
    setting: str
    remedy: str

    @property
    def field(self) -> str:
        return f"spark.conf.{self.setting}"


LOCAL = _TestedStore(
    LOG_STORE,
    "spark.delta.logStore.file.impl",
    "Use a file system where link(2) works and fails if the name exists, or an object store",
)
ON_S3 = _TestedStore(
    s3_settings.LOG_STORE,
    "spark.delta.logStore.s3.impl",
    files.REMEDY,
)
_REFUSES_CONDITIONS = ("Conditional Writes Unavailable", "NotImplemented", "501 Not Implemented")
"""Texts of errors of Hadoop and of stores that openly lack conditional writes."""


class SelfTestError(PermanentError):
    """This path cannot be written to safely; `field` names what is at fault, `remedy` what to change."""

    code = ErrorCode.SELF_TEST


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """A passed self-test: beside what, how many versions each contender won, and how long it took."""

    directory: str
    wins: Mapping[str, int]
    took_s: float


def kind_of(target: str, field: str) -> str:
    """Return the kind of this place, a mounted file system or a bucket: one self-test is valid for all places of a
    kind.

    Raises SelfTestError where there is no way to it; `field` is what named the target.
    """
    if target.startswith(S3):
        return target[: target.index("/", len(S3))]
    return f"file:{_nearest(target, field).stat().st_dev}"


def self_test(spark: SparkSession, target: str, *, field: str, rounds: int = ROUNDS) -> SelfTestReport:
    """Races Spark's log store against delta-rs beside `target` (of one spelling; it need not exist yet).

    Raises SelfTestError where Spark has another log store than the package's, where the file system cannot
    do it, and where a version has not exactly one winner that knows it; `field` is what named the target. Raises
    StorageError where it could not be tried.
    """
    return _test_beside(target, field, lambda scratch, store: _race_in(spark, scratch, store, field, rounds))


def self_test_directly(target: str, *, field: str, rounds: int = ROUNDS) -> SelfTestReport:
    """Races delta-rs against itself beside `target`, as `self_test` does, for where Spark writes nothing as yet."""
    return _test_beside(target, field, lambda scratch, store: _race_directly(scratch, store, field, rounds))


def _test_beside(target: str, field: str, run: Callable[[str, _TestedStore], list[Round]]) -> SelfTestReport:
    """Have `run` race in a scratch directory beside the target, and judge the outcomes."""
    began_s = time.monotonic()
    remote = target.startswith(S3)
    beside = target.rpartition("/")[0] if remote else str(_nearest(target, field))
    scratch = f"{beside}/{SCRATCH_PREFIX}{uuid4().hex}"
    store = ON_S3 if remote else LOCAL
    try:
        if not remote:
            os.mkdir(scratch)
    except OSError as fault:
        raise verdict(fault, f"nothing can be written in {beside} ({fault})", field, _WRITABLE) from fault
    try:
        outcomes = run(scratch, store)
    finally:
        with suppress(OSError):
            files.remove_tree(scratch)
    wins = require_fair(outcomes, beside, field, store.remedy)
    return SelfTestReport(beside, wins, time.monotonic() - began_s)


def require_fair(outcomes: Sequence[Round], directory: str, field: str, remedy: str) -> dict[str, int]:
    """Return how many versions each won. Raises SelfTestError if one has not exactly one winner that knows it."""
    if wrong := breaches(outcomes):
        version, breach = wrong[0]
        raise SelfTestError(
            f"{len(wrong)} of {len(outcomes)} raced commits in {directory} went wrong"
            f" (version {version}: {breach.value})",
            about=field,
            remedy=remedy,
        )
    return dict(Counter(name for outcome in outcomes for name in outcome.winners))


def verdict(fault: Exception, message: str, field: str, remedy: str, *, remote: bool = False) -> IscpError:
    """A disk that is full, or a machine under too much load, says nothing of the file system: it is tried again.

    So is a `remote` store, whatever it says but that it knows no conditions.
    """
    if getattr(fault, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(fault):
        return StorageError(message, about=field, remedy="Free space on it", code=ErrorCode.NO_SPACE)
    if isinstance(fault, TimeoutError | ChildProcessError):
        return StorageError(message, about=field)
    if remote and not any(mark in message for mark in _REFUSES_CONDITIONS):
        return StorageError(message, about=field, remedy="Check bucket, storage.s3, and the node's credentials")
    return SelfTestError(message, about=field, remedy=remedy)


def _nearest(target: str, field: str) -> Path:
    """Return the nearest directory above `target` that exists: never the target, so that no scratch lies in a table."""
    try:
        return next(parent for parent in Path(target).parents if parent.is_dir())
    except OSError as fault:  # one of them may not be entered, or has a name that cannot be
        raise SelfTestError(f"there is no way to {target} ({fault})", about=field, remedy=_WRITABLE) from fault


def _race_in(spark: SparkSession, scratch: str, store: _TestedStore, field: str, rounds: int) -> list[Round]:
    from py4j.protocol import Py4JJavaError

    other = DeltaRsContender(scratch)  # first: it starts while Spark answers for its log store
    log = f"{scratch}/_delta_log"
    try:
        context: Any = spark.sparkContext._jsc
        own = StoreContender(spark._jvm, _own_store(spark, log, store), context.hadoopConfiguration(), log)
        other.await_ready()
        _require_refusal(own, scratch, store, field)
        return race(log, [own, other], range(1, rounds + 1))
    except (OSError, Py4JJavaError) as fault:
        reason = getattr(fault, "java_exception", fault)
        message = f"a commit in {os.path.dirname(scratch)} failed ({reason})"
        raise verdict(fault, message, field, store.remedy, remote=store is ON_S3) from fault
    finally:
        other.close()


def _race_directly(scratch: str, store: _TestedStore, field: str, rounds: int) -> list[Round]:
    with ExitStack() as open_contenders:
        try:
            contenders = [DeltaRsThread(scratch, f"{DELTA_RS} {number}") for number in (1, 2)]
            for each in contenders:
                open_contenders.callback(each.close)
            return race(f"{scratch}/_delta_log", contenders, range(1, rounds + 1))
        except OSError as fault:
            message = f"a commit in {os.path.dirname(scratch)} failed ({fault})"
            raise verdict(fault, message, field, store.remedy, remote=store is ON_S3) from fault


def _require_refusal(own: StoreContender, scratch: str, store: _TestedStore, field: str) -> None:
    """Require that the version which made the table is refused, without any race: who takes it takes everything."""
    own.prepare(0)
    own.start()
    if own.result():
        raise SelfTestError(
            f"a commit in {os.path.dirname(scratch)} was overwritten by another", about=field, remedy=store.remedy
        )


def _own_store(spark: SparkSession, log: str, store: _TestedStore) -> Any:
    """Return the log store that Spark has for such places, if it is the package's.

    A race cannot be relied on to show it: Delta's default loses too seldom to show in a few rounds.
    """
    jvm: Any = spark._jvm
    stores = getattr(getattr(jvm.org.apache.spark.sql.delta.storage, "LogStore$"), "MODULE$")
    found = stores.apply(spark._jsparkSession)
    if _class_of(found).endswith(".DelegatingLogStore"):
        found = found.getDelegate(jvm.org.apache.hadoop.fs.Path(hadoop_uri(log)))
    if _class_of(found).endswith(".LogStoreAdaptor"):
        found = found.logStoreImpl()
    if _class_of(found) != store.log_store:
        raise SelfTestError(
            f"{_class_of(found)} excludes only writers of its own JVM",
            about=store.field,
            remedy=f"Take it out of [spark.conf], or set it to {store.log_store}",
        )
    return found


def _class_of(instance: Any) -> str:
    return str(instance.getClass().getName())
