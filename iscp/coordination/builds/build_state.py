"""The state of builds that etcd stores, and the changes to it, which the owner, the nodes and their store share.

A change is never applied before it is written: a `BuildState` is what etcd has, or had a moment before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from iscp.core.build.build_task import BuildPlan, BuildTask, RetainedSpan, StagingTask, TaskType
from iscp.core.rows.range_tree import WHOLE
from iscp.core.values.ids import ShardId
from iscp.core.values.progress import TableSize


class BuildPlace(NamedTuple):
    """A `BuildPlace` is what may be in one batch: a range of a table at a node, for one type of tasks.

    Plans there that do not agree in `BuildPlan.reading` are in batches of their own.
    """

    node_id: str
    table_id: str
    range_id: int
    task_type: TaskType = TaskType.BUILD_RANGE


def range_name(table_id: str, range_id: int) -> ShardId:
    """Return the name by which the ring gives a range of a build its preferred node; no shard that is tailed has it."""
    return ShardId(f"{table_id}/build", range_id)


def place_of(task: BuildTask | StagingTask) -> BuildPlace:
    if isinstance(task, StagingTask):
        return BuildPlace(task.node_id, task.table_id, WHOLE, TaskType.PROCESS_STAGING)
    return BuildPlace(task.node_id, task.table_id, task.range_id, task.task_type)


@dataclass(frozen=True, slots=True)
class PutTask:
    """A new task, or one that is aborted from now on."""

    task: BuildTask


@dataclass(frozen=True, slots=True)
class DeleteTask:
    """Delete a task that is finished, or that others replace."""

    job_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class CountDone:
    """Count what a node has built for a job by now; it is written with the removal of the tasks that are counted."""

    job_id: str
    node_id: str
    size: TableSize


@dataclass(frozen=True, slots=True)
class PutPlan:
    """All tasks of the job are there: they may be worked on."""

    plan: BuildPlan


@dataclass(frozen=True, slots=True)
class DropBuild:
    """The job's plan and all of its tasks are gone, and what was counted of them."""

    job_id: str


@dataclass(frozen=True, slots=True)
class MarkBuilt:
    """No task of the job is left; its plan is gone."""

    job_id: str
    version: int


@dataclass(frozen=True, slots=True)
class ForgetBuilt:
    job_id: str


@dataclass(frozen=True, slots=True)
class BeginTable:
    table_id: str


@dataclass(frozen=True, slots=True)
class EndTable:
    table_id: str


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Set a table's priority. Each table begins with 0, which is not stored."""

    table_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class PutStaging:
    task: StagingTask


@dataclass(frozen=True, slots=True)
class DeleteStaging:
    """Delete a task of that type that is finished, that nobody needs any more, or that another replaces."""

    table_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class PutRetained:
    span: RetainedSpan


@dataclass(frozen=True, slots=True)
class DeleteRetained:
    """Record that no commit of the table is retained any more."""

    table_id: str


ChangeOfTable = BeginTable | EndTable | SetPriority | PutStaging | DeleteStaging | PutRetained | DeleteRetained
Change = PutTask | DeleteTask | CountDone | PutPlan | DropBuild | MarkBuilt | ForgetBuilt | ChangeOfTable


def writes_of(change: Change) -> int:
    """Operations of etcd that the change is."""
    match change:
        case DropBuild():
            return 3
        case MarkBuilt():
            return 2
    return 1


@dataclass(slots=True)
class BuildState:
    """The builds' plans, tasks and counts: `places` has the tasks that are not aborted, by node, and `jobs` all of
    them. `built` maps jobs to versions.

    `done` has what the finished tasks had of the source, by job and node. `staging` has the tasks of that type, by id;
    `retained` has the commits that are retained, by table, and has an entry for each table with such a task.

    Invariant: the tasks of a job with a plan, aborted ones included, and what is finished tile its snapshot exactly.
    """

    plans: dict[str, BuildPlan] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)
    built: dict[str, int] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    done: dict[str, dict[str, TableSize]] = field(default_factory=dict)
    jobs: dict[str, dict[str, BuildTask]] = field(default_factory=dict)
    live: dict[str, BuildTask] = field(default_factory=dict)
    aborted: dict[str, BuildTask] = field(default_factory=dict)
    places: dict[str, dict[BuildPlace, dict[str, BuildTask]]] = field(default_factory=dict)
    staging: dict[str, StagingTask] = field(default_factory=dict)
    retained: dict[str, RetainedSpan] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[Change]) -> BuildState:
        state = cls()
        for change in changes:
            state.apply(change)
        return state

    def apply(self, change: Change) -> None:
        match change:
            case PutTask(task):
                self._remove(task.job_id, task.task_id)
                self._add(task)
            case DeleteTask(job_id, task_id):
                self._remove(job_id, task_id)
            case CountDone(job_id, node_id, size):
                self.done.setdefault(job_id, {})[node_id] = size
            case PutPlan(plan):
                self.plans[plan.job_id] = plan
            case DropBuild(job_id):
                self.plans.pop(job_id, None)
                self.done.pop(job_id, None)
                for task_id in list(self.jobs.get(job_id, ())):
                    self._remove(job_id, task_id)
            case MarkBuilt(job_id, version):
                self.plans.pop(job_id, None)
                self.built[job_id] = version
            case ForgetBuilt(job_id):
                self.built.pop(job_id, None)
            case _:
                self._apply_to_table(change)

    def changes(self) -> Iterator[Change]:
        """Return the changes that make this state of an empty one."""
        yield from map(BeginTable, self.tables)
        yield from (SetPriority(table_id, priority) for table_id, priority in self.priorities.items())
        yield from (MarkBuilt(job_id, version) for job_id, version in self.built.items())
        yield from map(PutPlan, self.plans.values())
        yield from (CountDone(job_id, *count) for job_id, counts in self.done.items() for count in counts.items())
        yield from (PutTask(task) for tasks in self.jobs.values() for task in tasks.values())
        yield from map(PutRetained, self.retained.values())
        yield from map(PutStaging, self.staging.values())

    @property
    def empty(self) -> bool:
        return next(self.changes(), None) is None

    def is_live(self, task_id: str) -> bool:
        """Return whether the task, of either type, exists and is not aborted."""
        return task_id in self.live or task_id in self.staging

    def is_at(self, place: BuildPlace) -> bool:
        """Return whether the place has a task that is not aborted."""
        if place.task_type is TaskType.PROCESS_STAGING:
            return any(place_of(task) == place for task in self.staging.values())
        return place in self.places.get(place.node_id, ())

    def of_range(self, table_id: str, range_id: int) -> Iterator[BuildTask]:
        """Return the table's tasks for exactly this range that are not aborted, at whichever nodes."""
        for places in self.places.values():
            for place, tasks in places.items():
                if (place.table_id, place.range_id) == (table_id, range_id):
                    yield from tasks.values()

    def _apply_to_table(self, change: ChangeOfTable) -> None:
        match change:
            case BeginTable(table_id):
                self.tables[table_id] = None
            case EndTable(table_id):
                self.tables.pop(table_id, None)
            case SetPriority(table_id, priority):
                self._set_priority(table_id, priority)
            case PutStaging(task):
                self.staging[task.task_id] = task
            case DeleteStaging(_, task_id):
                self.staging.pop(task_id, None)
            case PutRetained(span):
                self.retained[span.table_id] = span
            case DeleteRetained(table_id):
                self.retained.pop(table_id, None)
            case _:
                assert_never(change)

    def _set_priority(self, table_id: str, priority: int) -> None:
        if priority:
            self.priorities[table_id] = priority
        else:
            self.priorities.pop(table_id, None)

    def _add(self, task: BuildTask) -> None:
        self.jobs.setdefault(task.job_id, {})[task.task_id] = task
        if task.aborted:
            self.aborted[task.task_id] = task
            return
        self.live[task.task_id] = task
        self.places.setdefault(task.node_id, {}).setdefault(place_of(task), {})[task.task_id] = task

    def _remove(self, job_id: str, task_id: str) -> None:
        task = self.jobs.get(job_id, {}).pop(task_id, None)
        if task is None:
            return
        if not self.jobs[job_id]:
            del self.jobs[job_id]
        self.aborted.pop(task_id, None)
        if self.live.pop(task_id, None) is None:
            return
        places, place = self.places[task.node_id], place_of(task)
        del places[place][task_id]
        if not places[place]:
            del places[place]
        if not places:
            del self.places[task.node_id]
