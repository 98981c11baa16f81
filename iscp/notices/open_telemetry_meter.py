"""The meter of a node whose metrics are read (port Meter), on OpenTelemetry's SDK.

Nothing of OpenTelemetry is imported by a node that measures nothing: this module is the only way to it.

Readings of metrics that are counted anyway, made points of OpenTelemetry whenever metrics are collected.

OpenTelemetry's own observable instruments remember every set of attributes that they have ever seen, and beyond 2,000
of them put all further ones into one. The jobs that lag most are others each day, so these points are made here, of
what is read now alone (what the specification calls a MetricProducer).

OpenTelemetry's readers, which also take what is observed: for Prometheus, and for a collector.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
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
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry

from iscp.model.metrics.declared_metrics import METRICS, NODE_EXPORT_FAILURES, NODE_READINGS_DROPPED
from iscp.model.metrics.metric import DURATION_BUCKETS_S, DeclaredMetric, MetricKind, MetricReading
from iscp.model.values.untrusted_values import printable
from iscp.ports.system import Clock
from iscp.system.http_exchange import HttpPeers, exchange, failure_words

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
