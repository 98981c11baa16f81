"""Builds: the first snapshot of a table for a job, cut into tasks (after ScyllaDB's view building coordinator).

The pieces of a snapshot are its data files, and the parts of very large ones. A piece belongs to a range by the highest
bits of the CRC32 of its name, so that a range is some pieces, read once. Ranges follow a binary tree
(iscp.core.rows.range_tree), of which 1 is all of the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from iscp.core.rows.range_tree import depth_within
from iscp.core.values.progress import UNSIZED, SnapshotSize

DEPTH_MAX = 16
"""How often a snapshot may be cut: into 65,536 ranges, at 256 MiB each 16 TiB."""

PRIORITY_MAX = 1_000
"""The most urgent that a table's build can be; one more is refused, and as much below 0."""

_BITS = 32


class TaskType(StrEnum):
    """The type of a task; only tasks of one type are worked on together; more types may come."""

    BUILD_RANGE = "build_range"
    PROCESS_STAGING = "process_staging"

    __hash__ = str.__hash__


class BuildTask(NamedTuple):
    """One job's part in one range of a snapshot, from when it was created until it is finished or deleted.

    An aborted task is never revived: what is still to be done is another task, with an id of its own. `node_id` is
    where it is to run.
    """

    task_id: str
    task_type: TaskType
    aborted: bool
    table_id: str
    job_id: str
    range_id: int
    node_id: str


class StagingTask(NamedTuple):
    """Retain the change rows of the table's commits (`after`, `until`], or delete all that are retained if that is
    empty.

    It is no job's: one copy serves all jobs of the table, and applies to none. What is to be done at another node is
    another task, with an id of its own.
    """

    task_id: str
    table_id: str
    table_uri: str
    after: int
    until: int
    node_id: str

    @property
    def removes(self) -> bool:
        return self.after == self.until


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """The commits (`since`, `until`] of a table, `bytes` large, of which the change rows are retained for certain.

    There may be more of them, as long as this is written: it is deleted when they are.
    """

    table_id: str
    table_uri: str
    since: int
    until: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The terms that a job's tasks share, the same as long as its build goes on: what is read, for which job.

    `spec_json` is the job's spec. A file of more than `piece_bytes` is cut into pieces of its row groups (0: none is).
    `depth` says how often the snapshot was cut at first. `size` is the snapshot's; plans that differ in it alone are
    the same, as nodes and owners of earlier versions leave it out. `pin` is that of its BuildTerms, empty if it has
    none.
    """

    job_id: str
    account: str
    table_id: str
    job_name: str
    table_uri: str
    version: int
    spec_json: str
    piece_bytes: int
    depth: int
    size: SnapshotSize = field(default=UNSIZED, compare=False)
    pin: str = ""

    @property
    def reading(self) -> tuple[int, int]:
        """Return what decides the rows of a range: plans of a table that agree in it may be read once for all of
        them.
        """
        return self.version, self.piece_bytes


@dataclass(frozen=True, slots=True)
class RangeBatch:
    """A range that is read once for several jobs; all plans are of one table and `reading`, each of another job."""

    range_id: int
    plans: tuple[BuildPlan, ...]


@dataclass(frozen=True, slots=True)
class StagingBatch:
    """A staging task with the table's builds that go on (`plans`), for which later commits have to be retained."""

    task: StagingTask
    plans: tuple[BuildPlan, ...]


def piece_range(name: str, depth: int) -> int:
    """Return the range, of those that are cut `depth` times, that a piece belongs to."""
    return (1 << depth) + (crc32(name.encode()) >> (_BITS - depth))


def depth(range_id: int) -> int:
    """Return how often the whole was cut to get the range; raise ValueError for what is no range."""
    return depth_within(range_id, DEPTH_MAX)


def covers(range_id: int, other: int) -> bool:
    """Return whether all of `other` is in the range: it is the same, or was cut from it."""
    below = depth(other) - depth(range_id)
    return below >= 0 and other >> below == range_id
