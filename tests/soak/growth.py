"""Whether anything grows beyond what is live: criteria with names, each of which says what it found and its bound.

- `slope`: of the samples after the warm-up the least of each half minute counts, as a leak raises the floor, and work
  that is under way the peaks. The median of the slopes between all pairs of them (Theil and Sen), times the time
  between the first and the last, is at most a share of their median plus an allowance. A leak that is slow for ten
  minutes is over this bound in a longer run, as the bound does not grow with the time.
- `ceiling`: no sample is over what the settings allow.
- `at rest`: as many after all faults, when all is applied, as there were before the first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from tests.soak.sampling import ProcessSample, StoreSample

WARM_UP_SHARE = 1 / 3
"""The share of a process's life that is not judged: caches and pools fill."""

JUDGED_MIN_S = 180.0
"""Seconds after the warm-up that samples have to cover; a process that lived for less is not judged by its slope."""

FLOOR_S = 30.0
"""Seconds of samples of which the least counts."""

POINTS_MAX = 200
"""Points of a series that are compared in pairs; of longer ones every so many are taken."""

MIB = 1 << 20
SHARE = 0.10
ALLOWANCES = {"memory_bytes": 32.0 * MIB, "handles": 16.0, "threads": 32.0}
"""What may come besides: pools of threads that fill only by and by have bounds, and are larger than a warm-up shows."""

JVM_BEYOND_HEAP_BYTES = 768.0 * MIB
"""What a JVM may take beside its heap: classes, code, threads, Arrow's buffers."""

JVM_THREADS_MAX = 800.0
"""Threads of a node's JVM. Spark's pools go up and down with what is at work, by a hundred and more within a minute, so
that a slope says nothing of them: between 200 and 600 were seen with 5,000 jobs."""

LOG_FILES_BEYOND = 50
"""Commits that may come to the job log between the one that makes a compaction due and the compaction."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was judged, by which criterion, and how it came out."""

    what: str
    criterion: str
    found: float
    bound: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.found <= self.bound


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of (x, y); 0 where there are fewer than two."""
    some = points[:: max(1, len(points) // POINTS_MAX)]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(some, 2) if x2 > x1]
    return median(slopes) if slopes else 0.0


def judge_slope(what: str, points: Sequence[tuple[float, float]], allowance: float, unit: str) -> Verdict | None:
    """Return the verdict by `slope`; None where there are too few after the warm-up."""
    begin_s, end_s = points[0][0], points[-1][0]
    judged = [each for each in points if each[0] >= begin_s + WARM_UP_SHARE * (end_s - begin_s)]
    if not judged or judged[-1][0] - judged[0][0] < JUDGED_MIN_S:
        return None
    lowest = floor(judged)
    grown = slope(lowest) * (lowest[-1][0] - lowest[0][0])
    return Verdict(what, "slope", grown, SHARE * median(y for _, y in lowest) + allowance, unit)


def floor(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the least of (x, y) in each FLOOR_S, in the order of x."""
    spans = itertools.groupby(points, key=lambda point: int((point[0] - points[0][0]) // FLOOR_S))
    return [min(each, key=lambda point: point[1]) for _, each in spans]


def judge_processes(samples: Sequence[ProcessSample], heap_bytes: float) -> list[Verdict]:
    """Judge each process by itself: one that was started again is another one."""
    found = []
    for (role, whose, pid), each in _by_process(samples):
        name = f"{whose} ({role} {pid})" if role != whose else role
        if role == "jvm":
            most = max(one.memory_bytes for one in each)
            found.append(Verdict(f"memory of {name}", "ceiling", most, heap_bytes + JVM_BEYOND_HEAP_BYTES, "bytes"))
            threads = max(one.threads for one in each)
            found.append(Verdict(f"threads of {name}", "ceiling", threads, JVM_THREADS_MAX, ""))
        for quantity, allowance in ALLOWANCES.items():
            if role == "jvm" and quantity != "handles":
                continue  # a heap grows up to what it may be, whether it needs it or not; its threads come and go
            points = [(one.at_s, float(getattr(one, quantity))) for one in each]
            what, unit = quantity.removesuffix("_bytes"), "bytes" if quantity.endswith("bytes") else ""
            verdict = judge_slope(f"{what} of {name}", points, allowance, unit)
            if verdict is not None:
                found.append(verdict)
    return found


def _by_process(
    samples: Sequence[ProcessSample],
) -> Iterable[tuple[tuple[str, str, int], list[ProcessSample]]]:
    key: Callable[[ProcessSample], tuple[str, str, int]] = lambda each: (each.role, each.whose, each.pid)  # noqa: E731
    for name, group in itertools.groupby(sorted(samples, key=lambda each: (key(each), each.at_s)), key=key):
        yield name, list(group)


def judge_stores(
    stores: Sequence[StoreSample], keys_before: int, keys_after: int, compact_commits: int
) -> list[Verdict]:
    """Judge etcd and the job log; each commit of that is a file until the next compaction."""
    files = max((each.log_files for each in stores), default=0)
    return [
        Verdict("keys in etcd", "at rest", keys_after, keys_before, ""),
        Verdict("files of the job log", "ceiling", files, compact_commits + LOG_FILES_BEYOND, ""),
    ]
