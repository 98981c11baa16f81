"""A node's metrics and traces on OpenTelemetry's SDK: the ports Meter and Tracer.

Nothing of OpenTelemetry is imported by a node that measures and traces nothing: this module is the only way to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricExportResult,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as ExportedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
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
from prometheus_client import CollectorRegistry

from iscp.model.metrics.declared_metrics import (
    DURATION_BUCKETS_S,
    METRICS,
    NODE_EXPORT_FAILURES,
    NODE_READINGS_DROPPED,
    DeclaredMetric,
    MetricKind,
    MetricReading,
)
from iscp.model.values.ids import trace_of
from iscp.model.values.untrusted_values import named_error, printable
from iscp.notices.bounded_sender import BoundedSender, HttpTarget, SenderBounds
from iscp.ports.system import Attribute, Clock, Span, current_trace, within_trace
from iscp.system.http_exchange import HttpPeers, exchange, failure_words

# --- readings of what is counted anyway -------------------------------------------------------------------------------
# The readings are made points of OpenTelemetry whenever metrics are collected. OpenTelemetry's own observable
# instruments remember every set of attributes that they have ever seen, and beyond 2,000 of them put all further ones
# into one. The jobs that lag most are others each day, so these points are made here, of what is read now alone (what
# the specification calls a MetricProducer).

log = logging.getLogger(__name__)

READINGS_MAX = 20_000
"""Readings that one metric may have; more are dropped, and counted in `iscp.node.metrics.dropped`."""


REST_FACTOR = 20.0
"""What took a time to read is not read again for so many times as long: however often metrics are collected, and
however many jobs there are, a twentieth of a core reads them. Until then a collection has the last readings.
"""


class _ReadingSource:
    """A source of readings, with what was read of it last."""

    def __init__(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        self.read = read
        self.last: list[MetricReading] = []
        self.due_s = 0.0


class ObservedReadings:
    """Reads all that `Meter.observe` was given. One thread collects at a time."""

    def __init__(self, resource: Resource, scope: InstrumentationScope, clock: Clock) -> None:
        self._resource = resource
        self._scope = scope
        self._clock = clock
        self._began_ns = _nanoseconds(clock.now_s())
        self._sources: list[_ReadingSource] = []
        self._collecting = threading.Lock()
        self._dropped = 0

    def add(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        self._sources = [*self._sources, _ReadingSource(read)]

    def added_to(self, recorded: MetricsData | None) -> MetricsData:
        """Return what was `recorded` by instruments, and all that can be read now."""
        with self._collecting:
            points = self._points()
        # All in one scope: of two that are equal, the encoder of OTLP takes the last alone.
        before = [scope for each in (recorded.resource_metrics if recorded else ()) for scope in each.scope_metrics]
        own = [metric for scope in before if scope.scope.name == self._scope.name for metric in scope.metrics]
        others = [scope for scope in before if scope.scope.name != self._scope.name]
        whole = ScopeMetrics(scope=self._scope, metrics=[*own, *points], schema_url="")
        return MetricsData([ResourceMetrics(self._resource, [*others, whole], schema_url="")])

    def _points(self) -> Sequence[ExportedMetric]:
        found: dict[str, tuple[DeclaredMetric, dict[frozenset[tuple[str, str]], MetricReading]]] = {}
        for source in self._sources:
            self._refresh(source)
            for reading in source.last:
                self._take(found, reading)
        self._take(found, MetricReading(NODE_READINGS_DROPPED, self._dropped))
        now_ns = _nanoseconds(self._clock.now_s())
        return [self._exported(metric, readings.values(), now_ns) for metric, readings in found.values()]

    def _refresh(self, source: _ReadingSource) -> None:
        began_s = self._clock.monotonic_s()
        if began_s < source.due_s:
            return
        source.last = []
        try:
            for reading in source.read():
                source.last.append(reading)
        except Exception:  # all other metrics are there
            self._dropped += 1
            log.exception("metrics.unread")
        ended_s = self._clock.monotonic_s()
        source.due_s = ended_s + REST_FACTOR * (ended_s - began_s)

    def _take(
        self,
        found: dict[str, tuple[DeclaredMetric, dict[frozenset[tuple[str, str]], MetricReading]]],
        reading: MetricReading,
    ) -> None:
        _, readings = found.setdefault(reading.metric.name, (reading.metric, {}))
        if len(readings) >= READINGS_MAX:
            self._dropped += 1
            return
        readings[frozenset(reading.attributes.items())] = reading

    def _exported(self, metric: DeclaredMetric, readings: Iterable[MetricReading], now_ns: int) -> ExportedMetric:
        grows = metric.kind is MetricKind.COUNTER
        points = [
            NumberDataPoint(_values(each.attributes), self._began_ns if grows else now_ns, now_ns, each.value)
            for each in readings
        ]
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if grows else Gauge(points)
        return ExportedMetric(metric.name, metric.description, metric.unit, data)


def _values(attributes: Mapping[str, str]) -> dict[str, str]:
    return dict(attributes)


def _nanoseconds(at_s: float) -> int:
    return int(at_s * 1e9)


# --- OpenTelemetry's readers ------------------------------------------------------------------------------------------
# The readers, for Prometheus and for a collector, also take what is observed.

EXPORT_TIMEOUT_S = 10.0
"""Longest time of one export by OTLP, with its retries; then it is given up, and counted. Nothing is queued: the next
export has all that was counted since the start.
"""

ANSWER_BYTES_MAX = 65_536
"""Bytes of a collector's answer, with its headers; if it is longer the attempt has failed."""


class PrometheusReader(PrometheusMetricReader):
    """Collects when `registry` is read, by one thread at a time."""

    def __init__(self, observed: ObservedReadings, registry: CollectorRegistry) -> None:
        self._observed = observed
        super().__init__(scope_info_enabled=False, registry=registry)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> None:
        super()._receive_metrics(self._observed.added_to(metrics_data), timeout_millis, **options)


class CollectorReader(PeriodicExportingMetricReader):
    """Collects every `interval_s`, on a thread of its own, and exports."""

    def __init__(self, observed: ObservedReadings, exporter: CountingExporter, interval_s: float) -> None:
        self._observed = observed
        super().__init__(exporter, interval_s * 1e3, EXPORT_TIMEOUT_S * 1e3)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> None:
        super()._receive_metrics(self._observed.added_to(metrics_data), timeout_millis, **options)


class CountingExporter(OTLPMetricExporter):
    """Exports by OTLP over HTTP. Headers and certificates come from the variables `OTEL_EXPORTER_OTLP_*`."""

    def __init__(self, endpoint: str, on_failed: Callable[[], None]) -> None:
        self._on_failed = on_failed
        super().__init__(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S, session=_BoundedSession())

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = EXPORT_TIMEOUT_S * 1e3, **options: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **options)
        if result is not MetricExportResult.SUCCESS:
            self._on_failed()
        return result


class _BoundedSession(requests.Session):
    """The way in which the SDK's exporter sends, by the client of the node; proxies and certificates are those that the
    environment names, as the library would take them.
    """

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> requests.Response:
        try:
            answer = exchange(
                method,
                url,
                data,
                headers or {},
                timeout_s=min(timeout or EXPORT_TIMEOUT_S, EXPORT_TIMEOUT_S),
                bytes_max=ANSWER_BYTES_MAX,
                peers=self._peers(url),
            )
        except OSError as error:
            raise requests.ConnectionError(failure_words(error)) from error
        if 300 <= answer.status < 400:  # which the exporter would take for a success
            raise requests.TooManyRedirects(f"the collector answers {answer.status}, and redirects are not followed")
        response = requests.Response()
        response.status_code, response._content = answer.status, answer.body
        response.headers.update(answer.headers)
        return response

    def _peers(self, url: str) -> HttpPeers:
        given = self.merge_environment_settings(url, {}, False, self.verify, self.cert)
        verify, shown = given["verify"], given["cert"]
        proxy = requests.utils.select_proxy(url, given["proxies"]) or ""
        if proxy and urlsplit(proxy).scheme != "http":
            raise requests.exceptions.InvalidProxyURL("the proxy for the collector is not reached by http")
        cert_file, key_file = shown if isinstance(shown, tuple) else (shown or "", "")
        ca_file = verify if isinstance(verify, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
        return HttpPeers(ca_file, cert_file, key_file, proxy)


# --- the meter --------------------------------------------------------------------------------------------------------

SCOPE = "iscp"

VALUES_MAX = 64
"""Values that an attribute of a recorded metric may have; all further ones are counted as `other`."""

VALUE_CHARS_MAX = 200
"""Characters of such a value, which a consumer of somebody else's may have written; the middle of more is left out."""

CLOSE_S = 2.0
"""Longest time that the end of a node waits for its last metrics to be sent; then they are lost."""

_METRICS_PATH = "/v1/metrics"


class OpenTelemetryMeter:
    """Instruments for all declared metrics that are recorded. `registry` is what Prometheus reads."""

    def __init__(
        self,
        identity: Mapping[str, str],
        version: str,
        clock: Clock,
        *,
        otlp_endpoint: str = "",
        interval_s: float = 60.0,
    ) -> None:
        """`identity`: the attributes of the node itself, by their names in OpenTelemetry's conventions."""
        resource = Resource.create(dict(identity))
        self._observed = ObservedReadings(resource, InstrumentationScope(SCOPE, version), clock)
        self.registry = CollectorRegistry()
        readers: list[MetricReader] = [PrometheusReader(self._observed, self.registry)]
        if otlp_endpoint:
            exporter = CountingExporter(metrics_url(otlp_endpoint), lambda: self.record(NODE_EXPORT_FAILURES, 1, {}))
            readers.append(CollectorReader(self._observed, exporter, interval_s))
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._instruments = self._create_instruments(version)
        self._known = _KnownValues()
        self.record(NODE_EXPORT_FAILURES, 0, {})  # it is to be seen before it counts

    def record(self, metric: DeclaredMetric, value: float, attributes: Mapping[str, str]) -> None:
        self._instruments[metric.name](value, self._known.bounded(attributes))

    def observe(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        self._observed.add(read)

    def close(self) -> None:
        """Send what was counted since the last export, for at most `CLOSE_S`."""
        try:
            self._provider.shutdown(CLOSE_S * 1e3)
        except Exception:  # of a reader that did not end in time
            log.exception("metrics.not_closed")

    def _create_instruments(self, version: str) -> dict[str, Callable[[float, Mapping[str, str]], None]]:
        meter, found = self._provider.get_meter(SCOPE, version), dict[str, Callable[..., Any]]()
        for metric in METRICS:
            if metric.observed:
                continue
            about = {"unit": metric.unit, "description": metric.description}
            if metric.kind is MetricKind.HISTOGRAM:
                histogram = meter.create_histogram(
                    metric.name, explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S, **about
                )
                found[metric.name] = histogram.record
            else:
                found[metric.name] = meter.create_counter(metric.name, **about).add
        return found


class _KnownValues:
    """The values that attributes have had, so that nobody can make a metric grow without end."""

    def __init__(self) -> None:
        self._by_name: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def bounded(self, attributes: Mapping[str, str]) -> dict[str, str]:
        given = {name: printable(value, VALUE_CHARS_MAX) for name, value in attributes.items()}
        return {name: value if self._is_known(name, value) else "other" for name, value in given.items()}

    def _is_known(self, name: str, value: str) -> bool:
        known = self._by_name.get(name)
        if known is not None and value in known:
            return True
        with self._lock:
            known = self._by_name.setdefault(name, set())
            if len(known) >= VALUES_MAX:
                return False
            known.add(value)
        return True


def metrics_url(endpoint: str) -> str:
    """Return where metrics are sent to: a collector's URL without a path has them where OTLP says."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _METRICS_PATH


# --- the tracer -------------------------------------------------------------------------------------------------------
# Spans are sent as OTLP over HTTP (protobuf). Neither the SDK's own queue nor its client is used: the former drops
# spans without a count, and an attempt of the latter has no bound of its own.

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
            start_time=_nanoseconds_of(start_s),
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
            begun.end(_nanoseconds_of(end_s))

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


def _nanoseconds_of(at_s: float) -> int | None:
    return round(at_s * 1e9) if at_s > 0 else None


def _context_of(trace: str) -> SpanContext:
    if not trace_of(trace):
        return INVALID_SPAN_CONTEXT
    _, trace_id, span_id, flags = trace.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))
