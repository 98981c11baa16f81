"""The bounds of one iteration, and the steps into which it cuts a commit that is larger than that."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from iscp.adapters.delta.log.commits import Commit
from iscp.core.job.iteration import Bounds

STEPS_MAX = 1_000
"""Steps that one commit is cut into at most; then a step exceeds the bounds of an iteration."""


def within(bounds: Bounds, commits: Iterable[Commit], alone: bool) -> list[Commit]:
    """Return the first of `commits`, and those that fit in with it."""
    taken: list[Commit] = []
    rows = size = 0
    for commit in commits:
        rows, size = rows + (commit.rows_added or 0), size + commit.bytes
        over = rows > bounds.rows_max or size > bounds.bytes_max or len(taken) >= bounds.versions_max
        if taken and (over or alone):
            break
        taken.append(commit)
    return taken


def find_unclear_version(commits: Iterable[Commit], partitions: tuple[str, ...] | None) -> tuple[int, str] | None:
    """Return the first version whose actions do not show its changes, and why; None: all do.

    `partitions` are the table's partition columns before; None: no commit changes them. Where they change, files that
    are removed have their partitions' values under columns that the table has in its files now, or the other way round.
    """
    for commit in commits:
        if commit.unclear:
            return commit.version, commit.unclear
        if partitions is not None and commit.metadata_id is not None and commit.partitions != partitions:
            return commit.version, "the table is partitioned in another way than before"
    return None


def steps_of(commit: Commit, bounds: Bounds) -> int:
    """Return into how many steps one commit is to be cut; 0: it is small enough as a whole."""
    steps = max(ceil((commit.rows_added or 0) / bounds.rows_max), ceil(commit.bytes / bounds.bytes_max))
    return min(steps, STEPS_MAX) if steps > 1 else 0
