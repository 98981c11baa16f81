"""The meter of a node whose metrics are read (port Meter), on OpenTelemetry's SDK.

Nothing of OpenTelemetry is imported by a node that measures nothing: this module is the only way to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry

from iscp.adapters.telemetry.metric_readers import CollectorReader, CountingExporter, PrometheusReader
from iscp.adapters.telemetry.observed_readings import ObservedReadings
from iscp.core.metrics.declared_metrics import METRICS
from iscp.core.metrics.metric import DURATION_BUCKETS_S, DeclaredMetric, MetricKind, MetricReading
from iscp.core.metrics.node_metrics import EXPORT_FAILURES
from iscp.core.values.untrusted_values import printable
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

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
            exporter = CountingExporter(metrics_url(otlp_endpoint), lambda: self.record(EXPORT_FAILURES, 1, {}))
            readers.append(CollectorReader(self._observed, exporter, interval_s))
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._instruments = self._create_instruments(version)
        self._known = _KnownValues()
        self.record(EXPORT_FAILURES, 0, {})  # it is to be seen before it counts

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
