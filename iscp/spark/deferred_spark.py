"""Spark that starts when something first needs it, and the engine of it: work that never does starts no JVM. The port
SparkAccess, on which all else is composed, is here too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from iscp.model.values.errors import EngineError
from iscp.model.values.progress import StageWork
from iscp.ports.engine import investing, note_spark
from iscp.storage.delta_errors import spent
from iscp.system.threads import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from iscp.spark.spark_engine import SparkEngine


CANCELED_MAX = 1000
"""Labels that were canceled before Spark started and are remembered until it does; as many as Spark remembers."""


class LateSession:
    """The stand-in of a session, which is made when one of its attributes is first read. Safe for threads."""

    def __init__(self, make: Callable[[], SparkSession], before_use: Callable[[], object]) -> None:
        """`before_use` is called each time that an attribute is read, on the thread that reads it."""
        self._late_make = make
        self._late_before_use = before_use
        self._late_lock = threading.Lock()
        self.late_made: SparkSession | None = None
        """The session, if there is one by now."""

    def late_session(self) -> SparkSession:
        """Return the session, made now at the latest. Raises what making it raises."""
        with self._late_lock:
            if self.late_made is None:
                self.late_made = self._late_make()
            return self.late_made

    def as_session(self) -> SparkSession:
        """Return this, which is used as a session is."""
        return cast("SparkSession", self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who only looks what this is needs no Spark
            raise AttributeError(name)
        self._late_before_use()
        return getattr(self.late_session(), name)


class DeferredSpark:
    """Spark that `start` starts when a session is first used, and once at most (port SparkAccess). Safe for threads.

    An error of `start` is that of whoever needs Spark first, and again of all who need it later. Functions of pyspark
    that take no session, as those that make columns, work once a session was used.
    """

    def __init__(self, start: Callable[[], SparkAccess], *, local: bool) -> None:
        """`local` says of Spark before the start what Spark says of itself afterwards."""
        self.local = local
        self.before_use: Callable[[SparkAccess], object] = lambda spark: None
        """Called on a thread each time that it is about to use Spark, which has started by then."""
        self.spark: SparkAccess | None = None
        """Spark, once it has started."""
        self._start = start
        self._first: list[Callable[[SparkAccess], None]] = []
        self._starting = threading.Lock()
        self._state = threading.Lock()  # of the start and the end: whichever comes second ends what was started
        self._fault: Exception | None = None
        self._ended = False
        self._root = LateSession(lambda: self.use().root, self.use)

    @property
    def started(self) -> bool:
        """Return whether Spark was started."""
        return self.spark is not None

    @property
    def root(self) -> SparkSession:
        return self._root.as_session()

    def new_session(self) -> SparkSession:
        return LateSession(lambda: self.use().new_session(), self.use).as_session()

    def when_started(self, action: Callable[[SparkAccess], None]) -> None:
        """Have `action` called once Spark has started, before anybody else uses it.

        What it raises is raised as if the start had; Spark is killed then.
        """
        self._first.append(action)

    def use(self) -> SparkAccess:
        """Return Spark for the use of the calling thread, started now at the latest; noted for whom it works.

        Raises EngineError if it was ended before, and what starting it raised.
        """
        note_spark()
        spark = self.spark or self._start_once()
        self.before_use(spark)
        return spark

    def alive(self) -> bool:
        """Return whether Spark is as it is to be, which it also is as long as nothing has needed it."""
        return self._fault is None if self.spark is None else self.spark.alive()

    @property
    def given_up(self) -> bool:
        """Return whether nothing starts Spark from now on, and who starts it is to end that."""
        return self._ended

    def give_up(self) -> None:
        """Start Spark no more, and end a start that is under way; what has started goes on.

        From any thread, or a handler of a signal.
        """
        self._ended = True  # no lock: the thread that a signal interrupts may have it

    def kill(self) -> None:
        """Kill Spark, also if it is about to start. Nothing starts it from now on."""
        if (spark := self._end()) is not None:
            spark.kill()

    def stop(self) -> None:
        """Stop Spark in order; kill it if it is about to start. Nothing starts it from now on."""
        if (spark := self._end()) is not None:
            spark.stop()

    def _start_once(self) -> SparkAccess:
        with investing(SystemClock()), self._starting:
            if self.spark is not None:
                return self.spark
            if self._fault is not None:
                raise self._fault
            if self._ended:
                raise EngineError("Spark is needed, and was stopped before it had started")
            try:
                spark = self._start_tested()
            except Exception as fault:
                self._fault = fault
                raise
            with self._state:
                self.spark = spark
                ended = self._ended
            if ended:
                spark.kill()
                raise EngineError("Spark was stopped while it started")
            note_spark(started=True)
            return spark

    def _start_tested(self) -> SparkAccess:
        spark = self._start()
        try:
            for action in self._first:
                action(spark)
        except BaseException:
            spark.kill()
            raise
        return spark

    def _end(self) -> SparkAccess | None:
        with self._state:
            self._ended = True
            return self.spark


class _Awaited(threading.local):
    """The label and the session that a thread is to have once it uses Spark."""

    label: str | None = None
    session: LateSession | None = None


class DeferredEngine:
    """The engine of Spark that may not have started. There is one for each DeferredSpark.

    What the runner has said of its threads before the start is made up for when a thread first uses Spark: the group of
    its jobs, its session, and which groups were canceled.
    """

    def __init__(self, spark: DeferredSpark) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._engine: SparkEngine | None = None
        self._canceled: deque[str] = deque(maxlen=CANCELED_MAX)
        self._awaited = _Awaited()
        spark.before_use = self._make_up

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        before, self._awaited.session = self._awaited.session, None  # what is within comes first
        try:
            with self._late_session() if self._engine is None else self._lend_session() as session:
                yield session
        finally:
            self._awaited.session = before

    def label(self, label: str) -> None:
        if self._engine is None:
            self._awaited.label = label
        else:
            self._awaited.label = None
            self._engine.label(label)

    def spent_s(self) -> tuple[float, float]:
        return spent.seconds, spent.direct_s

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        self._spark.use()
        return self._started().batches(frame, rows_max)

    def stages(self, label: str) -> dict[int, StageWork]:
        return {} if self._engine is None else self._engine.stages(label)

    def cancel(self, label: str) -> None:
        with self._lock:
            if self._engine is None:
                self._canceled.append(label)
                return
        self._engine.cancel(label)

    @contextmanager
    def _late_session(self) -> Iterator[SparkSession]:
        self._awaited.session = late = LateSession(lambda: self._started().borrow(), self._spark.use)
        try:
            yield late.as_session()
        except Exception:
            if self._engine is None:
                raise
            from iscp.spark.spark_errors import translating

            with translating("the work by Spark"):
                raise
        finally:
            if late.late_made is not None:
                self._started().give_back(late.late_made)

    @contextmanager
    def _lend_session(self) -> Iterator[SparkSession]:
        """Yield a session of the engine, whose uses are noted too."""
        with self._started().session() as session:
            yield LateSession(lambda: session, self._spark.use).as_session()

    def _make_up(self, spark: SparkAccess) -> None:
        """Do what this thread has to do before it uses Spark."""
        engine, awaited = self._engine or self._make_engine(spark), self._awaited
        if awaited.label is not None:
            engine.label(awaited.label)
            awaited.label = None
        if awaited.session is not None:
            engine.activate(awaited.session.late_session())
            awaited.session = None

    def _make_engine(self, spark: SparkAccess) -> SparkEngine:
        from iscp.spark.spark_engine import SparkEngine

        with self._lock:
            if self._engine is None:
                engine = SparkEngine(spark.root, spark.new_session)
                for label in self._canceled:
                    engine.cancel(label)
                self._engine = engine
            return self._engine

    def _started(self) -> SparkEngine:
        assert self._engine is not None, "a session was used"
        return self._engine


class SparkAccess(Protocol):
    """Access to Spark with Delta, however Spark came to be there: its root session, and further ones in the same
    SparkContext.
    """

    @property
    def root(self) -> SparkSession: ...

    @property
    def local(self) -> bool:
        """Return whether tasks run within the JVM, and not on executors elsewhere."""

    def new_session(self) -> SparkSession:
        """Return a session with SQL settings and temporary views of its own, in the same SparkContext."""

    def alive(self) -> bool:
        """Return whether there is a JVM, unless none was needed yet, and a cluster's manager has not ended its
        application.
        """

    def kill(self) -> None:
        """End the JVM by force: a deadline has passed, and nothing may be written any more."""

    def stop(self) -> None:
        """Stop Spark in order."""
