"""Metrics of indexes: searches, which the owner answers, and what each index consists of. Their lag is that of their
jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iscp.model.job.job_row import JobRow
from iscp.model.metrics.metric import (
    ACCOUNT,
    BYTES,
    ERROR,
    JOB,
    TABLE,
    DeclaredMetric,
    Emitter,
    MetricReading,
    duration,
    owner_gauge,
)

_INDEX = "an index"

SEARCH_DURATION = duration(
    "iscp.index.search.duration",
    "How long a search took, with the wait for its turn",
    ERROR,
    emitter=Emitter.OWNER,
    condition="a search",
)


def _figure(name: str, unit: str, description: str) -> DeclaredMetric:
    return owner_gauge(f"iscp.index.{name}", unit, description, ACCOUNT, TABLE, JOB, condition=_INDEX)


ROWS = _figure("rows", "{row}", "Rows of the source")
FAULTS = _figure("rows.faults", "{row}", "Of these, rows that cannot be indexed")
UNEMBEDDED = _figure("rows.unembedded", "{row}", "Rows without a vector, in an index of vectors")
FRESH = _figure("rows.fresh", "{row}", "Rows that no segment has yet, added up over its parts: each search reads them")
DEAD = _figure("rows.dead", "{row}", "Deleted rows that are still in files")
SEGMENTS = _figure("segments", "{segment}", "Segments of all its parts")
SIZE = _figure("size", BYTES, "Bytes of the files of its newest version")

METRICS: tuple[DeclaredMetric, ...] = (SEARCH_DURATION, ROWS, FAULTS, UNEMBEDDED, FRESH, DEAD, SEGMENTS, SIZE)

_FIGURES: Mapping[str, DeclaredMetric] = {
    "rows": ROWS,
    "faults": FAULTS,
    "without_vector": UNEMBEDDED,
    "fresh_rows": FRESH,
    "dead_rows": DEAD,
    "segments": SEGMENTS,
    "bytes": SIZE,
}
"""The metrics by the figures that `job status` shows; those of a part have its name before a dot, and are added up."""


def figure_readings(row: JobRow, figures: Mapping[str, float]) -> Iterator[MetricReading]:
    """Yield the figures of an index; those that are no metric are left out."""
    sums: dict[str, float] = {}
    for name, figure in figures.items():
        last = name.rpartition(".")[2]
        if last in _FIGURES:
            sums[last] = sums.get(last, 0.0) + figure
    attributes = {ACCOUNT.name: row.key.account, TABLE.name: row.table_uri, JOB.name: row.key.job_name}
    for name, value in sums.items():
        yield MetricReading(_FIGURES[name], value, attributes)
