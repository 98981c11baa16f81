"""Spark as the runner uses it (port Engine): a pool of sessions, and job groups to cancel by."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from math import isfinite
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError

from iscp.model.values.progress import StageWork
from iscp.spark.spark_errors import spark_faults, translating
from iscp.storage.delta_errors import spent
from iscp.system.late_imports import A

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

IDLE_SESSIONS_MAX = 16
"""Idle sessions for reuse, each with a catalog and code caches of its own; beyond them a session is dropped."""

CANCEL_INTERVAL_S = 0.1
"""Pause between two cancellations: a query is several jobs, and the next one may begin after the last was cancelled."""

DEFAULT_PROPERTIES = "spark.databricks.delta.properties.defaults."
RESULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # its default follows from a variable of the process
    "spark.sql.variable.substitute": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # else microseconds would be cut off without a word
    "spark.databricks.delta.stats.collect": "true",
}
"""Settings that rows depend on, as they are in all sessions in which the project evaluates what users wrote."""

_SPARKS_OWN = re.compile(
    r"spark\.sql\."
    # Families: how SQL is parsed and resolved, and what its functions, casts and literals give.
    r"((ansi|legacy|parser|analyzer|collation|session\.collation|function|icu|variant|timeType|defaultColumn|json"
    r"|jsonGenerator|csv|decimalOperations|lateralColumnAlias|stableDerivedColumnAlias)\b.*"
    r"|caseSensitive|timestampType|storeAssignmentPolicy|mapKeyDedupPolicy|mapZipWithUsesJavaCollections"
    r"|charAsVarchar|preserveCharVarcharTypeInfo|readSideCharPadding|chunkBase64String\.enabled"
    r"|columnNameOfCorruptRecord|crossJoin\.enabled|groupByAliases|groupByOrdinal|orderByOrdinal|pivotMaxValues"
    r"|fromJsonForceNullableSchema|mergeNestedTypeCoercion\.enabled|allowNamedFunctionArguments"
    r"|prioritizeOrdinalResolutionInSort\.enabled|selfJoinAutoResolveAmbiguity"
    r"|(enforceTypeCoercionBeforeUnionDeduplication|runCollationTypeCastsBeforeAliasAssignment)\.enabled"
    # What the files of a table are read as; rows of a file that is gone or damaged would be passed over.
    r"|files\.ignore(Missing|Corrupt)Files"
    r"|parquet\.(int96\w+|datetimeRebaseMode(InRead|InWrite)|binaryAsString|int64AsTimestampMillis|inferTimestampNTZ\.enabled"
    r"|fieldId\.read\.ignoreMissing|mergeSchema|respectSummaryFiles|recordLevelFilter\.enabled|ignoreVariantAnnotation"
    r"|writeLegacyFormat))"
)
"""Matches settings that rows depend on as well, and that have the default of Spark's release in these sessions."""


class SparkEngine:
    """One JVM's sessions. `new_session` makes a session that shares nothing but the context with the others."""

    def __init__(self, root: SparkSession, new_session: Callable[[], SparkSession]) -> None:
        self._root = root
        self._new_session = new_session
        self._idle: list[SparkSession] = []
        self._said = False
        self._lock = threading.Lock()

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        session = self.borrow()
        try:
            with translating("the work by Spark"):
                self.activate(session)
                yield session
        finally:
            self.give_back(session)

    def borrow(self) -> SparkSession:
        """Return a session that nobody else has until it is given back."""
        with self._lock:  # two threads never share one: a merge's seq is a setting of its session
            session = self._idle.pop() if self._idle else None
        if session is None:
            session, replaced = _fixed_session(self._new_session)
            if replaced and not self._said:
                self._said = True
                log.warning("spark.settings_replaced", extra={"settings": replaced})
        return session

    def give_back(self, session: SparkSession) -> None:
        with self._lock:
            if len(self._idle) < IDLE_SESSIONS_MAX:
                self._idle.append(session)

    def activate(self, session: SparkSession) -> None:
        """Make the session the thread's in the JVM, by which Delta lists a table's files; before its first query it
        has none.
        """
        with spark_faults("take a Spark session"):
            jvm: Any = session._jvm
            # By its whole name: each part of a path is looked up by a call to the JVM.
            getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session._jsparkSession)

    def label(self, label: str) -> None:
        with spark_faults("name the job group"):
            self._root.sparkContext.setJobGroup(label, label, interruptOnCancel=False)

    def spent_s(self) -> tuple[float, float]:
        return spent.seconds, spent.direct_s

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        return arrow_batches(frame, rows_max)

    def stages(self, label: str) -> dict[int, StageWork]:
        with spark_faults("read Spark's counters"):
            return dict(_read_stages(self._root.sparkContext._jsc.sc(), label))

    def cancel(self, label: str) -> None:
        # Not cancelJobGroup: that lets an iteration which is between two jobs go on to its commit.
        with spark_faults("cancel the job group"):
            self._root.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(label)


class JobBudget(AbstractContextManager["JobBudget"]):
    """`with` this, the calling thread's jobs are cancelled after `seconds`, and whatever needs them fails.

    Until `end`, or until the block is left. Infinite: they never are. The jobs keep their group, so that whoever
    cancels the whole iteration does it as ever.
    """

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self._context = session.sparkContext
        self._seconds = seconds
        self._tag = f"iscp-budget-{uuid.uuid4().hex[:12]}"
        self._ended = threading.Event()
        self._canceling = threading.Lock()
        self.spent = False
        """True once jobs were cancelled."""

    def __enter__(self) -> JobBudget:
        if isfinite(self._seconds):
            with spark_faults("tag Spark's jobs"):
                self._context.addJobTag(self._tag)
            threading.Thread(target=self._watch, name="iscp-job-budget", daemon=True).start()
        else:
            self._ended.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the budget, from the thread whose jobs they are: none of its later ones is cancelled."""
        if self._ended.is_set():
            return
        with self._canceling:
            self._ended.set()
        with spark_faults("tag Spark's jobs"):
            self._context.removeJobTag(self._tag)

    def _watch(self) -> None:
        pause_s = self._seconds
        while not self._ended.wait(pause_s):
            with self._canceling:
                if self._ended.is_set():
                    return
                self.spent = True
                try:
                    self._context.cancelJobsWithTag(self._tag)
                except (Py4JError, OSError):  # the JVM is gone, and so are the jobs
                    return
            pause_s = CANCEL_INTERVAL_S


def _read_stages(context: Any, label: str) -> Iterator[tuple[int, StageWork]]:
    """Yield the number and work of each stage that has begun; of the others it does not show whether they will run at
    all.
    """
    tracker, store = context.statusTracker(), context.statusStore()
    for job in tracker.getJobIdsForGroup(label):
        begun = tracker.getJobInfo(job)
        for number in begun.get().stageIds() if begun.isDefined() else ():
            if tracker.getStageInfo(number).isEmpty():
                continue  # forgotten: Spark keeps the last ones
            stage = store.lastStageAttempt(number)
            if stage.submissionTime().isDefined():
                yield (
                    number,
                    StageWork(
                        tasks=stage.numTasks(),
                        tasks_done=stage.numCompleteTasks(),
                        rows_read=stage.inputRecords(),
                        bytes_read=stage.inputBytes(),
                        rows_written=stage.outputRecords(),
                        bytes_written=stage.outputBytes(),
                        began_at_s=stage.submissionTime().get().getTime() / 1000.0,
                    ),
                )


def session_of(make: Callable[[], SparkSession]) -> SparkSession:
    """Make a session in which rows depend on tables and texts alone, whatever a deployment's or a user's settings are.

    Views, functions and variables of other sessions are not in it. Raises EngineError.
    """
    return _fixed_session(make)[0]


def _fixed_session(make: Callable[[], SparkSession]) -> tuple[SparkSession, dict[str, str]]:
    """Return a session as `session_of`, and the settings that rows would have depended on."""
    with spark_faults("open a Spark session"):
        session = make()
        conf, given = session.conf, session.conf.getAll
        own = [each for each in given if _SPARKS_OWN.fullmatch(each) and each not in RESULT_SETTINGS]
        own = [each for each in own if conf.isModifiable(each)]
        for name in (*own, *(each for each in given if each.startswith(DEFAULT_PROPERTIES))):
            conf.unset(name)
        for name, value in RESULT_SETTINGS.items():
            conf.set(name, value)
    others = [each for each, value in RESULT_SETTINGS.items() if given.get(each, value).lower() != value.lower()]
    return session, {each: given[each] for each in (*own, *others)}


@contextmanager
def settings_for(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give the session these settings within, and afterwards those that it had. Raises what Spark raises."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            session.conf.unset(name) if was is None else session.conf.set(name, was)


_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"


def without_rules(session: SparkSession, rules: Iterable[str]) -> AbstractContextManager[None]:
    """Have the optimizer do without these rules within, besides those that the session excludes."""
    excluded = session.conf.get(_EXCLUDED_RULES, None) or ""
    named = [f"org.apache.spark.sql.catalyst.optimizer.{each}" for each in rules]
    return settings_for(session, {_EXCLUDED_RULES: ",".join([each for each in (excluded, *named) if each])})


def arrow_batches(frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
    """Yield the frame's rows in tables of up to `rows_max` rows, at least one table. Raises as Engine.batches."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    with spark_faults("open the rows"):
        schema = A.to_arrow_schema(frame.schema)
        # What toArrow collects, but not all at once.
        raw = frame._jdf.toArrowBatchRdd().toJavaRDD()
        context = frame.sparkSession.sparkContext
        encoded: Iterator[bytes] = iter(RDD(raw, context, NoOpSerializer()).toLocalIterator())
    empty = True
    while (batch := _next(encoded)) is not None:
        table = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(batch), schema)])
        for start in range(0, len(table), rows_max):
            empty = False
            yield table.slice(start, rows_max)
    if empty:
        yield schema.empty_table()


def _next(encoded: Iterator[bytes]) -> bytes | None:
    with spark_faults("read the rows"):
        return next(encoded, None)


_OLD_POOLS = ("Tenured", "Old")
"""In the names that Java's collectors give the pool in which objects are that live long."""


def heap_share_of(context: SparkContext) -> float:
    """Return the share of the space for objects that live long that was in use after the last full collection; 0: there
    was none.
    """
    with spark_faults("see how full the heap is"):
        pool = _old_pool(context._jvm)
        usage = None if pool is None else pool.getCollectionUsage()
        return 0.0 if usage is None or usage.getMax() <= 0 else usage.getUsed() / usage.getMax()


@lru_cache(maxsize=1)
def _old_pool(jvm: Any) -> Any:
    """Return the JVM's pool of memory for objects that live long, or None; a process has one JVM at a time."""
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    found = (pools.get(number) for number in range(pools.size()))
    return next((each for each in found if any(name in str(each.getName()) for name in _OLD_POOLS)), None)
