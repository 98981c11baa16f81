"""Metrics of iterations: each job's part in one counts by itself."""

from __future__ import annotations

from iscp.core.metrics.attributes import ERROR, KIND
from iscp.core.metrics.metric import BYTES, Attribute, DeclaredMetric, duration, recorded_counter

STRATEGY = Attribute(
    "iscp.strategy",
    "How rows were brought up to date: `tail` (changes), `snapshot` or `difference` (all rows), `incremental`, `full`, "
    "`groups`, `joins` or `unchanged` for a view, or `verify` and `repair`",
)

DURATION = duration("iscp.iteration.duration", "How long an iteration ran, for each of its jobs", KIND, STRATEGY, ERROR)
ROWS = recorded_counter("iscp.iteration.rows", "{row}", "Rows that were written to targets", KIND, STRATEGY)
IO = recorded_counter("iscp.iteration.io", BYTES, "Bytes that were written to targets", KIND, STRATEGY)

METRICS: tuple[DeclaredMetric, ...] = (DURATION, ROWS, IO)
