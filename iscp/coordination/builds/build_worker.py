"""The node's side of builds, which works on the tasks that an owner names, and remembers what it has finished.

The worker follows the tasks in etcd, and is called by the owner (after ScyllaDB's view building worker). Rules:

- Only what etcd has as a task of this node is worked on; one that is aborted or deleted is neither worked on nor
  reported as finished, however far it was.
- One batch a range at a time: tasks of one type, table, range and `BuildPlan.reading`, read once.
- Commits are staged beside that, because the source may delete the ones that wait, and one task of a table at a time.
- A finished task is remembered until the owner has deleted it, so that the next owner is answered at once.
- Once an owner was heard, no earlier one is obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from iscp.coordination.builds.build_state import (
    BuildPlace,
    BuildState,
    Change,
    CountDone,
    PutStaging,
    PutTask,
    place_of,
)
from iscp.coordination.builds.worker_events import (
    AnswerWork,
    BatchEnded,
    BuildWorkerEffect,
    BuildWorkerEvent,
    CancelBatch,
    RefuseWork,
    RunBatch,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
)
from iscp.core.build.build_task import BuildTask, RangeBatch, StagingBatch, StagingTask, TaskType
from iscp.core.values.errors import NotOwner
from iscp.core.values.progress import TableSize

RANGES_AT_ONCE_MAX = 2
"""Ranges that a node builds at a time; the others wait for one to end."""

STAGING_AT_ONCE_MAX = 1
"""Tables of which a node keeps commits at a time, beside its ranges; the others wait for one to end."""

CANCELED_MAX = 4
"""Batches that were cancelled and have not stopped beside which a node begins others; with more of them it waits."""

FINISHED_MAX = 100_000
"""Finished tasks that a node remembers until they are deleted; the oldest is forgotten for one more, and is worked on
again when it is requested again, which finds everything staged.
"""


@dataclass(slots=True)
class WaitingCall:
    """A call that waits. `seen`: those of its tasks that were there; what was there and is gone is not waited for."""

    request: WorkRequested
    seen: set[str] = field(default_factory=set)


@dataclass(slots=True)
class RunningBatch:
    place: BuildPlace
    task_ids: tuple[str, ...]
    canceled: bool = False


class BuildWorker:
    """Feed it events in order; carry out the effects in order. `state` has this node's tasks alone, and all plans."""

    def __init__(self, node_id: str, ranges_at_once: int = RANGES_AT_ONCE_MAX) -> None:
        self.node_id = node_id
        self.owner_rev = 0
        self.state = BuildState()
        self.finished: dict[str, TableSize] = {}
        self.batches: dict[int, RunningBatch] = {}
        self._ranges_at_once = ranges_at_once
        self._waiting: dict[int, WaitingCall] = {}
        self._number = 0
        self._out: list[BuildWorkerEffect] = []

    def step(self, event: BuildWorkerEvent) -> list[BuildWorkerEffect]:
        """Take one event in; the effects it has."""
        self._out = []
        match event:
            case TasksRead(changes):
                self.state = BuildState()
                self._follow(changes)
            case TasksChanged(changes):
                self._follow(changes)
            case WorkRequested():
                self._take_request(event)
            case WaitEnded(number):
                self._waiting.pop(number, None)
            case BatchEnded():
                self._end_batch(event)
            case _:
                assert_never(event)
        self._answer()
        self._start()
        return self._out

    # --- what comes in -----------------------------------------------------------------------------------------

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if self._concerns(change):
                self.state.apply(change)
        self.finished = {task_id: size for task_id, size in self.finished.items() if self._is_live(task_id)}
        for number, batch in self.batches.items():
            if not batch.canceled and not any(map(self._is_live, batch.task_ids)):
                batch.canceled = True
                self._out.append(CancelBatch(number))

    def _concerns(self, change: Change) -> bool:
        if isinstance(change, PutTask | PutStaging):
            return change.task.node_id == self.node_id
        return not isinstance(change, CountDone)

    def _is_live(self, task_id: str) -> bool:
        return self.state.is_live(task_id)

    def _take_request(self, request: WorkRequested) -> None:
        if self._is_stale(request):
            self._refuse(request.number, f"term {request.owner_rev} has ended: {self.owner_rev} has been heard")
            return
        self.owner_rev = request.owner_rev
        for number, waiting in list(self._waiting.items()):
            if self._is_stale(waiting.request):
                del self._waiting[number]
                self._refuse(number, f"term {self.owner_rev} has begun")
        self._waiting[request.number] = WaitingCall(request)

    def _is_stale(self, request: WorkRequested) -> bool:
        return request.owner_rev < self.owner_rev

    def _refuse(self, number: int, why: str) -> None:
        self._out.append(RefuseWork(number, NotOwner(why)))

    def _end_batch(self, event: BatchEnded) -> None:
        batch = self.batches.pop(event.number)
        if event.fault is None:
            self.finished.update(dict.fromkeys(filter(self._is_live, batch.task_ids), event.size))
            while len(self.finished) > FINISHED_MAX:
                del self.finished[next(iter(self.finished))]
            return
        for number, waiting in list(self._waiting.items()):
            if not batch.canceled and not set(batch.task_ids).isdisjoint(waiting.request.task_ids):
                del self._waiting[number]
                self._out.append(RefuseWork(number, event.fault))

    # --- what follows ------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        for number, waiting in list(self._waiting.items()):
            task_ids = waiting.request.task_ids
            waiting.seen.update(filter(self._is_live, task_ids))
            if all(task_id in self.finished or self._is_over(task_id, waiting) for task_id in task_ids):
                del self._waiting[number]
                finished = {each: self.finished[each] for each in task_ids if each in self.finished}
                self._out.append(AnswerWork(number, finished))

    def _is_over(self, task_id: str, waiting: WaitingCall) -> bool:
        """Return whether the task was aborted or deleted. One that was never there may only not have arrived yet."""
        return task_id in self.state.aborted or (task_id in waiting.seen and not self._is_live(task_id))

    def _start(self) -> None:
        for waiting in self._waiting.values():
            for task_id in waiting.request.task_ids:
                if (task := self.state.staging.get(task_id)) is not None and self._may_keep(task):
                    self._keep(task)
            if self._running(TaskType.BUILD_RANGE) >= self._ranges_at_once:
                continue
            if tasks := list(self._startable(waiting.request)):
                self._run(tasks)

    def _running(self, kind: TaskType) -> int:
        """Return how many batches count as running. A canceled one ends soon, or hangs: no other range is to wait for
        it.
        """
        canceled = [batch.canceled for batch in self.batches.values() if batch.place.task_type is kind]
        return len(canceled) - min(sum(canceled), CANCELED_MAX)

    def _may_keep(self, task: StagingTask) -> bool:
        over = task.task_id in self.finished or self._is_busy(place_of(task))
        return not over and self._running(TaskType.PROCESS_STAGING) < STAGING_AT_ONCE_MAX

    def _keep(self, task: StagingTask) -> None:
        self._number += 1
        self.batches[self._number] = RunningBatch(place_of(task), (task.task_id,))
        plans = tuple(plan for plan in self.state.plans.values() if plan.table_id == task.table_id)
        self._out.append(RunBatch(self._number, StagingBatch(task, plans)))

    def _startable(self, request: WorkRequested) -> Iterator[BuildTask]:
        """Return tasks of the request that may be read together now."""
        first: tuple[BuildPlace, tuple[int, int]] | None = None
        for task_id in request.task_ids:
            task = self.state.live.get(task_id)
            plan = self.state.plans.get(task.job_id) if task is not None else None
            if task is None or plan is None or task_id in self.finished or task.range_id != request.range_id:
                continue
            kind = place_of(task), plan.reading
            if not self._is_busy(kind[0]) and (first is None or first == kind):
                first = kind
                yield task

    def _is_busy(self, place: BuildPlace) -> bool:
        return any(batch.place == place for batch in self.batches.values())

    def _run(self, tasks: Sequence[BuildTask]) -> None:
        self._number += 1
        self.batches[self._number] = RunningBatch(place_of(tasks[0]), tuple(task.task_id for task in tasks))
        plans = {task.job_id: self.state.plans[task.job_id] for task in tasks}
        self._out.append(RunBatch(self._number, RangeBatch(tasks[0].range_id, tuple(plans.values()))))
