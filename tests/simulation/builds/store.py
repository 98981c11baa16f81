"""Etcd in a world that builds (`iscp/etcd/watched_keys.py`): one transaction after the other."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.model.build.build_state import (
    BuildState,
    Change,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    DropBuild,
    EndTable,
    ForgetBuilt,
    PutTask,
    SetPriority,
)
from tests.simulation.violation import expect


def task_of(change: PutTask | DeleteTask) -> str:
    return change.task.task_id if isinstance(change, PutTask) else change.task_id


class Store:
    """etcd: one transaction at a time, each on top of the one that its writer knows, by the present owner."""

    def __init__(self) -> None:
        self.state = BuildState()
        self.head = 0
        self.term = 0
        self.log: list[tuple[Change, ...]] = []

    def admits(self, term: int, head: int) -> bool:
        return term == self.term and head == self.head

    def write(self, term: int, head: int, changes: tuple[Change, ...]) -> bool:
        if not self.admits(term, head):
            return False
        tasks = [task_of(change) for change in changes if isinstance(change, PutTask | DeleteTask)]
        expect(len(tasks) == len({*tasks}), "etcd refuses two writes of one key in a transaction: {}", changes)
        for change in changes:
            self.state.apply(change)
        self._note(changes)
        return True

    def empty(self) -> None:
        """As by somebody's hand."""
        state, self.state = self.state, BuildState()
        self._note(tuple(_undone(state)))

    def _note(self, changes: tuple[Change, ...]) -> None:
        self.head += 1
        self.log.append(changes)


def _undone(state: BuildState) -> Iterator[Change]:
    """What makes nothing of a state."""
    yield from map(DropBuild, {*state.plans, *state.jobs, *state.done})
    yield from map(ForgetBuilt, state.built)
    yield from map(EndTable, state.tables)
    yield from (SetPriority(table_id, 0) for table_id in state.priorities)
    yield from (DeleteStaging(task.table_id, task.task_id) for task in state.staging.values())
    yield from map(DeleteRetained, state.retained)
