"""Declare a metric: its name and unit, how it is counted, and by what it is split; and the attributes that metrics of
several concepts have.

Names and units follow the style of OpenTelemetry's semantic conventions; Prometheus sees them as
`prometheus_name` says, which is what OpenTelemetry's exporter makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

SECONDS = "s"
BYTES = "By"

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)
"""Upper bounds of the buckets in which durations are counted, in seconds; what takes longer is in a bucket of its own.
"""

_PROMETHEUS_UNITS = {SECONDS: "_seconds", BYTES: "_bytes"}


class MetricKind(StrEnum):
    """A COUNTER only grows, until the process ends. A GAUGE is as of now. A HISTOGRAM counts values in buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Emitter(StrEnum):
    """The node that emits a metric: every one, or the owner of the cluster alone."""

    NODE = "node"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that splits a metric. Invariant: what a tenant may choose is bounded by whoever reads it."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """One metric. A unit in braces counts what it names. `condition` says without which settings it is absent.

    `observed`: it is read when metrics are collected, from what is counted anyway; others are recorded as they happen.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[Attribute, ...] = ()
    emitter: Emitter = Emitter.NODE
    condition: str = ""
    observed: bool = True

    @property
    def prometheus_name(self) -> str:
        """Return the name of the metric's family at the Prometheus endpoint."""
        total = "_total" if self.kind is MetricKind.COUNTER else ""
        return self.name.replace(".", "_") + _PROMETHEUS_UNITS.get(self.unit, "") + total


class MetricReading(NamedTuple):
    """The value of a metric at one moment, for these values of its attributes (by their names)."""

    metric: DeclaredMetric
    value: float
    attributes: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CountedAs:
    """The metric, and the attributes in it, as which one of a node's counters is emitted."""

    metric: DeclaredMetric
    attributes: Mapping[str, str] = field(default_factory=dict)


def counter(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a counter of every node, which is read when metrics are collected."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, condition=condition)


def gauge(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a gauge of every node."""
    return DeclaredMetric(name, MetricKind.GAUGE, unit, description, attributes, condition=condition)


def owner_counter(
    name: str, unit: str, description: str, *attributes: Attribute, condition: str = ""
) -> DeclaredMetric:
    """Return a counter of the owner, which is read when metrics are collected."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, Emitter.OWNER, condition)


def owner_gauge(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a gauge of the owner."""
    return DeclaredMetric(name, MetricKind.GAUGE, unit, description, attributes, Emitter.OWNER, condition)


def recorded_counter(
    name: str,
    unit: str,
    description: str,
    *attributes: Attribute,
    emitter: Emitter = Emitter.NODE,
    condition: str = "",
) -> DeclaredMetric:
    """Return a counter that is added to as something happens."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, emitter, condition, observed=False)


def duration(
    name: str, description: str, *attributes: Attribute, emitter: Emitter = Emitter.NODE, condition: str = ""
) -> DeclaredMetric:
    """Return a histogram of seconds, recorded as something ends."""
    return DeclaredMetric(
        name, MetricKind.HISTOGRAM, SECONDS, description, attributes, emitter, condition, observed=False
    )


ACCOUNT = Attribute("iscp.account", "The account of the job")
TABLE = Attribute("iscp.table", "The URI of the table that the job is on")
JOB = Attribute("iscp.job", "The name of the job")
KIND = Attribute("iscp.kind", "The kind of consumer, as `replica` or `view`")
ERROR = Attribute(
    "error.type", "The [code](operations.md#error-codes) of the error, as `STORAGE`; absent where there was none"
)
