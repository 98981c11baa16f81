"""Read what a node counts of itself, for the owner's `status` and for whoever collects metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from iscp.core.metrics import node_metrics as metrics
from iscp.core.metrics.metric import MetricReading
from iscp.ports.engine import HeapSize


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """The counters of a node's parts, each of which has names of its own."""

    parts: Sequence[Callable[[], Mapping[str, int]]]

    def __call__(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in self.parts:
            found.update(part())
        return found


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """The readings of every node. Nothing is counted for them that is not counted anyway.

    `heap` is None where the JVM does not answer; `lease_s`: for how many seconds the node may still write.
    """

    counts: NodeCounts
    slots: int
    heap: Callable[[], HeapSize | None]
    memory_bytes: Callable[[], int]
    lease_s: Callable[[], float]
    probes: Callable[[], int]
    watch_events: Callable[[], int]

    def read(self) -> Iterator[MetricReading]:
        for name, count in self.counts().items():
            counted = metrics.COUNTERS[name]
            yield MetricReading(counted.metric, count, counted.attributes)
        yield MetricReading(metrics.SLOTS, self.slots)
        yield MetricReading(metrics.MEMORY, self.memory_bytes())
        yield MetricReading(metrics.LEASE_VALID, self.lease_s())
        yield MetricReading(metrics.PROBES, self.probes())
        yield MetricReading(metrics.WATCH_EVENTS, self.watch_events())
        if (heap := self.heap()) is not None:
            yield MetricReading(metrics.HEAP_USED, heap.used)
            yield MetricReading(metrics.HEAP_LIMIT, heap.limit)
