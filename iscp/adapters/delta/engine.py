"""Spark as the runner uses it (port Engine): a pool of sessions, and job groups to cancel by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iscp.adapters.delta.faults import spark_faults, spent_in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSIONS_KEPT_MAX = 16
"""Idle sessions kept for reuse: each holds a catalog and code caches of its own."""


class SparkEngine:
    """One JVM's sessions. `new_session` makes a session that shares nothing but the context with the others."""

    def __init__(self, root: SparkSession, new_session: Callable[[], SparkSession]) -> None:
        self._root = root
        self._new_session = new_session
        self._idle: list[SparkSession] = []
        self._lock = threading.Lock()

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is None:
            with spark_faults("open a Spark session"):
                session = self._new_session()
        try:
            yield session
        finally:
            with self._lock:
                if len(self._idle) < SESSIONS_KEPT_MAX:
                    self._idle.append(session)

    def label(self, label: str) -> None:
        with spark_faults("name the job group"):
            self._root.sparkContext.setJobGroup(label, label, interruptOnCancel=False)

    def spent_s(self) -> float:
        return spent_in_spark.seconds

    def cancel(self, label: str) -> None:
        # Not cancelJobGroup: that lets an iteration which is between two jobs go on to its commit.
        with spark_faults("cancel the job group"):
            self._root.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(label)
