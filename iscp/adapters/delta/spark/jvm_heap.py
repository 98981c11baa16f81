"""Reads how much of its heap the JVM uses, without waiting for a JVM that hangs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.core.values.errors import IscpError
from iscp.ports.engine import HeapSize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_S = 1.0
"""Seconds that the JVM may take to say how much heap it uses; then that is not known, until it has answered."""


class JvmHeap:
    """Reads on a thread of its own, one question at a time: each of Python's threads has one in the JVM."""

    def __init__(self, root: SparkSession) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(1, "iscp-jvm-heap")
        self._pending: Future[HeapSize] | None = None

    def size(self) -> HeapSize | None:
        """Return the size, or None if the JVM does not answer in time, or has ended. One thread calls at a time."""
        pending = self._pending or self._thread.submit(self._read)
        self._pending = None if wait([pending], READ_S).done else pending
        if self._pending is not None:
            return None
        try:
            return pending.result()
        except IscpError:
            return None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> HeapSize:
        with spark_faults("read the size of the heap"):
            jvm: Any = self._root.sparkContext._jvm
            usage = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
            return HeapSize(int(usage.getUsed()), int(usage.getMax()))
