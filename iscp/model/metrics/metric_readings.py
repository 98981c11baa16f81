"""The readings of metrics that follow from jobs: of those that lag most each by its name, of all others in sums.

A system of metrics has a series for each job that is ever named, and is not made for hundreds of thousands.

The lags of jobs add up along the ways to them: a view on a view lags by both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from iscp.model.job.job_row import JobRow
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import ACCOUNT, JOB, KIND, TABLE, DeclaredMetric, MetricReading


class JobLag(NamedTuple):
    """The lag of a job, or of one range of its table.

    `lag_s` is -1 where it is not known; `versions` are those of the source that it has not applied. `global_s` is its
    lag with that of all jobs before it.
    """

    row: JobRow
    lag_s: float
    versions: int
    global_s: float = -1.0


def _name_of(row: JobRow) -> dict[str, str]:
    """Return the attributes by which a metric names a job."""
    return {ACCOUNT.name: row.key.account, TABLE.name: row.table_uri, JOB.name: row.key.job_name}


def whole_jobs(lags: Iterable[JobLag]) -> list[JobLag]:
    """Return one for each job: a job on a split table is as far behind as its range that lags most."""
    found: dict[str, JobLag] = {}
    for each in lags:
        job_id = each.row.registration
        before = found.get(job_id)
        if before is None:
            found[job_id] = each
        else:
            lag_s, versions = max(before.lag_s, each.lag_s), max(before.versions, each.versions)
            found[job_id] = before._replace(lag_s=lag_s, versions=versions)
    return list(found.values())


def lag_readings(lags: list[JobLag], named_max: int, kind_of: Callable[[JobRow], str]) -> Iterator[MetricReading]:
    """Yield the lags of the `named_max` jobs that lag most, globally, and the sums of all others."""
    most = set(nlargest(named_max, range(len(lags)), key=lambda place: (lags[place].global_s, *lags[place][1:3])))
    rest = [each for place, each in enumerate(lags) if place not in most]
    for row, lag_s, versions, global_s in (lags[place] for place in most):
        named = {**_name_of(row), KIND.name: kind_of(row)}
        if lag_s >= 0.0:
            yield MetricReading(metrics.JOB_LAG, lag_s, named)
        if global_s >= 0.0:
            yield MetricReading(metrics.JOB_LAG_GLOBAL, global_s, named)
        yield MetricReading(metrics.JOB_VERSIONS, versions, named)
    yield MetricReading(metrics.JOB_LAG_REST, sum(max(0.0, each.lag_s) for each in rest))
    yield MetricReading(metrics.JOB_LAG_GLOBAL_REST, sum(max(0.0, each.global_s) for each in rest))
    yield MetricReading(metrics.JOB_VERSIONS_REST, sum(each.versions for each in rest))
    yield MetricReading(metrics.JOB_UNNAMED, len(rest))
    lag_max_s = max((each.lag_s for each in lags), default=-1.0)
    if lag_max_s >= 0.0:
        yield MetricReading(metrics.JOB_LAG_MAX, lag_max_s)


UNKNOWN = -1.0
"""A lag of which nothing is known, in seconds."""


def chain_lags(lags_s: Mapping[str, float], inputs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return for each job its own lag, and on top of it the greatest of those that make what it reads.

    A lag is UNKNOWN where one on the way is. In a circle, which nothing forbids, the way ends where it closes. Without
    recursion, as a chain may be long.
    """
    found: dict[str, float] = {}
    for start in lags_s:
        stack, under_way = [start], set[str]()
        while stack:
            job_id = stack[-1]
            if job_id in found:
                stack.pop()
                continue
            before = [each for each in inputs.get(job_id, ()) if each in lags_s]
            open_ones = [each for each in before if each not in found and each not in under_way]
            if open_ones and job_id not in under_way:
                under_way.add(job_id)
                stack += open_ones
                continue
            known = [found[each] for each in before if each in found]
            own_s = lags_s[job_id]
            found[job_id] = UNKNOWN if min([own_s, *known]) < 0 else own_s + max(known, default=0.0)
            stack.pop()
    return found


_REASONS = (
    ("first", re.compile("the first build")),
    ("policy", re.compile("the policy says so")),
    ("small", re.compile("few rows of a view")),
    ("abandoned", re.compile(r"changes took .* and were given up")),
    ("cost", re.compile(r"[\d.]+% of the bytes have changed|expected .* by changes|changes need [\d.]+ times")),
)


def reason_class(strategy: str, reason: str) -> str:
    """Return the class of a reason that a refresh gives in words, of which there are as many as refreshes."""
    if strategy == "unchanged":
        return strategy
    return next((name for name, form in _REASONS if form.match(reason)), "forced")


_FIGURES: Mapping[str, DeclaredMetric] = {
    "rows": metrics.INDEX_ROWS,
    "faults": metrics.INDEX_FAULTS,
    "without_vector": metrics.INDEX_UNEMBEDDED,
    "fresh_rows": metrics.INDEX_FRESH,
    "dead_rows": metrics.INDEX_DEAD,
    "segments": metrics.INDEX_SEGMENTS,
    "bytes": metrics.INDEX_SIZE,
}

"""The metrics by the figures that `job status` shows; those of a part have its name before a dot, and are added up."""


def figure_readings(row: JobRow, figures: Mapping[str, float]) -> Iterator[MetricReading]:
    """Yield the figures of an index; those that are no metric are left out."""
    sums: dict[str, float] = {}
    for name, figure in figures.items():
        last = name.rpartition(".")[2]
        if last in _FIGURES:
            sums[last] = sums.get(last, 0.0) + figure
    attributes = _name_of(row)
    for name, value in sums.items():
        yield MetricReading(_FIGURES[name], value, attributes)


class CursorLag(NamedTuple):
    """The lag, in seconds, of the cursor of that name in the changefeed that a job writes."""

    row: JobRow
    name: str
    lag_s: float


def cursor_readings(lags: Sequence[CursorLag], named_max: int) -> Iterator[MetricReading]:
    """Yield the lags of the `named_max` cursors that are furthest behind, and sums of all others; nothing where there
    are no cursors.
    """
    if not lags:
        return
    named = nlargest(named_max, lags, key=lambda each: each.lag_s)
    for row, name, lag_s in named:
        yield MetricReading(metrics.FEED_LAG, lag_s, {**_name_of(row), metrics.FEED_CURSOR.name: name})
    yield MetricReading(
        metrics.FEED_LAG_REST, max(0.0, sum(each.lag_s for each in lags) - sum(each.lag_s for each in named))
    )
    yield MetricReading(metrics.FEED_COUNT, len(lags))
    yield MetricReading(metrics.FEED_UNNAMED, len(lags) - len(named))
