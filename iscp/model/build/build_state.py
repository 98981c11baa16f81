"""The state of builds that etcd stores, the changes to it, and the events and effects of the machines that work by it:
the owner's builder, and the build worker of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from iscp.model.build.build_progress import share_done
from iscp.model.build.build_task import (
    RETAINED_BYTES_MAX,
    BuildPlan,
    BuildTask,
    RangeBatch,
    RetainedSpan,
    StagingBatch,
    StagingTask,
    TaskType,
)
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.model.values.ids import ShardId
from iscp.model.values.progress import NOTHING, UNCOUNTED, TableSize, total_size
from iscp.model.values.ring import Placement

# --- the stored state, and changes to it ------------------------------------------------------------------------------
# The owner, the nodes and their store share these values. A change is never applied before it is written: a
# `BuildState` is what etcd has, or had a moment before.


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


# --- counts -----------------------------------------------------------------------------------------------------------
# How much of the source the finished tasks had, and since when the owner has measured.


@dataclass(frozen=True, slots=True)
class BuildStart:
    """A `BuildStart` is when an owner began to measure a build, by its own clock, and how far the build was by then."""

    version: int
    at_s: float
    share: float = 0.0
    done: TableSize = NOTHING


class BuildStarts:
    """`by_job`: those of one term. A build that goes on when all is loaded again is measured on."""

    def __init__(self) -> None:
        self.by_job: dict[str, BuildStart] = {}

    def note_loaded(self, state: BuildState, now_s: float) -> None:
        known = self.by_job
        self.by_job = {}
        for job_id, plan in state.plans.items():
            before = known.get(job_id)
            if before is None or before.version != plan.version:
                share = share_done(state.jobs.get(job_id, {}).values())
                before = BuildStart(plan.version, now_s, share, total_size(done_by_node(state, {}, job_id).values()))
            self.by_job[job_id] = before

    def note_written(self, changes: Iterable[Change], now_s: float) -> None:
        for change in changes:
            match change:
                case PutPlan(plan):
                    self.by_job[plan.job_id] = BuildStart(plan.version, now_s)
                case DropBuild(job_id) | ForgetBuilt(job_id):
                    self.by_job.pop(job_id, None)
                case _:
                    pass


def done_by_node(state: BuildState, finished: Mapping[str, TableSize], job_id: str) -> dict[str, TableSize]:
    """Return what nodes have built for a job, by node; what is `finished`, by task, and not yet removed is included."""
    done = dict(state.done.get(job_id, {}))
    for task_id, task in state.jobs.get(job_id, {}).items():
        if task_id in finished:
            done[task.node_id] = total_size((done.get(task.node_id, NOTHING), finished[task_id]))
    return done


def removals(state: BuildState, finished: Mapping[str, TableSize], writes_max: int) -> list[Change]:
    """Return the removals of finished tasks with their counts, as many as fit into one transaction.

    Both are written together or not at all: what a task had is counted exactly once, whatever fails and whoever is the
    owner next.
    """
    deleted: list[Change] = []
    counts: dict[tuple[str, str], TableSize] = {}
    for task_id, size in finished.items():
        task = state.live[task_id]
        place = task.job_id, task.node_id
        if len(deleted) + len(counts) + 2 > writes_max:
            break
        deleted.append(DeleteTask(task.job_id, task_id))
        before = counts.get(place) or state.done.get(task.job_id, {}).get(task.node_id, NOTHING)
        counts[place] = total_size((before, size))
    return [*deleted, *(CountDone(*place, size) for place, size in counts.items())]


# --- limits of how much of builds the owner does at a time ------------------------------------------------------------

WRITES_OF_BUILDS_MAX = 100
"""Operations in one transaction of builds, as etcd refuses more than 128; the others follow in further ones."""

GROUP_WRITES_MAX = 4
"""Operations of changes that are made together or not at all: each transaction has room for so many at its end."""

REMOVE_EVERY_S = 0.2
"""Seconds for which finished tasks gather before they are removed together, so that each node's answers cost no
transaction.
"""

LOAD_RETRY_S = 1.0
"""Pause before an owner reads the tasks again that etcd did not give, or of which it does not know what was written."""

RANGE_TIMEOUT_S = 1_800.0
"""Seconds that a node has to finish a range. After them another node gets it, and its jobs are shown as failing until
one has finished it.
"""

CHECK_EVERY_S = 15.0
"""Seconds after its last transaction at which an owner reads whether etcd still has it, and again after each such read.
"""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    tables_at_once: int = 1
    """Tables that are built at a time; the others wait for their turn."""

    writes_max: int = WRITES_OF_BUILDS_MAX
    """See WRITES_OF_BUILDS_MAX."""

    retained_bytes_max: int = RETAINED_BYTES_MAX
    """See the setting `build.kept_bytes_max`."""

    check_every_s: float = CHECK_EVERY_S
    """See CHECK_EVERY_S."""

    range_timeout_s: float = RANGE_TIMEOUT_S
    """See RANGE_TIMEOUT_S."""


# --- events of the owner's builder ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuildWanted:
    """A job wants this build. That it says so again once it is built shows that it does not find all of it."""

    plan: BuildPlan


@dataclass(frozen=True, slots=True)
class BuildOver:
    """The job was dropped or paused, or has published: it wants no build, at least for now."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobsMoved:
    """Jobs on this table have moved since it was seen: how far the slowest has come is yet to be reported."""

    table_id: str


@dataclass(frozen=True, slots=True)
class NodesPlaced:
    """The nodes are placed. `staying` are those that may go on with what they have, as they are there and neither leave
    nor drain.
    """

    placement: Placement
    staying: frozenset[str]


@dataclass(frozen=True, slots=True)
class BuildsLoaded:
    """The builds were loaded from etcd; the state is the builder's own from now on."""

    number: int
    state: BuildState


@dataclass(frozen=True, slots=True)
class BuildsWritten:
    """Etcd has what was written, or, of a check, still has what was loaded or written last."""

    number: int


@dataclass(frozen=True, slots=True)
class BuildsUnknown:
    """The load, the write or the check failed, or etcd has something else.

    The written changes may be there or not, or come later.
    """

    number: int


@dataclass(frozen=True, slots=True)
class RangeAnswered:
    """A node has answered a call: these of its tasks are finished; of each, what its range has of the source."""

    number: int
    finished: Mapping[str, TableSize]


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """A call has failed, or a batch at the node."""

    number: int
    fault: str
    code: int = ErrorCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class SplitRange:
    table_id: str
    range_id: int


@dataclass(frozen=True, slots=True)
class MergeRange:
    """Put the halves of this range together."""

    table_id: str
    range_id: int


@dataclass(frozen=True, slots=True)
class Prioritize:
    table_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A `TableSeen` is what is known of a table, no earlier than the BuildOver that came before.

    `newest`: its version when it was probed (-1: it was not yet). `applied`: how far the last of its jobs that tail has
    come (None: none tails), at `table_uri`. `repair`: the newest repair that one of them had not applied (0: none).
    """

    table_id: str
    newest: int
    applied: int | None
    repair: int = 0
    table_uri: str = ""

    @property
    def repaired(self) -> bool:
        """Return whether a job that tails has not yet applied a repair."""
        return self.applied is not None and self.repair > self.applied


@dataclass(frozen=True, slots=True)
class BuildTick:
    pass


BuilderEvent = (
    BuildWanted
    | BuildOver
    | JobsMoved
    | NodesPlaced
    | BuildsLoaded
    | BuildsWritten
    | BuildsUnknown
    | RangeAnswered
    | RangeFailed
    | SplitRange
    | MergeRange
    | Prioritize
    | TableSeen
    | BuildTick
)


# --- effects of the owner's builder -----------------------------------------------------------------------------------
# Effects are carried out in their order. Writes, loads and checks are carried out one after the other: each is answered
# before the next one comes.


@dataclass(frozen=True, slots=True)
class LoadBuilds:
    number: int


@dataclass(frozen=True, slots=True)
class WriteBuilds:
    """Write changes in one transaction, which fails if another has written since the last load or write."""

    number: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class CheckBuilds:
    """Check that etcd still has what was loaded or written last."""

    number: int


@dataclass(frozen=True, slots=True)
class CallNode:
    """Have the node work on these tasks, all of one place and `BuildPlan.reading`, and wait for what it finishes."""

    number: int
    owner_rev: int
    place: BuildPlace
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CancelCall:
    number: int


@dataclass(frozen=True, slots=True)
class NotifyBuilt:
    """Nothing is left to be done for the job: it may publish."""

    plan: BuildPlan


@dataclass(frozen=True, slots=True)
class ShowFault:
    """Show in the job's status why its build does not go on; with OK it goes on again."""

    job_id: str
    code: int
    fault: str = ""


BuilderEffect = LoadBuilds | WriteBuilds | CheckBuilds | CallNode | CancelCall | NotifyBuilt | ShowFault


# --- events of a node's build worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TasksRead:
    """All that etcd has of builds, as changes of nothing; what the worker has seen before counts no more."""

    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """The tasks changed; the changes are in the order in which they were written."""

    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """An owner wants these tasks, all of one range, to be worked on, and waits; `number` names its call.

    A task that keeps commits is of the whole.
    """

    number: int
    owner_rev: int
    range_id: int
    task_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The call is over: its owner no longer waits. Work that was begun goes on."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch has ended. If `fault` is None, every part of it is durable; `size` is what its range has of the source,
    or the size of what was retained.
    """

    number: int
    fault: IscpError | None = None
    size: TableSize = UNCOUNTED


BuildWorkerEvent = TasksRead | TasksChanged | WorkRequested | WaitEnded | BatchEnded


# --- effects of a node's build worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run a batch; BatchEnded answers when it has stopped, however it ends."""

    number: int
    batch: RangeBatch | StagingBatch


@dataclass(frozen=True, slots=True)
class CancelBatch:
    number: int


@dataclass(frozen=True, slots=True)
class AnswerWork:
    """Answer a call: these tasks are finished, and none of its others is to be worked on any more.

    `finished` has what each task's range has of the source, by task id.
    """

    number: int
    finished: Mapping[str, TableSize]


@dataclass(frozen=True, slots=True)
class RefuseWork:
    number: int
    fault: IscpError


BuildWorkerEffect = RunBatch | CancelBatch | AnswerWork | RefuseWork
