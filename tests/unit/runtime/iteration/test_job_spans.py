"""An iteration records its shared read and each job's part, and every commit is made within its job's span."""

from __future__ import annotations

import pytest

from iscp.core.values.errors import EngineError
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.tracing import current_trace
from tests.fakes.bench import Bench, job
from tests.fakes.tracing import RecordingTracer


@pytest.fixture
def tracer() -> RecordingTracer:
    return RecordingTracer()


@pytest.fixture
def bench(tracer: RecordingTracer) -> Bench:
    return Bench(tracer=tracer)


def test_jobs_of_one_read_are_parts_of_their_own_also_on_threads_of_their_own(
    bench: Bench, tracer: RecordingTracer
) -> None:
    rows = bench.built("x", "y")
    tracer.spans.clear()
    committed: dict[str, str] = {}
    for row in rows:

        def note(name: str = row.key.job_name) -> None:
            committed[name] = current_trace()

        bench.target(row).before_commit = note
    bench.source.commit({3: "c"})
    with tracer.span("iteration", {}) as above:
        bench.run(*rows)
    assert current_trace() == ""
    read, parts = tracer.one("iscp.read"), tracer.named("iscp.consume")
    assert {span.parent for span in (read, *parts)} == {above.trace}
    assert committed == {str(span.attributes["iscp.job"]): span.trace for span in parts}
    assert (read.attributes["iscp.read"], read.attributes["iscp.version"], read.ended) == ("cdf", 2, True)
    for span in parts:
        assert span.attributes["iscp.committed"] is True
        assert (span.attributes["iscp.rows"], span.attributes["iscp.data"], span.failure) == (3, "tail", None)


def test_a_job_that_fails_is_a_span_that_failed_and_the_others_are_not(bench: Bench, tracer: RecordingTracer) -> None:
    x, y = bench.built("x", "y")
    tracer.spans.clear()
    bench.target(y).faults.append(EngineError("died"))
    bench.source.commit({3: "c"})
    bench.run(x, y)
    failures = {span.attributes["iscp.job"]: span.failure for span in tracer.named("iscp.consume")}
    assert failures["x"] is None
    kind, message = failures["y"] or ("", "")
    assert (kind, "died" in message) == ("EngineError", True)


def test_a_job_that_has_to_compare_all_rows_does_so_within_its_span(bench: Bench, tracer: RecordingTracer) -> None:
    (x,) = bench.built("x")
    tracer.spans.clear()
    bench.source.commit({3: "c"})
    bench.source.net_faults = {("id",): ChangesUnavailableError("a file is gone")}
    bench.run(x)
    outer, inner = tracer.named("iscp.consume")
    assert inner.parent == outer.trace
    changes, rows = tracer.named("iscp.read")
    assert (changes.attributes["iscp.read"], rows.attributes["iscp.read"]) == ("cdf", "snapshot")
    assert (rows.parent, inner.attributes["iscp.data"]) == (inner.trace, "difference")


def test_without_a_tracer_the_outcome_is_the_same() -> None:
    plain, recorded = Bench(), Bench(tracer=RecordingTracer())
    first, second = (bench.run(job("x")) for bench in (plain, recorded))
    assert first == second
