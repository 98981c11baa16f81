"""The port Tracer on the SDK of OpenTelemetry, which this module alone imports.

Spans are sent as OTLP over HTTP (protobuf). Neither the SDK's own queue nor its client is used: the former drops spans
without a count, and an attempt of the latter has no bound of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as OpenedSpan

from iscp.model.values.ids import trace_of
from iscp.model.values.untrusted_values import named_error, printable
from iscp.notices.bounded_sender import BoundedSender, HttpTarget, SenderBounds
from iscp.ports.system import Attribute, Span, current_trace, within_trace

log = logging.getLogger(__name__)

SPANS_WAITING_MAX = 8_192
"""Spans that wait for the receiver of traces; one more is dropped, and counted."""

SPANS_AT_ONCE_MAX = 512
"""Spans in one request to the receiver of traces; more follow in the next one."""

SPANS_LINGER_S = 2.0
"""Seconds that a span waits for others, to be sent together with them."""

SPANS_ATTEMPTS_MAX = 4
"""Attempts to send spans; after the last they are dropped, and counted."""

SPANS_PAUSE_S = 1.0
"""Seconds between the first attempt to send spans and the second; it doubles with each."""

SPAN_CHARS_MAX = 1_024
"""Characters of a text of a span; the rest of a longer one is cut off."""

SPAN_ATTRIBUTES_MAX = 64
"""Attributes of a span; further ones are left out."""

SPAN_LINKS_MAX = 16
"""Links of a span to other traces; the oldest of more are left out."""

_BOUNDS = SenderBounds(SPANS_WAITING_MAX, SPANS_AT_ONCE_MAX, SPANS_LINGER_S, SPANS_ATTEMPTS_MAX, SPANS_PAUSE_S)
_LIMITS = SpanLimits(
    max_attributes=SPAN_ATTRIBUTES_MAX,
    max_events=SPAN_LINKS_MAX,
    max_links=SPAN_LINKS_MAX,
    max_attribute_length=SPAN_CHARS_MAX,
)


class _Otlp:
    """Sends batches of spans."""

    def __init__(self, target: HttpTarget) -> None:
        self._target = target

    def send(self, spans: Sequence[ReadableSpan]) -> int:
        answer = self._target.post(encode_spans(spans).SerializeToString())
        try:
            refused = ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
        except DecodeError:  # an answer of 2xx means that they were taken, whatever it says besides
            return 0
        return min(max(0, refused), len(spans))


class _Ended(SpanProcessor):
    """Hands spans over that have ended."""

    def __init__(self, sender: BoundedSender[ReadableSpan]) -> None:
        self._sender = sender

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._sender.put(span)


class _OtelSpan:
    """The port Span."""

    def __init__(self, span: OpenedSpan) -> None:
        self._span = span
        self.failed = False

    @property
    def trace(self) -> str:
        about = self._span.get_span_context()
        return f"00-{about.trace_id:032x}-{about.span_id:016x}-{int(about.trace_flags) & 1:02x}"

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        self._span.set_attributes(_storable(attributes))

    def link(self, trace: str) -> None:
        about = _context_of(trace)
        if about.is_valid:
            self._span.add_link(about)

    def fail(self, kind: str, message: str) -> None:
        self.failed = True
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, printable(message, SPAN_CHARS_MAX)))


class OtelTracer:
    """The port Tracer. A node that stops closes it, once nothing traces any more."""

    def __init__(self, target: HttpTarget, sample_ratio: float, resource: Mapping[str, str]) -> None:
        """`sample_ratio`: which part of all traces is recorded, unless a caller's context says of its own."""
        self._sender = BoundedSender("tracing", _Otlp(target).send, _BOUNDS)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create(resource),
            shutdown_on_exit=False,
            span_limits=_LIMITS,
        )
        self._provider.add_span_processor(_Ended(self._sender))
        self._tracer = self._provider.get_tracer("iscp", resource.get("service.version"))

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
        above = NonRecordingSpan(_context_of(current_trace() if parent is None else parent))
        begun = self._tracer.start_span(
            name,
            set_span_in_context(above),
            attributes=_storable(attributes),
            start_time=_nanoseconds(start_s),
            record_exception=False,
            set_status_on_exception=False,
        )
        span = _OtelSpan(begun)
        try:
            with within_trace(span.trace):
                yield span
        except BaseException as error:
            if not span.failed:  # else more is known of it than what was raised says
                span.fail(type(error).__name__, named_error(error))
            raise
        finally:
            begun.end(_nanoseconds(end_s))

    def counters(self) -> Mapping[str, int]:
        """Return how many spans were sent, and how many were not."""
        return {"spans_sent": self._sender.sent, "spans_dropped": self._sender.dropped}

    def close(self, wait_s: float) -> None:
        """Send what waits, for `wait_s` at most."""
        self._sender.close(wait_s)


def _storable(attributes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    """Return attributes that can be encoded: a text without a form in UTF-8 would cost its whole batch."""
    return {
        name: printable(value, SPAN_CHARS_MAX) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _nanoseconds(at_s: float) -> int | None:
    return round(at_s * 1e9) if at_s > 0 else None


def _context_of(trace: str) -> SpanContext:
    if not trace_of(trace):
        return INVALID_SPAN_CONTEXT
    _, trace_id, span_id, flags = trace.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))
