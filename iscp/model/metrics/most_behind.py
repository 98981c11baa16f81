"""Choose the jobs that metrics name: those that lag most; all others are in sums.

A system of metrics has a series for each job that is ever named, and is not made for hundreds of thousands.

Add up the lags of jobs along the ways to them: a view on a view lags by both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from iscp.model.job.job_row import JobRow
from iscp.model.metrics import job_metrics as metrics
from iscp.model.metrics.metric import ACCOUNT, JOB, KIND, TABLE, MetricReading


class JobLag(NamedTuple):
    """The lag of a job, or of one range of its table.

    `lag_s` is -1 where it is not known; `versions` are those of the source that it has not applied. `global_s` is its
    lag with that of all jobs before it.
    """

    row: JobRow
    lag_s: float
    versions: int
    global_s: float = -1.0


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
        named = {
            ACCOUNT.name: row.key.account,
            TABLE.name: row.table_uri,
            JOB.name: row.key.job_name,
            KIND.name: kind_of(row),
        }
        if lag_s >= 0.0:
            yield MetricReading(metrics.LAG, lag_s, named)
        if global_s >= 0.0:
            yield MetricReading(metrics.LAG_GLOBAL, global_s, named)
        yield MetricReading(metrics.VERSIONS, versions, named)
    yield MetricReading(metrics.LAG_REST, sum(max(0.0, each.lag_s) for each in rest))
    yield MetricReading(metrics.LAG_GLOBAL_REST, sum(max(0.0, each.global_s) for each in rest))
    yield MetricReading(metrics.VERSIONS_REST, sum(each.versions for each in rest))
    yield MetricReading(metrics.UNNAMED, len(rest))
    lag_max_s = max((each.lag_s for each in lags), default=-1.0)
    if lag_max_s >= 0.0:
        yield MetricReading(metrics.LAG_MAX, lag_max_s)


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
