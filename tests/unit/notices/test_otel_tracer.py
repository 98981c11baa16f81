"""Spans by the SDK of OpenTelemetry, as a receiver of OTLP gets them over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from iscp.model.values.errors import StorageError
from iscp.model.values.ids import is_sampled
from iscp.notices.bounded_sender import HttpTarget
from iscp.notices.otel_tracer import SPAN_CHARS_MAX, SPAN_LINKS_MAX, SPANS_WAITING_MAX, OtelTracer
from iscp.ports.system import current_trace
from tests.fakes.tracing import ReceivedSpan, received_spans, traceparent
from tests.fakes.webhooks import HttpReceiver

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
