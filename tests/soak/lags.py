"""How late each commit of a source was in each target that follows it, from the logs of both, after the fact.

A lag that a cluster says of itself is missing while it does not answer, which is when it matters. Here the time of each
commit is in the source's own log, and that of its arrival in the target's, or, for indexes, in the history.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from iscp.cli.demo.lake import commit_times_s, percentile
from tests.e2e.evidence import sink_commits
from tests.soak.faults import Fault
from tests.soak.soak_plan import INDEXES, Kind, Plan


@dataclass(frozen=True, slots=True)
class Arrival:
    """A commit of a source at `at_s` (Unix seconds) that the job had `lag_s` seconds later."""

    job: str
    at_s: float
    lag_s: float


@dataclass(frozen=True, slots=True)
class LagBin:
    """The lags of the commits from `at_s` on, up to the next bin."""

    at_s: float
    commits: int
    p50_s: float
    p95_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class FaultLag:
    """What a fault did: the lags of commits made from its begin to the next one's, and how soon after its end all
    commits that were made up to then had arrived (`recovered_s`).
    """

    fault: Fault
    commits: int
    p50_s: float
    p95_s: float
    max_s: float
    recovered_s: float


def arrivals_of(job: str, commits: Iterable[tuple[int, float]], applied: Iterable[tuple[int, float]]) -> list[Arrival]:
    """Return when each of `commits` (version, time) was there, by `applied` (up to which version, time), in any order.

    What was committed before the first time that the job applied anything is its first snapshot, and left out. Commits
    that never arrived are left out as well: the comparison of rows is to find them.
    """
    reached: list[tuple[int, float]] = []
    for to, at_s in sorted(applied, key=lambda each: each[1]):
        if not reached or to > reached[-1][0]:
            reached.append((to, at_s))
    if not reached:
        return []
    found, versions = [], [to for to, _ in reached]
    for version, at_s in commits:
        place = bisect.bisect_left(versions, version)
        if at_s >= reached[0][1] and place < len(reached):
            found.append(Arrival(job, at_s, max(0.0, reached[place][1] - at_s)))
    return found


def middle_and_most(lags: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 95th percentile and the maximum; zeros where there are none."""
    return percentile(lags, 0.5) or 0.0, percentile(lags, 0.95) or 0.0, max(lags, default=0.0)


def bins(arrivals: Sequence[Arrival], width_s: float) -> list[LagBin]:
    """Return the bins that have commits, oldest first."""
    by_bin: dict[int, list[float]] = {}
    for each in arrivals:
        by_bin.setdefault(int(each.at_s // width_s), []).append(each.lag_s)
    return [LagBin(number * width_s, len(lags), *middle_and_most(lags)) for number, lags in sorted(by_bin.items())]


def through_faults(arrivals: Sequence[Arrival], faults: Sequence[Fault]) -> list[FaultLag]:
    """Return for each fault what came of it; one during which nothing was committed has no lags."""
    found = []
    for number, fault in enumerate(faults):
        until_s = faults[number + 1].begin_at_s if number + 1 < len(faults) else float("inf")
        lags = [each.lag_s for each in arrivals if fault.begin_at_s <= each.at_s < until_s]
        arrived = [each.at_s + each.lag_s for each in arrivals if fault.begin_at_s <= each.at_s < fault.end_at_s]
        found.append(
            FaultLag(
                fault,
                len(lags),
                *middle_and_most(lags),
                max([0.0, *(at_s - fault.end_at_s for at_s in arrived)]),
            )
        )
    return found


def iterations_of(job_log: Path) -> Mapping[str, list[tuple[int, float]]]:
    """Return by the names of all jobs up to which version iterations went, and when, by the history."""
    rows = pa.table(DeltaTable(str(job_log / "iscp_history")).scan(["job_name", "to_version", "end_at", "error_code"]))
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows.to_pylist():
        if row["error_code"] == 0:
            found.setdefault(row["job_name"], []).append((row["to_version"], row["end_at"].timestamp()))
    return found


def all_arrivals(plan: Plan, lake: Path, derived: Path, job_log: Path) -> list[Arrival]:
    """Return the arrivals of all jobs in the tables that they are registered on."""
    commits = {table.name: list(commit_times_s(str(lake / table.name)).items()) for table in plan.tables}
    iterations = iterations_of(job_log)
    found = []
    for job in plan.jobs:
        if job.kind in (*INDEXES, Kind.CHANGEFEED):  # neither says in a commit of Delta's which version it follows
            applied = iterations.get(job.name, [])
        else:
            applied = [(each.to, each.at_s) for each in sink_commits(str(derived / job.name))]
        found += arrivals_of(job.name, commits[job.table.name], applied)
    return found
