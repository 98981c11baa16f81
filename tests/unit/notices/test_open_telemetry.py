"""Spans by the SDK of OpenTelemetry, as a receiver of OTLP gets them over HTTP."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import METRICS, DeclaredMetric, MetricKind, MetricReading
from iscp.model.metrics.metric_readings import JobLag, lag_readings
from iscp.model.values.errors import StorageError
from iscp.model.values.ids import is_sampled
from iscp.notices.bounded_sender import HttpTarget
from iscp.notices.open_telemetry import (
    REST_FACTOR,
    SPAN_CHARS_MAX,
    SPAN_LINKS_MAX,
    SPANS_WAITING_MAX,
    VALUE_CHARS_MAX,
    VALUES_MAX,
    OpenTelemetryMeter,
    OtelTracer,
    metrics_url,
)
from iscp.ports.system import current_trace
from tests.fakes.clock import FakeClock
from tests.fakes.owned_jobs import row
from tests.fakes.tracing import ReceivedSpan, received_spans, traceparent
from tests.fakes.webhooks import HttpReceiver

JOBS, NAMED = 5_000, 500


@pytest.fixture
def meter() -> Iterator[OpenTelemetryMeter]:
    made = OpenTelemetryMeter({"service.name": "iscp", "service.instance.id": "n-1"}, "1.2.3", FakeClock())
    yield made
    made.close()


def samples(meter: OpenTelemetryMeter, metric: DeclaredMetric) -> list[Sample]:
    text = generate_latest(meter.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    family = families.get(metric.prometheus_name.removesuffix("_total"))
    return [] if family is None else [each for each in family.samples if not each.name.endswith("_created")]


def value(meter: OpenTelemetryMeter, metric: DeclaredMetric) -> float:
    (sample,) = samples(meter, metric)
    return sample.value


def test_what_is_recorded_is_counted_by_its_attributes(meter: OpenTelemetryMeter) -> None:
    for rows in (3, 4):
        meter.record(metrics.ITERATION_ROWS, rows, {"iscp.kind": "view", "iscp.strategy": "full"})
    (sample,) = samples(meter, metrics.ITERATION_ROWS)
    assert (sample.value, sample.labels) == (7, {"iscp_kind": "view", "iscp_strategy": "full"})


def test_durations_are_counted_in_buckets(meter: OpenTelemetryMeter) -> None:
    meter.record(metrics.ITERATION_DURATION, 0.3, {})
    found = {
        each.name.removeprefix("iscp_iteration_duration_seconds"): each
        for each in samples(meter, metrics.ITERATION_DURATION)
    }
    assert (found["_count"].value, found["_sum"].value) == (1, 0.3)
    buckets = {
        each.labels["le"]: each.value for each in samples(meter, metrics.ITERATION_DURATION) if "le" in each.labels
    }
    assert (buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (0, 1, 1)


def test_what_is_observed_is_read_at_each_collection_and_not_remembered(meter: OpenTelemetryMeter) -> None:
    waiting = [1, 2]
    meter.observe(lambda: [MetricReading(metrics.NODE_WAITING, waiting.pop())] if waiting else [])
    assert [value(meter, metrics.NODE_WAITING) for _ in range(2)] == [2, 1]
    assert samples(meter, metrics.NODE_WAITING) == []


def test_five_thousand_jobs_that_take_turns_to_lag_never_fill_the_metric(meter: OpenTelemetryMeter) -> None:
    """OpenTelemetry's own gauges put all jobs beyond the first 2,000 that are ever named into one."""
    rows = [row(f"j-{n}", job_id=f"id-{n}") for n in range(JOBS)]
    turns = iter(range(JOBS))

    def read() -> Iterable[MetricReading]:
        turn = next(turns) // 3  # each is collected for three questions
        lags = [JobLag(each, float((n + turn * NAMED) % JOBS), 1) for n, each in enumerate(rows)]
        return lag_readings(lags, NAMED, lambda each: "replica")

    meter.observe(read)
    named = set[str]()
    for _ in range(JOBS // NAMED):
        found = samples(meter, metrics.JOB_LAG)
        assert {each.value for each in found} == {float(n) for n in range(JOBS - NAMED, JOBS)}
        named |= {each.labels["iscp_job"] for each in found}
        assert sum(each.value for each in found) + value(meter, metrics.JOB_LAG_REST) == sum(range(JOBS))
        assert value(meter, metrics.JOB_UNNAMED) == JOBS - NAMED
    assert len(named) == JOBS


def test_what_takes_long_to_read_is_read_rarely_however_often_metrics_are_collected() -> None:
    clock, reads = FakeClock(), list[float]()
    meter = OpenTelemetryMeter({}, "1", clock)

    def read() -> Iterator[MetricReading]:
        clock.advance(0.5)
        reads.append(clock.monotonic_s())
        yield MetricReading(metrics.NODE_WAITING, len(reads))

    meter.observe(read)
    assert [value(meter, metrics.NODE_WAITING) for _ in range(3)] == [1, 1, 1]
    clock.advance(0.5 * REST_FACTOR)
    assert value(meter, metrics.NODE_WAITING) == 2
    meter.close()


def test_a_name_of_a_job_cannot_forge_other_metrics(meter: OpenTelemetryMeter) -> None:
    name = 'a"} 1\niscp_owner_leads 7\n\\'
    meter.observe(lambda: [MetricReading(metrics.JOB_LAG, 2.0, {"iscp.job": name})])
    (sample,) = samples(meter, metrics.JOB_LAG)
    assert (sample.labels["iscp_job"], sample.value) == (name, 2.0)


def test_what_a_consumer_calls_its_strategy_hides_no_metric(meter: OpenTelemetryMeter) -> None:
    for strategy in ("half of a pair \ud800", "x" * 100_000):
        meter.record(metrics.ITERATION_ROWS, 1, {"iscp.strategy": strategy})
    half, long = sorted(each.labels["iscp_strategy"] for each in samples(meter, metrics.ITERATION_ROWS))
    assert half == "half of a pair \\ud800"
    assert len(long) == VALUE_CHARS_MAX


def test_an_attribute_has_a_bounded_number_of_values(meter: OpenTelemetryMeter) -> None:
    for n in range(2 * VALUES_MAX):
        meter.record(metrics.ITERATION_ROWS, 1, {"iscp.kind": f"kind-{n}"})
    found = {each.labels["iscp_kind"]: each.value for each in samples(meter, metrics.ITERATION_ROWS)}
    assert len(found) == VALUES_MAX + 1
    assert found["other"] == VALUES_MAX


def test_a_reader_that_fails_takes_nothing_else_with_it(meter: OpenTelemetryMeter) -> None:
    def fail() -> Iterator[MetricReading]:
        yield MetricReading(metrics.NODE_RUNNING, 1)
        raise RuntimeError("damaged")

    meter.observe(fail)
    meter.observe(lambda: [MetricReading(metrics.NODE_WAITING, 5)])
    assert value(meter, metrics.NODE_WAITING) == 5
    assert value(meter, metrics.NODE_READINGS_DROPPED) == 2


def test_readings_beyond_what_a_metric_may_have_are_dropped_and_counted(meter: OpenTelemetryMeter) -> None:
    meter.observe(lambda: (MetricReading(metrics.JOB_LAG, n, {"iscp.job": str(n)}) for n in range(20_003)))
    assert len(samples(meter, metrics.JOB_LAG)) == 20_000
    assert value(meter, metrics.NODE_READINGS_DROPPED) == 6


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_prometheus_sees_a_metric_by_the_name_that_is_documented(
    meter: OpenTelemetryMeter, metric: DeclaredMetric
) -> None:
    if metric.observed:
        meter.observe(lambda: [MetricReading(metric, 1)])
    else:
        meter.record(metric, 1, {})
    suffix = "_count" if metric.kind is MetricKind.HISTOGRAM else ""
    assert f"{metric.prometheus_name}{suffix}" in {each.name for each in samples(meter, metric)}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("http://collector:4318/", "http://collector:4318/v1/metrics"),
        ("https://vendor.example/otlp/metrics", "https://vendor.example/otlp/metrics"),
    ],
)
def test_a_collector_without_a_path_has_metrics_where_otlp_says(endpoint: str, url: str) -> None:
    assert metrics_url(endpoint) == url


def test_nothing_of_it_is_imported_by_a_node_that_measures_nothing() -> None:
    code = (
        "import sys, iscp.app.compose\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120.0)
    assert ended.stdout == "[]\n"


CLOSE_S = 30.0


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


def tracer_to(receiver: HttpReceiver, ratio: float = 1.0) -> OtelTracer:
    target = HttpTarget(receiver.url, {}, "application/x-protobuf")
    return OtelTracer(target, ratio, {"service.name": "iscp", "service.instance.id": "n-1", "service.version": "7"})


def received(receiver: HttpReceiver, tracer: OtelTracer) -> dict[str, ReceivedSpan]:
    tracer.close(CLOSE_S)
    return {span.name: span for span in received_spans([each.body for each in receiver.received])}


def test_parts_of_a_trace_arrive_with_parents_times_and_links(receiver: HttpReceiver) -> None:
    tracer = tracer_to(receiver)
    with tracer.span("outer", {"a": "x", "n": 3}, parent=traceparent(7, 9), start_s=100.5, end_s=103.0) as outer:
        assert current_trace() == outer.trace
        outer.note({"late": True})
        outer.link(traceparent(8, 5))
        outer.link("no context at all")
        with tracer.span("inner", {}):
            pass
        with tracer.span("root", {}, parent=""):
            pass
    assert current_trace() == ""
    spans = received(receiver, tracer)
    found, inner, root = spans["outer"], spans["inner"], spans["root"]
    assert (found.trace_id, found.parent_id, found.node) == (f"{7:032x}", f"{9:016x}", "n-1")
    assert outer.trace == f"00-{found.trace_id}-{found.span_id}-01"
    assert (found.start_ns, found.end_ns) == (100_500_000_000, 103_000_000_000)
    assert found.attributes == {"a": "x", "n": 3, "late": True}
    assert found.links == ((f"{8:032x}", f"{5:016x}"),)
    assert (inner.trace_id, inner.parent_id) == (found.trace_id, found.span_id)
    assert root.parent_id == ""
    assert root.trace_id != found.trace_id
    assert tracer.counters() == {"spans_sent": 3, "spans_dropped": 0}


def fail_knowingly(tracer: OtelTracer) -> None:
    with tracer.span("known", {}) as span:
        span.fail("CONFLICT", "seq 7 was won by another")
        raise KeyError


def test_an_error_is_noted_and_goes_on_its_way(receiver: HttpReceiver) -> None:
    tracer = tracer_to(receiver)
    with pytest.raises(StorageError), tracer.span("fails", {}):
        raise StorageError("the disk is away")
    with pytest.raises(KeyError):
        fail_knowingly(tracer)
    spans = received(receiver, tracer)
    assert spans["fails"].attributes["error.type"] == "StorageError"
    assert "the disk is away" in spans["fails"].failure
    assert spans["known"].attributes["error.type"] == "CONFLICT"
    assert spans["known"].failure == "seq 7 was won by another"


def test_texts_of_tenants_can_neither_grow_without_bound_nor_cost_a_batch(receiver: HttpReceiver) -> None:
    tracer = tracer_to(receiver)
    hostile = {"long": "x" * 1_000_000, "surrogate": "\ud800", "nul": "a\0b", "escape": "\x1b[2J"}
    with tracer.span("hostile", hostile) as span:
        span.note(hostile | {f"more.{number}": number for number in range(500)})
        for number in range(1, 200):
            span.link(traceparent(number))
        span.fail("X", "\udfff" * 10_000)
    found = received(receiver, tracer)["hostile"]
    assert all(len(value) <= SPAN_CHARS_MAX for value in found.attributes.values() if isinstance(value, str))
    assert len(found.attributes) < 100
    assert len(found.links) <= SPAN_LINKS_MAX
    assert len(receiver.received[0].body) < 100_000


def test_a_ratio_of_traces_is_recorded_and_a_caller_decides_on_its_own(receiver: HttpReceiver) -> None:
    tracer = tracer_to(receiver, ratio=0.0)
    with tracer.span("unseen", {}) as span, tracer.span("its part", {}) as part:
        assert not is_sampled(span.trace)
        assert part.trace.split("-")[1] == span.trace.split("-")[1]
    with tracer.span("of a caller", {}, parent=traceparent(7)):
        pass
    with tracer.span("of one that records nothing", {}, parent=traceparent(7, sampled=False)):
        pass
    assert set(received(receiver, tracer)) == {"of a caller"}


def test_what_a_receiver_rejects_is_counted(receiver: HttpReceiver) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    body = answer.SerializeToString()
    receiver.answer = lambda connection: connection.sendall(
        f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    tracer = tracer_to(receiver)
    for _ in range(3):
        with tracer.span("some", {}):
            pass
    tracer.close(CLOSE_S)
    assert tracer.counters() == {"spans_sent": 1, "spans_dropped": 2}


def test_a_receiver_that_is_away_costs_neither_time_nor_memory(receiver: HttpReceiver) -> None:
    receiver.close()
    tracer = tracer_to(receiver)
    began_s = time.monotonic()
    for _ in range(SPANS_WAITING_MAX + 2_000):
        with tracer.span("lost", {}):
            pass
    tracer.close(0.2)
    assert time.monotonic() - began_s < CLOSE_S
    counted = tracer.counters()
    assert counted["spans_sent"] == 0
    assert counted["spans_dropped"] >= 1_000
