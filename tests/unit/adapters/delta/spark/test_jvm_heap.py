from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JNetworkError

from iscp.adapters.delta.spark.jvm_heap import READ_S, JvmHeap
from iscp.ports.engine import HeapSize
from tests.fakes.waiting import until


class FakeUsage:
    """What a JVM says of its heap, once it answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.questions = 0
        self.ended = False

    def getUsed(self) -> int:  # noqa: N802  (Java's name)
        self.questions += 1
        assert self.answers.wait(30.0)
        if self.ended:
            raise Py4JNetworkError("the JVM has ended")
        return 10

    def getMax(self) -> int:  # noqa: N802
        return 100


def root(usage: FakeUsage) -> Any:
    bean = SimpleNamespace(getHeapMemoryUsage=lambda: usage)
    management = SimpleNamespace(ManagementFactory=SimpleNamespace(getMemoryMXBean=lambda: bean))
    java = SimpleNamespace(lang=SimpleNamespace(management=management))
    return SimpleNamespace(sparkContext=SimpleNamespace(_jvm=SimpleNamespace(java=java)))


def test_the_size_is_the_jvms() -> None:
    usage = FakeUsage()
    usage.answers.set()
    heap = JvmHeap(root(usage))
    assert heap.size() == HeapSize(10, 100)
    heap.close()


def test_a_jvm_that_hangs_is_waited_for_briefly_and_questioned_once() -> None:
    usage = FakeUsage()
    heap, began_s = JvmHeap(root(usage)), time.monotonic()
    assert heap.size() is None
    assert heap.size() is None
    assert usage.questions == 1
    assert time.monotonic() - began_s >= 2 * READ_S - 0.1
    usage.answers.set()
    until(lambda: heap.size() == HeapSize(10, 100))
    heap.close()


def test_a_jvm_that_has_ended_has_no_size() -> None:
    usage = FakeUsage()
    usage.ended = True
    usage.answers.set()
    heap = JvmHeap(root(usage))
    assert heap.size() is None
    heap.close()
