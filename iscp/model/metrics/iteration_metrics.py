"""Metrics of iterations: each job's part in one counts by itself."""

from __future__ import annotations

from iscp.model.metrics.metric import BYTES, ERROR, KIND, Attribute, DeclaredMetric, duration, recorded_counter

STRATEGY = Attribute(
    "iscp.strategy",
    "How rows were brought up to date: `tail` (changes), `snapshot` or `difference` (all rows), `incremental`, `full`, "
    "`groups`, `changes` or `unchanged` for a view, or `verify` and `repair`",
)

PART = Attribute("iscp.part", "`read`, `compute` or `commit` ([usage](iterations.md#what-an-iteration-costs))")

DURATION = duration("iscp.iteration.duration", "How long an iteration ran, for each of its jobs", KIND, STRATEGY, ERROR)
ROWS = recorded_counter("iscp.iteration.rows", "{row}", "Rows that were written to targets", KIND, STRATEGY)
IO = recorded_counter("iscp.iteration.io", BYTES, "Bytes that were written to targets", KIND, STRATEGY)

PARTS = duration("iscp.iteration.part.duration", "How long the parts of a job's own work took", KIND, STRATEGY, PART)
WAIT = duration(
    "iscp.iteration.wait.duration", "How long an iteration waited, from its source's commit or its time, until it began"
)
ROWS_READ = recorded_counter("iscp.iteration.rows.read", "{row}", "Rows that were read of sources", KIND, STRATEGY)
IO_READ = recorded_counter("iscp.iteration.io.read", BYTES, "Bytes that were read of sources", KIND, STRATEGY)
CONFLICTS = recorded_counter(
    "iscp.iteration.conflicts", "{conflict}", "Commits that another writer was before", KIND, STRATEGY
)
RETRIES = recorded_counter("iscp.iteration.retries", "{iteration}", "Iterations of a job whose last one had failed")

METRICS: tuple[DeclaredMetric, ...] = (
    DURATION,
    PARTS,
    WAIT,
    ROWS,
    ROWS_READ,
    IO,
    IO_READ,
    CONFLICTS,
    RETRIES,
)
