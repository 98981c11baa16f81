"""The SparkSession that a user has made, as iscp's access to Spark: nothing of the user's is changed by it.

iscp works in sessions of its own in the same SparkContext. Decides nothing of what such a session must have
(`session_needs`), and reads what it says of itself.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp.model.settings.session_needs import (
    DEFAULT_FILES,
    JARS,
    SESSION_NEEDS,
    JarState,
    SessionFacts,
    require_session,
    with_jar,
)
from iscp.model.values.errors import ConfigurationError, EngineError, InvalidRequest
from iscp.model.values.untrusted_values import DISTRIBUTION
from iscp.spark.java import log_store_jar
from iscp.spark.jvm_launch import LOG_STORE, session_conf, shuffle_partitions
from iscp.system.child_process import Before, refuse_fork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

KILLED_JOBS_MAX = 100
"""Newest jobs of Spark among which a kill finds the groups that iscp has given; those of older ones go on."""

_OWN_GROUPS = "iscp-"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_HADOOP = "spark.hadoop."
_NOT_FOUND = ("ClassNotFoundException", "NoClassDefFoundError")


def spark_jar() -> str:
    """Return the path of the jar that a session needs on its class path, on that of its executors too.

    Raises ConfigurationError where this installation has none.
    """
    jar = log_store_jar()
    if jar is None:
        raise ConfigurationError(
            "this installation has no iscp-logstore.jar", remedy=f"Install the wheel {DISTRIBUTION}, or run jvm/build"
        )
    return str(jar)


def spark_conf() -> dict[str, str]:
    """Return the settings that make a session fit for iscp: `SparkSession.builder.config(map=iscp.spark_conf())`.

    They name iscp's jar, Delta's extension and catalog, and the log stores by which commits exclude each other. Delta's
    own jars come by delta-spark's `configure_spark_with_delta_pip`, or from the platform. Raises as `spark_jar`.
    """
    return {JARS: spark_jar(), **SESSION_NEEDS}


class GivenSpark:
    """A user's SparkSession behind SparkAccess: its JVM is never ended from here."""

    def __init__(self, spark: SparkSession) -> None:
        """Raise InvalidRequest (`spark`) with all that the session lacks, and with the lines that add it."""
        refuse_fork("spark", Before.SPARK)
        _require_classic(spark)
        self._spark = spark
        self._ended = threading.Event()
        require_session(_facts(spark), spark_jar())
        self.local = str(spark.sparkContext.master).partition("[")[0] == "local"
        if not self.local:
            self._require_jar_of_executors()
        self.root = self.new_session()

    def new_session(self) -> SparkSession:
        """Return a session of iscp's own, with the settings of the SparkContext and, where that has none, of a node."""
        if self._ended.is_set():
            raise EngineError("the work on this SparkSession has been ended")
        with _keeping_frames():
            session = self._spark.newSession()
        wanted = session_conf()
        if self.local:
            wanted["spark.sql.shuffle.partitions"] = str(shuffle_partitions())
        given = session.conf.getAll
        for name, value in wanted.items():
            if name not in given:
                session.conf.set(name, value)
        return session

    @contextmanager
    def leaving_unchanged(self) -> Iterator[None]:
        """Leave the calling thread's job group, tags and other local properties, and its active session, as they were.

        Work that is done within, by this thread or for it, may change them.
        """
        from pyspark.sql import SparkSession

        python: Any = SparkSession
        context = self._spark.sparkContext._jsc.sc()
        sessions = _classic_sessions(self._spark)
        properties, active, active_here = (
            context.getLocalProperties().clone(),
            sessions.getActiveSession(),
            python._activeSession,
        )
        try:
            with _keeping_frames():
                yield
        finally:
            python._activeSession = active_here
            with suppress(*_java_faults()):  # the JVM is gone, and so are its threads
                context.setLocalProperties(properties)
                if active.isDefined():
                    sessions.setActiveSession(active.get())
                else:
                    sessions.clearActiveSession()

    def alive(self) -> bool:
        """Return whether the user's SparkContext runs, and iscp's work on it has not been ended."""
        return not self._ended.is_set() and _runs(self._spark)

    def kill(self) -> None:
        """Cancel iscp's jobs by their groups, with those that would follow; the JVM is the user's, and goes on.

        A commit that needs no further job may go through: the target decides then who was first.
        """
        self._ended.set()
        with suppress(*_java_faults()):
            context = self._spark.sparkContext._jsc.sc()
            for group in _own_groups(context):
                context.cancelJobGroupAndFutureJobs(group)

    def stop(self) -> None:
        """Leave Spark running, as it was before."""
        self._ended.set()

    def _require_jar_of_executors(self) -> None:
        """Have an executor load a class of iscp: settings do not show what a platform has put on its machines."""
        from py4j.protocol import Py4JJavaError

        jvm: Any = self._spark._jvm
        classes = jvm.java.util.ArrayList()
        classes.add(_load(jvm, LOG_STORE))
        with self.leaving_unchanged():
            try:
                self._spark.sparkContext.setJobGroup(f"{_OWN_GROUPS}jar", "iscp: do executors have its jar?")
                self._spark.sparkContext._jsc.parallelize(classes, 1).count()
            except Py4JJavaError as fault:
                if "ClassNotFoundException" not in str(fault):
                    raise EngineError(f"an executor of the session ran no task: {fault.java_exception}") from fault
                # spark-submit adds the jars of packages to the property; the session's own JARS replace them all.
                said = jvm.java.lang.System.getProperty(JARS) or self._spark.sparkContext.getConf().get(JARS) or ""
                known = said.replace("file:///", "/")
                raise InvalidRequest(
                    "has executors without iscp's jar, or without Delta's, which it needs",
                    field="spark",
                    remedy="Stop the session, and make one with this line before .getOrCreate(), which gives them to "
                    f'executors too:\n  .config("{JARS}", "{with_jar(known, spark_jar())}")',
                ) from fault


def _require_classic(spark: object) -> None:
    """Raise InvalidRequest for what is no session, or one without a JVM, or a stopped one."""
    modules = {each.__module__ for each in type(spark).__mro__}
    if any(each.startswith("pyspark.sql.connect") for each in modules):
        raise InvalidRequest(
            "is a session of Spark Connect, which gives no way to the JVM: iscp reads Delta's logs and Spark's plans "
            "there",
            field="spark",
            remedy="Give a session of a SparkContext of this process (.master(…) instead of .remote(…)), or leave it "
            "out: iscp then starts a Spark of its own",
        )
    if "pyspark.sql.session" not in modules:
        raise InvalidRequest(
            f"is a {type(spark).__name__}", field="spark", remedy="Give a pyspark.sql.SparkSession, or leave it out"
        )
    if not _runs(spark):
        raise InvalidRequest(
            "has been stopped", field="spark", remedy="Make another by SparkSession.builder.getOrCreate()"
        )


def _runs(spark: Any) -> bool:
    context = spark.sparkContext._jsc  # None once Python has stopped it
    try:
        return context is not None and not context.sc().isStopped()
    except _java_faults():
        return False


def _facts(spark: SparkSession) -> SessionFacts:
    from py4j.clientserver import ClientServer
    from pyspark import __version__

    jvm: Any = spark._jvm
    with_delta = _load(jvm, "io.delta.package$") is not None
    gateway: Any = spark.sparkContext._gateway
    return SessionFacts(
        pyspark=__version__,
        spark=spark.version,
        delta=str(getattr(jvm, "io.delta.package$").__getattr__("MODULE$").VERSION()) if with_delta else "",
        jar=_jar_state(jvm),
        s3=_load(jvm, _S3A) is not None,
        pinned=isinstance(gateway, ClientServer),
        conf=_conf_of(spark),
    )


def _conf_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings that count, as they are in force: of the session, the context, or Hadoop."""
    java: Any = spark.sparkContext._jsc
    hadoop, context = java.hadoopConfiguration(), dict(spark.sparkContext.getConf().getAll())
    found: dict[str, str | None] = {}
    for name in (*SESSION_NEEDS, JARS, DEFAULT_FILES):
        if name.startswith(_HADOOP):
            found[name] = hadoop.get(name.removeprefix(_HADOOP))
        elif name.startswith("spark.sql."):
            found[name] = spark.conf.get(name, None)
        else:
            found[name] = context.get(name)
    return {name: value for name, value in found.items() if value is not None}


def _jar_state(jvm: Any) -> JarState:
    """Compare the jar of the JVM's classes with this installation's: a wheel and its jar belong together."""
    if (found := _load(jvm, LOG_STORE)) is None:
        return JarState.ABSENT
    digest = jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex
    source = found.getProtectionDomain().getCodeSource()
    if source is None:  # no class loader of Java's own has made it of a jar
        return JarState.OTHER
    there = source.getLocation().openStream()
    try:
        same = digest(there) == hashlib.sha256(Path(spark_jar()).read_bytes()).hexdigest()
    finally:
        there.close()
    return JarState.OURS if same else JarState.OTHER


def _load(jvm: Any, name: str) -> Any:
    """Return the class of this name, or None where the JVM has none, or does not find what it is made of beside it."""
    from py4j.protocol import Py4JJavaError

    try:
        return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as fault:
        if not str(fault.java_exception.getClass().getName()).endswith(_NOT_FOUND):
            raise
        return None


def _own_groups(context: Any) -> set[str]:
    jobs = context.statusStore().jobsList(None)
    groups = (jobs.apply(number).jobGroup() for number in range(min(jobs.size(), KILLED_JOBS_MAX)))
    found = {str(group.get()) for group in groups if group.isDefined()}
    return {group for group in found if group.startswith(_OWN_GROUPS)}


def _classic_sessions(spark: SparkSession) -> Any:
    # By its whole name: each part of a path is looked up by a call to the JVM.
    return getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")


@contextmanager
def _keeping_frames() -> Iterator[None]:
    """Keep `rdd.toDF()` in the user's session: each session that pyspark makes takes it over."""
    from pyspark import RDD

    rdd: Any = RDD
    before = rdd.toDF
    try:
        yield
    finally:
        rdd.toDF = before


def _java_faults() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError

    return (Py4JError, OSError)
