from __future__ import annotations

from dataclasses import asdict, replace

from iscp.cluster.metering import NodeCounts, NodeReadings
from iscp.model.metrics import declared_metrics as metrics
from iscp.ports.engine import HeapSize
from iscp.schedule.executor import Counters

COUNTERS = Counters(submitted=9, running=2, waiting=3, completed=4, failed=1)
COUNTS = NodeCounts([lambda: asdict(COUNTERS), lambda: {"quarantined": 6}])
READINGS = NodeReadings(
    COUNTS,
    slots=2,
    heap=lambda: HeapSize(10, 100),
    memory_bytes=lambda: 50,
    lease_s=lambda: 7.5,
    probes=lambda: 11,
    watch_events=lambda: 12,
)


def test_the_counts_of_all_parts_are_what_status_shows() -> None:
    assert COUNTS() == {**asdict(COUNTERS), "quarantined": 6}


def test_each_count_is_read_as_its_metric() -> None:
    found = {(each.metric.name, *each.attributes.values()): each.value for each in READINGS.read()}
    assert found == {
        (metrics.NODE_SUBMITTED.name,): 9,
        (metrics.NODE_RUNNING.name,): 2,
        (metrics.NODE_WAITING.name,): 3,
        (metrics.NODE_HANGING.name,): 0,
        (metrics.NODE_ENDED.name, "completed"): 4,
        (metrics.NODE_ENDED.name, "failed"): 1,
        (metrics.NODE_ENDED.name, "timeout"): 0,
        (metrics.NODE_ENDED.name, "canceled"): 0,
        (metrics.NODE_ENDED.name, "rejected"): 0,
        (metrics.NODE_QUARANTINED.name,): 6,
        (metrics.NODE_SLOTS.name,): 2,
        (metrics.NODE_HEAP_USED.name,): 10,
        (metrics.NODE_HEAP_LIMIT.name,): 100,
        (metrics.NODE_MEMORY.name,): 50,
        (metrics.NODE_LEASE_VALID.name,): 7.5,
        (metrics.NODE_PROBES.name,): 11,
        (metrics.NODE_WATCH_EVENTS.name,): 12,
    }


def test_a_heap_that_cannot_be_read_is_left_out() -> None:
    found = {each.metric for each in replace(READINGS, heap=lambda: None).read()}
    assert not found & {metrics.NODE_HEAP_USED, metrics.NODE_HEAP_LIMIT}
