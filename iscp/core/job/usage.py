"""The cost of one job's part in one iteration: the time of its parts, what it read and wrote, what stood in its way.

It also says why the job needed Spark, where that starts only when something needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from iscp.core.values.untrusted_values import Check, exact_fields, exact_float, exact_int

SECONDS_MOST = 366 * 86_400.0
"""The longest time that a part of an iteration may take in a report (seconds); a report of more is refused."""


FIGURE_PREFIX = "usage."
"""The prefix of a usage's figures where they stand among the seconds of an iteration's parts."""


class UsagePart(StrEnum):
    """A part of an iteration; `Usage` has the seconds of each under this name and `_s`."""

    WAIT = "wait"
    READ = "read"
    COMPUTE = "compute"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one job's part in one iteration; a count is 0 where there was nothing, or nobody has counted it.

    `wait_s`: seconds from when the iteration was due, or its source's change was notified, until it began, and those
    within it in which the iteration's other jobs worked, and this one did not. The others are disjoint spans of the
    job's own work, from its beginning to its commit, or to its failure, in all attempts.
    `read_s`: until logs, changes and rows of its tables, and the position of its target, were read; a read that several
    jobs share counts for each. `commit_s`: in the target's transaction, which writes the rows' files and the commit;
    what Spark reads and computes only when the transaction requests the rows is in it. `compute_s`: all else, which is
    the kind's own work, and the writing of rows that are staged before the transaction.

    `rows_read` and `bytes_read`: rows, and bytes of the files, of the changes or snapshots of its tables.
    `rows_written`: rows put, changed or taken out. `bytes_written`: bytes of the files that its commit has
    added, and of those that were added to the state beside a view.
    `retries`: failures in a row before this iteration. `conflicts`: how often another writer won its `seq` in it.
    """

    wait_s: float = 0.0
    read_s: float = 0.0
    compute_s: float = 0.0
    commit_s: float = 0.0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0
    conflicts: int = 0

    @property
    def work_s(self) -> float:
        """Return for how long the job's part ran, in seconds; it did not wait then."""
        return self.read_s + self.compute_s + self.commit_s

    def seconds(self) -> dict[UsagePart, float]:
        """Return the seconds of each part, in the order in which they begin."""
        return {
            UsagePart.WAIT: self.wait_s,
            UsagePart.READ: self.read_s,
            UsagePart.COMPUTE: self.compute_s,
            UsagePart.COMMIT: self.commit_s,
        }


def _exact_seconds(value: object, name: str) -> float:
    return exact_float(value, name, 0.0, SECONDS_MOST)


_USAGE: Mapping[str, Check] = {
    "wait_s": _exact_seconds,
    "read_s": _exact_seconds,
    "compute_s": _exact_seconds,
    "commit_s": _exact_seconds,
    "rows_read": exact_int,
    "rows_written": exact_int,
    "bytes_read": exact_int,
    "bytes_written": exact_int,
    "retries": exact_int,
    "conflicts": exact_int,
}
_exact_values = exact_fields(Usage, _USAGE)


def exact_usage(value: object, name: str = "usage") -> Usage | None:
    """Return a usage that may be stored, or None where there is none. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, Usage):
        raise ValueError(f"{name} is no Usage")
    return _exact_values(value)


def figures_of(usage: Usage | None) -> dict[str, float]:
    """Return the figures of a usage by their names with FIGURE_PREFIX: those that are not 0, and always `wait_s`."""
    given = {} if usage is None else asdict(usage)
    return {f"{FIGURE_PREFIX}{name}": value for name, value in given.items() if value or name == "wait_s"}


def split_figures(figures: Mapping[str, Any]) -> tuple[dict[str, Any], Usage | None]:
    """Return figures without those that `figures_of` has made, and the usage that these are of.

    There is no usage where there are none, or where they cannot be of one. Those that only a later release knows are
    left out.
    """
    others = {name: value for name, value in figures.items() if not name.startswith(FIGURE_PREFIX)}
    if len(others) == len(figures):
        return others, None
    given = {name: figures[f"{FIGURE_PREFIX}{name}"] for name in _USAGE if f"{FIGURE_PREFIX}{name}" in figures}
    try:
        return others, exact_usage(Usage(**given))
    except ValueError:
        return others, None


REASONS_MAX = 4
"""Reasons that are kept of one job's work; further ones are left out, as the first of them made it wait."""

UNNAMED = "a read or a write by Spark"
"""The reason where nobody has said a better one."""


@dataclass(frozen=True, slots=True)
class SparkNeed:
    """A job's work needed Spark for these `reasons`, in the order in which they came up, each once.

    They are empty where Spark was used, and nobody has said what for. `started`: this work found no Spark, and started
    it.
    """

    reasons: tuple[str, ...] = ()
    started: bool = False

    def and_for(self, reason: str) -> SparkNeed:
        """Return the need with one more reason; an empty one adds nothing."""
        if not reason or reason in self.reasons or len(self.reasons) >= REASONS_MAX:
            return self
        return replace(self, reasons=(*self.reasons, reason))

    def __str__(self) -> str:
        return "; ".join(self.reasons) or UNNAMED


def joined_needs(first: SparkNeed | None, second: SparkNeed | None) -> SparkNeed | None:
    """Return the need of two parts of one job's work, of which either may have needed no Spark."""
    if first is None or second is None:
        return first or second
    for reason in second.reasons:
        first = first.and_for(reason)
    return replace(first, started=first.started or second.started)
