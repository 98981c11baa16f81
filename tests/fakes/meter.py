"""A meter that remembers what it was given (port Meter)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from iscp.model.metrics.declared_metrics import DeclaredMetric, MetricReading


class Recorded(NamedTuple):
    metric: DeclaredMetric
    value: float
    attributes: Mapping[str, str]


class FakeMeter:
    def __init__(self) -> None:
        self.recorded: list[Recorded] = []
        self.reads: list[Callable[[], Iterable[MetricReading]]] = []

    def record(self, metric: DeclaredMetric, value: float, attributes: Mapping[str, str]) -> None:
        self.recorded.append(Recorded(metric, value, attributes))

    def observe(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        self.reads.append(read)

    def of(self, metric: DeclaredMetric) -> list[tuple[float, Mapping[str, str]]]:
        return [(each.value, each.attributes) for each in self.recorded if each.metric is metric]
