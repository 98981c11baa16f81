"""What a node builds is recorded, in a trace of its own, with what it is and how large it was."""

from __future__ import annotations

import pytest

from iscp.core.build.build_task import BuildPlan, RangeBatch, StagingBatch, StagingTask
from iscp.core.values.errors import StorageError
from iscp.core.values.progress import TableSize
from iscp.ports.system import Guard
from iscp.ports.tracing import within_trace
from iscp.runtime.builds.traced_ranges import TracedRangeBuilder
from tests.fakes.guards import OpenGuard
from tests.fakes.tracing import RecordingTracer, traceparent

PLANS = tuple(BuildPlan(f"j{n}", "acme", "t-1", f"copy{n}", "/lake/t", 7, "{}", 0, 2) for n in range(2))


class Builder:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.canceled: list[Guard] = []

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        if self.error is not None:
            raise self.error
        return TableSize(100, 2_000)

    def cancel(self, guard: Guard) -> None:
        self.canceled.append(guard)


def test_a_range_is_a_trace_of_its_own_with_what_was_read() -> None:
    tracer, guard = RecordingTracer(), OpenGuard()
    traced = TracedRangeBuilder(Builder(), tracer)
    with within_trace(traceparent(3)):
        assert traced.build(RangeBatch(5, PLANS), guard) == TableSize(100, 2_000)
    span = tracer.one("iscp.build.range")
    assert (span.parent, span.ended) == ("", True)
    assert span.attributes == {
        "iscp.table": "/lake/t",
        "iscp.version": 7,
        "iscp.range": 5,
        "iscp.account": "acme",
        "iscp.job": "copy0",
        "iscp.jobs": 2,
        "iscp.rows": 100,
        "iscp.bytes": 2_000,
    }


def test_commits_that_are_retained_are_another_span() -> None:
    tracer = RecordingTracer()
    batch = StagingBatch(StagingTask("s", "t-1", "/lake/t", 3, 9, "n1"), PLANS)
    TracedRangeBuilder(Builder(), tracer).build(batch, OpenGuard())
    attributes = tracer.one("iscp.build.retain").attributes
    assert (attributes["iscp.version.from"], attributes["iscp.version"], attributes["iscp.jobs"]) == (3, 9, 2)


def test_what_fails_is_raised_and_a_cancel_is_passed_on() -> None:
    builder, tracer, guard = Builder(StorageError("it is away")), RecordingTracer(), OpenGuard()
    traced = TracedRangeBuilder(builder, tracer)
    with pytest.raises(StorageError):
        traced.build(RangeBatch(1, PLANS), guard)
    assert tracer.one("iscp.build.range").ended
    traced.cancel(guard)
    assert builder.canceled == [guard]
