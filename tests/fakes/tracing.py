"""A tracer that remembers what it was given (port Tracer), and reads of what a receiver of OTLP has got."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from iscp.ports.system import Attribute, Span, current_trace, within_trace


def traceparent(number: int, span: int = 1, *, sampled: bool = True) -> str:
    return f"00-{number:032x}-{span:016x}-{int(sampled):02x}"


@dataclass
class RecordedSpan:
    name: str
    parent: str
    trace: str
    attributes: dict[str, Attribute]
    start_s: float
    links: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    ended: bool = False

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        self.attributes |= attributes

    def link(self, trace: str) -> None:
        self.links.append(trace)

    def fail(self, kind: str, message: str) -> None:
        self.failure = kind, message


class RecordingTracer:
    """`spans` in the order in which they began. A root has the trace of its number; its parts have that one too."""

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []
        self._numbers = itertools.count(1)

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        parent: str | None = None,
        start_s: float = 0.0,
        end_s: float = 0.0,
    ) -> Iterator[Span]:
        above, number = current_trace() if parent is None else parent, next(self._numbers)
        trace = traceparent(int(above.split("-")[1], 16) if above else number, number)
        span = RecordedSpan(name, above, trace, dict(attributes), start_s)
        self.spans.append(span)
        try:
            with within_trace(trace):
                yield span
        except BaseException as error:
            span.failure = span.failure or (type(error).__name__, str(error))
            raise
        finally:
            span.ended = True

    def named(self, name: str) -> list[RecordedSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> RecordedSpan:
        (span,) = self.named(name)
        return span


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came in by OTLP; ids are hexadecimal, `links` are (trace, span)."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    node: str
    attributes: Mapping[str, Attribute]
    links: tuple[tuple[str, str], ...]
    failure: str
    start_ns: int
    end_ns: int


def received_spans(bodies: Sequence[bytes]) -> list[ReceivedSpan]:
    """The spans of requests of OTLP over HTTP."""
    found = []
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                found += [_received(span, about["service.instance.id"]) for span in scope.spans]
    return found


def _received(span: WireSpan, node: str) -> ReceivedSpan:
    values = {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}
    links = tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links)
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    failure = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else ""
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return ReceivedSpan(span.name, *ids, node, values, links, failure, *times)
