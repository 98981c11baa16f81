"""Starts Spark with Delta in a JVM of its own, quickly, and ends it for sure; and notices that Spark has given up its
context. The life of the JVM and of pyspark's one SparkContext is decided here; nothing here knows of tables, jobs or
iterations.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from iscp.model.values.errors import ConfigurationError, EngineError
from iscp.spark.java import delta_jars, find_java, log_store_jar, s3_jars, spark_jars, trust_options
from iscp.spark.jvm_launch import (
    ClassArchive,
    Gateway,
    SparkSettings,
    default_cache_dir,
    default_conf,
    java_command,
    java_environ,
    properties_file,
    write_properties,
)
from iscp.system.small_files import private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from iscp.spark.java import Java

log = logging.getLogger(__name__)


# --- the watch of the context -----------------------------------------------------------------------------------------

CONTEXT_LOOK_S = 1.0
"""Pause between two checks whether Spark still has its context."""


class ContextWatch:
    """Notices that Spark has given up its context while the JVM goes on. `ended` is set when the context is gone.

    A cluster's manager may do that: a master that removes the application, executors that fail over and over. No query
    succeeds from then on. The context is probed on a thread of its own, as the JVM may take its time to answer. The
    thread ends with the JVM too.
    """

    def __init__(self, context: SparkContext) -> None:
        self.ended = threading.Event()
        self._closed = threading.Event()
        self._context = context._jsc.sc()
        threading.Thread(target=self._look, name="iscp-spark-context", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(CONTEXT_LOOK_S):
            try:
                stopped = bool(self._context.isStopped())
            except (Py4JError, OSError):  # the JVM is gone, which is seen otherwise
                return
            if stopped:
                self.ended.set()
                return


# --- the runtime ------------------------------------------------------------------------------------------------------

__all__ = ["SparkRuntime", "SparkSettings", "class_archive", "default_cache_dir"]

STOP_TIMEOUT_S = 15.0
"""How long the JVM may take to stop in order; then it is killed."""


class OtherSparkError(EngineError):
    """A process has one SparkContext at a time, and somebody else started the one that is there: it stays as it is."""


class SparkRuntime:
    """A JVM with one SparkContext and its root session; there is one in a process at a time."""

    def __init__(self, gateway: Gateway, root: SparkSession, hold: TextIO, *, local: bool) -> None:
        self._gateway = gateway
        self._hold = hold
        self._watch = None if local else ContextWatch(root.sparkContext)
        self.root = root
        self.local = local
        """True if tasks run within the JVM, and not on executors elsewhere."""

    @classmethod
    def start(cls, settings: SparkSettings, given_up: Callable[[], bool] = lambda: False) -> SparkRuntime:
        """Starts JVM and session. Raises ConfigurationError, Unavailable (no jars) or EngineError.

        Once it was `given_up`, which may be at any time, the JVM is killed, and Canceled raised.
        """
        return cls._start(settings, None, given_up)

    @classmethod
    def start_training(cls, settings: SparkSettings, archive: Path) -> SparkRuntime:
        """Start as `start` does, but the JVM notes the classes it loads and writes them to `archive` when stopped."""
        return cls._start(settings, archive, lambda: False)

    @classmethod
    def _start(cls, settings: SparkSettings, training: Path | None, given_up: Callable[[], bool]) -> SparkRuntime:
        _refuse_other_spark()
        hold = _claim(settings)
        try:
            environ = dict(os.environ)
            java = find_java(environ)
            jars = _own_jars(settings.cache_dir, java, environ)
            archive = ClassArchive(settings.cache_dir, java, [*spark_jars(), *jars])
            if settings.s3.used:
                jars += s3_jars(settings.cache_dir, java, environ)  # at the end: the archive is of what comes before
            class_path = [*spark_jars(), *jars]
            log.info("spark.starting", extra={"master": settings.master})
            options = archive.options() if training is None else archive.training_options(training)
            options += trust_options(settings.cache_dir, environ, settings.scratch_dir)
            command = java_command(java.executable, settings, class_path, options, environ)
            write_properties(settings)
            try:
                gateway = Gateway.launch(command, java_environ(settings, environ), settings.scratch_dir, given_up)
            finally:
                properties_file(settings).unlink()  # it has been read, and may hold secrets
            try:
                with gateway.kill_if(given_up):
                    root = _connect(gateway, settings, jars)
            except OtherSparkError:
                gateway.kill()
                raise
            except BaseException:
                gateway.kill()
                _forget()
                raise
        except BaseException:
            hold.close()
            raise
        log.info("spark.started", extra={"pid": gateway.pid, "java": java.build, "master": settings.master})
        return cls(gateway, root, hold, local=settings.local)

    @property
    def pid(self) -> int:
        """Return the JVM's process id."""
        return self._gateway.pid

    def new_session(self) -> SparkSession:
        """Return a session with SQL settings and temporary views of its own, in the same SparkContext."""
        return self.root.newSession()

    def alive(self) -> bool:
        """Return whether there is a JVM, and a cluster's manager has not ended its application."""
        return self._gateway.alive() and (self._watch is None or not self._watch.ended.is_set())

    def kill(self) -> None:
        """Send SIGKILL to the JVM: a deadline has passed, and nothing may be written any more."""
        _hang_up()
        self._gateway.kill()
        self._end("spark.killed")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops in order: Spark gives up its running jobs. The JVM is killed after `timeout_s`."""
        _hang_up()
        self._gateway.close(timeout_s)
        self._end("spark.stopped")

    def _end(self, event: str) -> None:
        if self._watch is not None:
            self._watch.close()
        _forget()
        self._hold.close()
        log.info(event, extra={"pid": self.pid})


def class_archive(cache_dir: Path, environ: Mapping[str, str]) -> ClassArchive:
    """Return the archive that `SparkRuntime.start` uses; resolve the jars if they are not there."""
    java = find_java(environ)
    return ClassArchive(cache_dir, java, [*spark_jars(), *_own_jars(cache_dir, java, environ)])


def _own_jars(cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    log_store = log_store_jar()
    return [*delta_jars(cache_dir, java, environ), *([log_store] if log_store else [])]


def _claim(settings: SparkSettings) -> TextIO:
    """Takes the work directory for this runtime, and empties what an earlier one left there."""
    try:
        private_directory(settings.work_dir)
        hold = (settings.work_dir / "lock").open("w")
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or settings.work_dir} cannot be written: {error.strerror or error}",
            about="data_dir",
            remedy="Name a directory that the node may write to",
        ) from error
    try:
        # The kernel frees it when the process ends, however that is; waiting would hide a wrong configuration.
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hold.close()
        raise ConfigurationError(
            f"{settings.work_dir} is in use by another Spark", remedy="Give each node a data_dir of its own"
        ) from None
    shutil.rmtree(settings.scratch_dir, ignore_errors=True)
    settings.scratch_dir.mkdir()
    return hold


def _connect(gateway: Gateway, settings: SparkSettings, jars: Sequence[Path]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _refuse_other_spark()  # which may have started meanwhile
    with _environment(PYSPARK_GATEWAY_PORT=str(gateway.address.port), PYSPARK_GATEWAY_SECRET=gateway.address.secret):
        link = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        conf = SparkConf(loadDefaults=True, _jvm=link.jvm)
        for name, value in default_conf(settings).items():
            conf.setIfMissing(name, value)
        with _own_interrupt():
            context = SparkContext(gateway=link, conf=conf)
        if settings.local:
            context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
        else:
            for jar in jars:  # beside those that `spark.jars` names: executors fetch them from this JVM
                context._jsc.sc().addJar(str(jar))
        return SparkSession(context)
    except Py4JError as fault:
        if not settings.local and "stopped SparkContext" in str(fault):
            raise EngineError(
                f"the cluster at {settings.master} took no application of this node; the log has what Spark said",
                remedy="Check spark.master, and that the cluster reaches this node (spark.driver.host)",
            ) from fault
        raise EngineError(f"Spark did not start: {fault}") from fault


def _refuse_other_spark() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise OtherSparkError(
            "there is a SparkContext in this process already", remedy="Hand its session over: iscp.local(spark)"
        )


def _hang_up() -> None:
    """Keeps py4j from notifying a JVM that is going which objects it may free."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        SparkContext._gateway._gateway_client.is_connected = False


def _forget() -> None:
    """Takes the JVM that is gone out of pyspark's globals, so that another can be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    session: Any = SparkSession
    # pyspark's own lock: it creates contexts under it, in any thread.
    with context._lock:
        active = context._active_spark_context
        if active is not None:
            active._jsc = None
            if active._accumulatorServer is not None:
                active._accumulatorServer.shutdown()
        if context._gateway is not None:
            context._gateway.shutdown_callback_server()
            context._gateway._gateway_client.close()
        context._active_spark_context = context._gateway = context._jvm = None
        session._instantiatedSession = session._activeSession = None


@contextlib.contextmanager
def _environment(**names: str) -> Iterator[None]:
    """Sets variables of this process for as long as pyspark reads them."""
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keeps this process's own answer to Ctrl-C: SparkContext puts its own in place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
