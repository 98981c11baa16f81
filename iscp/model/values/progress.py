"""Measure how far a running iteration has come, and what follows from that; without a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from iscp.model.values.untrusted_values import COUNT_MOST, exact_int

UNKNOWN = -1
"""A count, a rate or a time for which there is no basis."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of one stage of the engine; `began_at_s` is Unix time, 0 where it has not begun."""

    tasks: int = 0
    tasks_done: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    began_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a version of a table in its files; `rows` is UNKNOWN where they do not say."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotSize(TableSize):
    """A snapshot's size. `pieces` are its files, and the parts in which very large ones are read; UNKNOWN where nobody
    has counted.
    """

    pieces: int


NOTHING = TableSize(0, 0)
UNCOUNTED = TableSize(UNKNOWN, UNKNOWN)
UNSIZED = SnapshotSize(UNKNOWN, UNKNOWN, UNKNOWN)


def total_size(sizes: Iterable[TableSize]) -> TableSize:
    """Return the sum; a number that is UNKNOWN of one of them is UNKNOWN in it."""
    each = tuple(sizes)
    return TableSize(int(_sum_known([one.rows for one in each])), int(_sum_known([one.bytes for one in each])))


@dataclass(frozen=True, slots=True)
class RunProgress:
    """An iteration while it runs; `purpose` is `apply`, `verify` or `repair`, times and spans are seconds.

    `tasks` are the engine's that are known so far: an iteration is several of its jobs, each planned when its turn
    comes. `rows_read` and `bytes_read` are all that it has read, the source more than once where it has to, and the
    target; `rows_written` and `bytes_written` what it has written, or handed to a custom consumer. UNKNOWN (-1):
    `rows_total`, where it is not a snapshot of all rows; `bytes_total` (of the source's files that are to be read),
    where the source is read by comparison; the rates (of what is read, since the start) and `left_s`, where they have
    no basis.
    """

    purpose: str
    started_at_s: float
    elapsed_s: float
    tasks: int = 0
    tasks_done: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    rows_total: int = UNKNOWN
    bytes_total: int = UNKNOWN
    rows_per_s: float = UNKNOWN
    bytes_per_s: float = UNKNOWN
    left_s: float = UNKNOWN


def measured(begun: RunProgress, at_s: float, stages: Sequence[StageWork], consumed: int) -> RunProgress:
    """Return the progress, with what is measured now added to `begun`.

    `at_s` is Unix time as of now; `consumed` rows went to a custom consumer.
    """
    counts = {name: min(sum(getattr(each, name) for each in stages), COUNT_MOST) for name in _COUNTS}
    counts["rows_written"] = min(counts["rows_written"] + consumed, COUNT_MOST)
    writing = [each.began_at_s for each in stages if each.rows_written and each.began_at_s]
    span_s = at_s - min(writing) if writing and not consumed else begun.elapsed_s
    return RunProgress(
        begun.purpose,
        begun.started_at_s,
        begun.elapsed_s,
        **counts,
        rows_total=begun.rows_total,
        bytes_total=begun.bytes_total,
        rows_per_s=rate(counts["rows_read"], begun.elapsed_s),
        bytes_per_s=rate(counts["bytes_read"], begun.elapsed_s),
        left_s=time_left_s(counts["rows_written"], begun.rows_total, span_s),
    )


def rate(done: int, span_s: float) -> float:
    """Return how much is done per second, UNKNOWN if nothing is done yet, or no time has passed."""
    if done <= 0 or not span_s > 0:
        return UNKNOWN
    found = done / span_s
    return found if isfinite(found) and found <= COUNT_MOST else UNKNOWN


def time_left_s(done: int, total: int, span_s: float) -> float:
    """Return the seconds left of `total` at the pace of the last `span_s`.

    The result is UNKNOWN without a pace, or if more is done.
    """
    per_s = rate(done, span_s)
    if per_s <= 0 or total < done:
        return UNKNOWN
    left_s = (total - done) / per_s
    return left_s if left_s <= LEFT_MOST_S else UNKNOWN


LEFT_MOST_S = 366 * 86_400.0
"""The longest time that is estimated to be left of an iteration; a longer one is not known."""


def combined_progress(parts: Sequence[RunProgress]) -> RunProgress | None:
    """Return the sums for a job on a split table, whose ranges run side by side, or None if none runs.

    A sum is UNKNOWN if a part of it is.
    """
    if len(parts) <= 1:
        return parts[0] if parts else None
    sums = {name: sum(getattr(each, name) for each in parts) for name in _COUNTS}
    return RunProgress(
        parts[0].purpose,
        min(each.started_at_s for each in parts),
        max(each.elapsed_s for each in parts),
        **sums,
        rows_total=int(_sum_known([each.rows_total for each in parts])),
        bytes_total=int(_sum_known([each.bytes_total for each in parts])),
        rows_per_s=_sum_known([each.rows_per_s for each in parts]),
        bytes_per_s=_sum_known([each.bytes_per_s for each in parts]),
        left_s=UNKNOWN if any(each.left_s < 0 for each in parts) else max(each.left_s for each in parts),
    )


def _sum_known(values: Sequence[float]) -> float:
    return UNKNOWN if any(each < 0 for each in values) else sum(values)


_COUNTS = ("tasks", "tasks_done", "rows_read", "bytes_read", "rows_written", "bytes_written")


def count_or_unknown(value: object, name: str) -> int:
    """Return a count, or UNKNOWN; raise ValueError for anything else."""
    return exact_int(value, name, UNKNOWN)
