"""Replace tasks by others: at another node, or for other ranges.

Two steps, each a transaction: first the tasks are aborted, then others replace them, under ids of their own. Tasks of
the first step, by an owner that has ended or whose second step failed, become copies of what they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from iscp.coordination.builds.build_state import BuildState, Change, DeleteTask, PutTask
from iscp.core.build.build_task import DEPTH_MAX, BuildTask, depth
from iscp.core.rows.range_tree import children
from iscp.core.values.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Replacement:
    """One job's tasks that are replaced together, and the ranges of those that follow.

    Invariant: both are exactly the same part of the snapshot.
    """

    job_id: str
    task_ids: tuple[str, ...]
    range_ids: tuple[int, ...]


class Replacements:
    """Replacements under way: `aborting` wait for their first step, `begun` has the tasks that have taken it, for the
    second.
    """

    def __init__(self) -> None:
        self.aborting: deque[Replacement] = deque()
        self.begun: dict[str, Replacement] = {}

    def clear(self) -> None:
        self.aborting.clear()
        self.begun.clear()

    def move(self, tasks: Iterator[BuildTask]) -> None:
        self.aborting.extend(Replacement(task.job_id, (task.task_id,), (task.range_id,)) for task in tasks)

    def split(self, state: BuildState, finished: Container[str], table_id: str, range_id: int) -> None:
        """Raises InvalidRequest where nothing is to be built of the range, or it cannot be cut."""
        if depth(_checked(range_id)) >= DEPTH_MAX:
            raise InvalidRequest(
                f"is {range_id}, which was cut {DEPTH_MAX} times already", field="range_id", remedy="Split another one"
            )
        open_tasks = [task for task in state.of_range(table_id, range_id) if task.task_id not in finished]
        if not open_tasks:
            raise _nothing_to_do(range_id)
        halves = children(range_id)
        self._put_first([Replacement(task.job_id, (task.task_id,), halves) for task in open_tasks])

    def merge(self, state: BuildState, finished: Container[str], table_id: str, range_id: int) -> None:
        """Merge two halves for each job that still has both to build. Raises InvalidRequest if there is none."""
        if depth(_checked(range_id)) >= DEPTH_MAX:
            raise InvalidRequest(f"is {range_id}, which has no halves", field="range_id", remedy="Merge another one")
        left, right = (
            {task.job_id: task for task in state.of_range(table_id, half) if task.task_id not in finished}
            for half in children(range_id)
        )
        if not left.keys() & right.keys():
            raise _nothing_to_do(range_id)
        both = [(job_id, task.task_id, right[job_id].task_id) for job_id, task in left.items() if job_id in right]
        self._put_first([Replacement(job_id, (one, other), (range_id,)) for job_id, one, other in both])

    def _put_first(self, requested: Sequence[Replacement]) -> None:
        """Put replacements before moves of the same tasks: what replaces the tasks is put where it should be anyway."""
        self.aborting.extendleft(reversed(requested))

    def abort_groups(self, state: BuildState, finished: Container[str]) -> Iterator[Sequence[Change]]:
        """Return the first step of those that wait; what is finished, replaced or gone meanwhile is left as it is.

        A task may wait more than once, as when nodes come and go faster than etcd answers, and etcd refuses a
        transaction that writes a key twice.
        """
        while self.aborting:
            each = self.aborting.popleft()
            tasks = [state.live[task_id] for task_id in each.task_ids if task_id in state.live]
            over = any(task_id in finished or task_id in self.begun for task_id in each.task_ids)
            if len(tasks) == len(each.task_ids) and not over:
                self.begun.update(dict.fromkeys(each.task_ids, each))
                yield [PutTask(task._replace(aborted=True)) for task in tasks]

    def successor_groups(
        self,
        state: BuildState,
        next_id: Callable[[], str],
        node_of: Callable[[BuildTask], str],
        node_of_copy: Callable[[BuildTask], str],
    ) -> Iterator[Sequence[Change]]:
        """Return the second step of all that have taken the first one; a copy stands for whom nobody knows what was to
        be.
        """
        done: set[str] = set()
        for task in list(state.aborted.values()):
            if task.task_id in done:
                continue
            each = self.begun.get(task.task_id)
            place = node_of if each else node_of_copy
            each = each or Replacement(task.job_id, (task.task_id,), (task.range_id,))
            done.update(each.task_ids)
            new = [task._replace(task_id=next_id(), range_id=range_id, aborted=False) for range_id in each.range_ids]
            yield [
                *(DeleteTask(task.job_id, task_id) for task_id in each.task_ids),
                *(PutTask(successor._replace(node_id=place(successor))) for successor in new),
            ]

    def forget(self, aborted: Container[str]) -> None:
        """Forget all but those that have taken the first step and not the second."""
        self.begun = {task_id: each for task_id, each in self.begun.items() if task_id in aborted}


def to_move(
    state: BuildState,
    finished: Container[str],
    stays: Callable[[BuildTask], bool],
    target: Callable[[BuildTask], str],
) -> Iterator[BuildTask]:
    """Return tasks that are not where they should be, but for those that may stay."""
    for task in state.live.values():
        if task.task_id not in finished and target(task) not in ("", task.node_id) and not stays(task):
            yield task


def _checked(range_id: int) -> int:
    try:
        depth(range_id)
    except ValueError as error:
        raise InvalidRequest(str(error), about="range_id") from error
    return range_id


def _nothing_to_do(range_id: int) -> InvalidRequest:
    return InvalidRequest(
        f"is {range_id}, of which no task is waiting or in work in one piece",
        field="range_id",
        remedy="See which ranges the build still has",
    )
