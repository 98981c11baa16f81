"""Metrics of indexes: searches, which the owner answers. Their lag is that of their jobs."""

from __future__ import annotations

from iscp.core.metrics.attributes import ERROR
from iscp.core.metrics.metric import DeclaredMetric, Emitter, duration

SEARCH_DURATION = duration(
    "iscp.index.search.duration",
    "How long a search took, with the wait for its turn",
    ERROR,
    emitter=Emitter.OWNER,
    condition="a search",
)

METRICS: tuple[DeclaredMetric, ...] = (SEARCH_DURATION,)
