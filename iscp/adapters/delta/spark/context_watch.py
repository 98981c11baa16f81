"""Notices that Spark has given up its context while the JVM goes on.

A cluster's manager may do that: a master that removes the application, executors that fail over and over. No query
succeeds from then on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext

CONTEXT_LOOK_S = 1.0
"""Pause between two checks whether Spark still has its context."""


class ContextWatch:
    """Looks on a thread of its own, as the JVM may take its time to answer. `ended` is set when the context is gone.

    The thread ends with the JVM too.
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
