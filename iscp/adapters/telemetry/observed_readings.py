"""Readings of metrics that are counted anyway, made points of OpenTelemetry whenever metrics are collected.

OpenTelemetry's own observable instruments remember every set of attributes that they have ever seen, and beyond 2,000
of them put all further ones into one. The jobs that lag most are others each day, so these points are made here, of
what is read now alone (what the specification calls a MetricProducer).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as ExportedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from iscp.core.metrics.metric import DeclaredMetric, MetricKind, MetricReading
from iscp.core.metrics.node_metrics import READINGS_DROPPED
from iscp.ports.system import Clock

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
        self._take(found, MetricReading(READINGS_DROPPED, self._dropped))
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
