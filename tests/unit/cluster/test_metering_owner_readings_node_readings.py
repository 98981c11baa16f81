from __future__ import annotations

from dataclasses import asdict, replace

from iscp.cluster.metering import NodeCounts, NodeReadings
from iscp.model.metrics import node_metrics as metrics
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
        (metrics.SUBMITTED.name,): 9,
        (metrics.RUNNING.name,): 2,
        (metrics.WAITING.name,): 3,
        (metrics.HANGING.name,): 0,
        (metrics.ENDED.name, "completed"): 4,
        (metrics.ENDED.name, "failed"): 1,
        (metrics.ENDED.name, "timeout"): 0,
        (metrics.ENDED.name, "canceled"): 0,
        (metrics.ENDED.name, "rejected"): 0,
        (metrics.QUARANTINED.name,): 6,
        (metrics.SLOTS.name,): 2,
        (metrics.HEAP_USED.name,): 10,
        (metrics.HEAP_LIMIT.name,): 100,
        (metrics.MEMORY.name,): 50,
        (metrics.LEASE_VALID.name,): 7.5,
        (metrics.PROBES.name,): 11,
        (metrics.WATCH_EVENTS.name,): 12,
    }


def test_a_heap_that_cannot_be_read_is_left_out() -> None:
    found = {each.metric for each in replace(READINGS, heap=lambda: None).read()}
    assert not found & {metrics.HEAP_USED, metrics.HEAP_LIMIT}
