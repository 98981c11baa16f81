"""All metrics that a node may emit, concept by concept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from iscp.model.metrics import (
    build_metrics,
    feed_metrics,
    index_metrics,
    iteration_metrics,
    job_metrics,
    node_metrics,
    owner_metrics,
    view_metrics,
)
from iscp.model.metrics.metric import DeclaredMetric

CONCEPTS: Mapping[str, tuple[DeclaredMetric, ...]] = MappingProxyType(
    {
        "Jobs": job_metrics.METRICS,
        "Iterations": iteration_metrics.METRICS,
        "Views": view_metrics.METRICS,
        "Nodes": node_metrics.METRICS,
        "The owner": owner_metrics.METRICS,
        "Builds": build_metrics.METRICS,
        "Indexes": index_metrics.METRICS,
        "Changefeeds": feed_metrics.METRICS,
    }
)
"""The metrics by the headings under which docs/metrics.md has them."""

METRICS: tuple[DeclaredMetric, ...] = tuple(metric for metrics in CONCEPTS.values() for metric in metrics)
