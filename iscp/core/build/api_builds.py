"""The values behind the answers of `Builds`, which users and operators are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from iscp.core.values.progress import UNKNOWN


class BuildStage(StrEnum):
    """The stage of a build: `waiting` for its table's turn, `building` while nodes stage ranges, `publishing` while all
    is staged but not visible yet.
    """

    WAITING = "waiting"
    BUILDING = "building"
    PUBLISHING = "publishing"


class TaskState(StrEnum):
    """The state of a task. `aborted` means that another task is about to take its place, at another node or of other
    ranges.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class BuildTaskView:
    """A range that is still to be built for a job; `node_id` is where it runs, or is to run."""

    range_id: int
    job_name: str
    node_id: str
    state: TaskState


@dataclass(frozen=True, slots=True)
class BuildNodeView:
    """The part of the snapshot that a node has built, on average of the jobs; UNKNOWN where it did not say."""

    node_id: str
    rows_done: int
    bytes_done: int


@dataclass(frozen=True, slots=True)
class BuildView:
    """The first snapshots of jobs of one account, of one version of their table, which are built together.

    `rows_total` and `bytes_total` are the snapshot's, `rows_done` and `bytes_done` how much of it is staged, on average
    of the jobs, by `nodes` too; `done_share` (0 to 1) is that of its bytes, or of its ranges where bytes are not
    counted. `began_at_s` is Unix time, 0 while it waits; where an owner took the build over, it is the time at which it
    did. The rates count the rows and bytes since then. UNKNOWN (-1) stands for what has no basis. `tasks` are the
    unfinished ones.
    """

    table: str
    table_id: str
    account: str
    jobs: tuple[str, ...]
    version: int
    state: BuildStage
    began_at_s: float = 0.0
    rows_total: int = UNKNOWN
    bytes_total: int = UNKNOWN
    done_share: float = 0.0
    rows_per_s: float = UNKNOWN
    bytes_per_s: float = UNKNOWN
    left_s: float = UNKNOWN
    tasks: tuple[BuildTaskView, ...] = ()
    rows_done: int = UNKNOWN
    bytes_done: int = UNKNOWN
    nodes: tuple[BuildNodeView, ...] = ()


def counts_by_node(tasks: Iterable[BuildTaskView]) -> dict[str, Counter[TaskState]]:
    """Return how many tasks of each state a node has, for nodes that have any, by their names."""
    counts: dict[str, Counter[TaskState]] = {}
    for task in tasks:
        counts.setdefault(task.node_id, Counter())[task.state] += 1
    return dict(sorted(counts.items()))


def counts_by_state(tasks: Iterable[BuildTaskView]) -> Counter[TaskState]:
    return Counter(task.state for task in tasks)
