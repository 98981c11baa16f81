"""Spark that starts when a session is first opened, which a node of small tables may never do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from iscp.adapters.delta.spark.session import STOP_TIMEOUT_S, SparkRuntime
from iscp.core.errors import EngineError, IscpError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class Launch(Protocol):
    """As SparkLaunch."""

    def start(self) -> SparkRuntime: ...

    def release(self) -> None: ...


class SparkOnDemand:
    """Used by many threads: the first to need Spark starts it, and others wait for that."""

    def __init__(self, launch: Launch, on_started: Callable[[SparkSession], None]) -> None:
        """`on_started` is called before anybody gets a session; what it raises ends Spark for good."""
        self._launch = launch
        self._on_started = on_started
        self._runtime: SparkRuntime | None = None
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        """Raises EngineError where Spark does not start, or is refused. A later call tries again, or does nothing."""
        self._ensure_started()

    @property
    def running(self) -> bool:
        return self._runtime is not None

    @property
    def root(self) -> SparkSession:
        return self._ensure_started().root

    def new_session(self) -> SparkSession:
        """As SparkRuntime.new_session."""
        return self._ensure_started().new_session()

    def alive(self) -> bool:
        """Whether work can go on: Spark runs, or can still be started."""
        return not self._ended and (self._runtime is None or self._runtime.alive())

    def kill(self) -> None:
        """As SparkRuntime.kill. Spark does not start again."""
        self._ended = True  # without the lock: a start that hangs would hold it
        if self._runtime is not None:
            self._runtime.kill()

    def stop(self) -> None:
        """As SparkRuntime.stop."""
        self._ended = True
        if self._lock.acquire(timeout=STOP_TIMEOUT_S):
            try:
                runtime, self._runtime = self._runtime, None
                runtime.stop() if runtime is not None else self._launch.release()
            finally:
                self._lock.release()

    def _ensure_started(self) -> SparkRuntime:
        if self._runtime is not None:
            return self._runtime
        with self._lock:
            if self._ended:
                raise EngineError("Spark has ended")
            if self._runtime is None:
                self._runtime = self._start()
            return self._runtime

    def _start(self) -> SparkRuntime:
        runtime = self._launch.start()
        try:
            self._on_started(runtime.root)
        except IscpError as error:
            log.critical("spark.refused", extra={"error": str(error)})
            self._ended = True
            runtime.kill()
            raise EngineError(f"Spark cannot be used: {error}") from error
        if self._ended:
            runtime.kill()
            raise EngineError("Spark has ended")
        return runtime
