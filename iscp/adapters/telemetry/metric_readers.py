"""OpenTelemetry's readers, which also take what is observed: for Prometheus, and for a collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry

from iscp.adapters.telemetry.observed_readings import ObservedReadings

EXPORT_TIMEOUT_S = 10.0
"""Longest time of one export by OTLP, with its retries; then it is given up, and counted. Nothing is queued: the next
export has all that was counted since the start.
"""


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
        super().__init__(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = EXPORT_TIMEOUT_S * 1e3, **options: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **options)
        if result is not MetricExportResult.SUCCESS:
            self._on_failed()
        return result
