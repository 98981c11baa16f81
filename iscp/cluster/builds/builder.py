"""The two machines of builds: the owner's builder, which cuts snapshots into tasks and has nodes work on them, and a
node's build worker, which works on the tasks that an owner names.

Both are after ScyllaDB's view building (its coordinator and its worker).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import assert_never

from iscp.cluster.builds.staging_tasks import RangeCalls, RangeFaults, Replacements, StagingTasks, to_move
from iscp.cluster.builds.table_turns import TableTurns
from iscp.model.build.build_progress import BuildStage, JobBuild, KnownBuilds
from iscp.model.build.build_state import (
    GROUP_WRITES_MAX,
    LOAD_RETRY_S,
    REMOVE_EVERY_S,
    AnswerWork,
    BatchEnded,
    BuilderEffect,
    BuilderEvent,
    BuildLimits,
    BuildOver,
    BuildPlace,
    BuildsLoaded,
    BuildStarts,
    BuildState,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWanted,
    BuildWorkerEffect,
    BuildWorkerEvent,
    CancelBatch,
    CancelCall,
    Change,
    CheckBuilds,
    CountDone,
    DeleteTask,
    JobsMoved,
    LoadBuilds,
    MarkBuilt,
    MergeRange,
    NodesPlaced,
    NotifyBuilt,
    Prioritize,
    PutStaging,
    PutTask,
    RangeAnswered,
    RangeFailed,
    RefuseWork,
    RunBatch,
    SplitRange,
    TableSeen,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
    WriteBuilds,
    done_by_node,
    place_of,
    range_name,
    removals,
    writes_of,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, RangeBatch, StagingBatch, StagingTask, TaskType
from iscp.model.values.errors import NotOwner, Unavailable
from iscp.model.values.progress import TableSize
from iscp.model.values.ring import Placement

# --- the owner's side -------------------------------------------------------------------------------------------------


class StoreTurns:
    """The turns of the owner's loads, writes and checks of what etcd has of builds.

    There is one at a time, and each is answered before the next. `awaited` is the number of what is under way; 0 if
    nothing is.

    An owner that has nothing to write would not notice that its transactions are gone, as from an etcd that was
    emptied, or restored from a backup: nodes know of no task any more that it calls them for, or of some that are long
    over. So the owner checks now and then that what it knows is still what was written last: one read of one key.
    """

    def __init__(self, check_every_s: float, now_s: float) -> None:
        self.awaited = 0
        self._check_every_s = check_every_s
        self._number = 0
        self._writing: tuple[Change, ...] = ()
        self._load_at_s = now_s
        self._check_at_s = inf

    def load(self, now_s: float) -> LoadBuilds | None:
        """Return a load, if it is time for that."""
        if self._load_at_s > now_s:
            return None
        self._load_at_s = inf
        return LoadBuilds(self._begin())

    def write(self, changes: tuple[Change, ...]) -> WriteBuilds:
        self._writing = changes
        return WriteBuilds(self._begin(), changes)

    def check(self, now_s: float) -> CheckBuilds | None:
        """Return a check, if it is time for that, and nothing else is under way."""
        due_s = self._check_due_s()
        return CheckBuilds(self._begin()) if due_s is not None and due_s <= now_s else None

    def end(self, now_s: float) -> tuple[Change, ...]:
        """End the turn that was answered, and return what it has written."""
        written, self._writing, self.awaited = self._writing, (), 0
        self._check_at_s = now_s + self._check_every_s
        return written

    def fail(self, now_s: float) -> None:
        """Have etcd read again, after a failure of which nobody knows what it left there."""
        self.end(now_s)
        self._load_at_s = now_s + LOAD_RETRY_S

    def next_due_s(self) -> float | None:
        """Return when to load or to check, or None for neither."""
        return self._load_at_s if self._load_at_s < inf else self._check_due_s()

    def _check_due_s(self) -> float | None:
        return self._check_at_s if not self.awaited and self._check_at_s < inf else None

    def _begin(self) -> int:
        self._number += 1
        self.awaited = self._number
        return self._number


class Builder:
    """One term's builder. Feed it events in order with a clock that does not step back; carry out the effects in order.

    The builder decides what is written to etcd and which node is called, and says what is built; it knows nothing of
    etcd, channels or files. Rules:

    - etcd has the tasks that are unfinished, and no more; what is finished, the storage knows (iscp.ports.consumer).
    - What is decided rests on what is written: a change counts once its transaction is done. One is on its way at a
      time; when one fails, or is not there any more, the builder begins again with what etcd has, like the next owner
      would.
    - A task is finished when its node has said so, unless it was aborted or deleted before that is written.
    - An aborted task is never revived: others take its place, under ids that were never given before (term, counter).

    `state` is what etcd has; None: it is not loaded. `finished`: tasks that are to be removed, with what each had of
    the source. `wanted`: the builds that jobs want at first; `unbuilt`: all jobs that may want one, as they have
    nothing published.
    """

    def __init__(
        self, owner_rev: int, limits: BuildLimits, wanted: Sequence[BuildPlan], unbuilt: Iterable[str], now_s: float
    ) -> None:
        self.owner_rev = owner_rev
        self.state: BuildState | None = None
        self.finished: dict[str, TableSize] = {}
        self.starts = BuildStarts()
        self.turns = TableTurns(limits.tables_at_once)
        self.calls = RangeCalls(owner_rev, limits.range_timeout_s)
        self.faults = RangeFaults(self.calls)
        self.replacements = Replacements()
        self.staging = StagingTasks(limits.retained_bytes_max)
        self._writes_max, self._unbuilt = limits.writes_max, set(unbuilt)
        self._placement, self._staying = Placement(), frozenset[str]()
        self._counter = 0
        self._store = StoreTurns(limits.check_every_s, now_s)
        self._remove_at_s: float | None = None
        self._now_s = now_s
        self._out: list[BuilderEffect] = []
        for plan in wanted:
            self.turns.want(plan, BuildState(), now_s)

    def next_due_s(self) -> float | None:
        """Return when a BuildTick is due if nothing happens before, or None if none is."""
        due = [self.calls.next_due_s(self._now_s), self.turns.waiting.ripens_at_s(), self._store.next_due_s()]
        if self.state is not None and not self._store.awaited:
            due.append(self._remove_at_s)
        return min((each for each in due if each is not None), default=None)

    def step(self, event: BuilderEvent, now_s: float) -> list[BuilderEffect]:
        """Take one event in; the effects it has.

        SplitRange, MergeRange and Prioritize raise InvalidRequest where nothing can come of them, Unavailable where
        that is not known yet; nothing is changed then.
        """
        self._now_s, self._out = now_s, []
        self.turns.waiting.ripen(now_s)
        self._take(event)
        self._advance()
        return self._out

    def node_of(self, table_id: str, range_id: int) -> str:
        """Return the node that should build the range, or an empty string if no node may, or none is known yet."""
        return self._placement.target(range_name(table_id, range_id))

    def jobs_on(self, table_id: str, jobs: Collection[str]) -> set[str]:
        """Return the table's jobs that are built, or wait for it, or have yet to publish; those of `jobs`, its own, too
        that had nothing published when this term began, and may have: of what they have published something may be
        left.
        """
        planned = {plan.job_id for plan in self.state.plans.values() if plan.table_id == table_id} if self.state else ()
        return {*self.turns.wanted_on(table_id), *planned, *self._unbuilt.intersection(jobs)}

    def followed_tables(self) -> list[str]:
        """Return the tables whose commits and jobs are to be reported (TableSeen), in order."""
        return sorted(self.staging.tables(self.state, self.turns)) if self.state is not None else []

    def retains(self, table_id: str) -> bool:
        """Return whether commits of the table are retained that nobody may need any more (JobsMoved)."""
        return self.state is not None and table_id in self.state.retained

    # --- what comes in -----------------------------------------------------------------------------------------

    def _take(self, event: BuilderEvent) -> None:
        match event:
            case BuildWanted(plan):
                self.turns.want(plan, self.state or BuildState(), self._now_s)
            case BuildOver(job_id):
                self._end(job_id)
            case NodesPlaced(placement, staying):
                self._placement, self._staying = placement, staying
                self._move()
            case BuildsLoaded(number, state) if number == self._store.awaited:
                self._take_loaded(state)
            case BuildsWritten(number) if number == self._store.awaited and self.state is not None:
                self._take_written(self.state)
            case BuildsUnknown(number) if number == self._store.awaited:
                self._store.fail(self._now_s)
                self.state = None
            case RangeAnswered(number, finished):
                self._take_answer(number, finished)
            case TableSeen() | JobsMoved():
                self._take_sight(event)
            case RangeFailed():
                self._out += self.faults.fail(event, self.state, self._now_s)
            case SplitRange() | MergeRange() | Prioritize():
                self._take_request(event)
            case BuildTick() | BuildsLoaded() | BuildsWritten() | BuildsUnknown():
                pass
            case _:
                assert_never(event)

    def _end(self, job_id: str) -> None:
        if (plan := self.turns.wanted.get(job_id)) is not None:  # it may tail now
            self.staging.doubt(plan.table_id)
        self.turns.end(job_id, self.state or BuildState(), self._now_s)
        self._unbuilt.discard(job_id)

    def _take_sight(self, event: TableSeen | JobsMoved) -> None:
        if isinstance(event, JobsMoved):
            self.staging.doubt(event.table_id)
        else:
            self.staging.see(event)

    def _take_request(self, event: SplitRange | MergeRange | Prioritize) -> None:
        match event:
            case SplitRange(table_id, range_id):
                self.replacements.split(self.loaded(), self.finished, table_id, range_id)
            case MergeRange(table_id, range_id):
                self.replacements.merge(self.loaded(), self.finished, table_id, range_id)
            case Prioritize(table_id, priority):
                self.turns.prioritize(table_id, priority)
            case _:
                assert_never(event)

    def loaded(self) -> BuildState:
        """Return what etcd has. Raises Unavailable until it was read."""
        if self.state is None:
            raise Unavailable("the builds are being read from etcd", remedy="Retry")
        return self.state

    def _take_loaded(self, state: BuildState) -> None:
        self._store.end(self._now_s)
        self.state = state
        self.replacements.clear()
        self.turns.note_loaded(state, self._now_s)
        for job_id in (*state.plans, *state.jobs, *state.built, *state.done):
            if job_id not in self._unbuilt and job_id not in self.turns.wanted:
                self.turns.over[job_id] = None
        self._follow(state)
        self.starts.note_loaded(state, self._now_s)
        self._remove_at_s = self._now_s if self.finished else None
        self._move()

    def _take_written(self, state: BuildState) -> None:
        written = self._store.end(self._now_s)
        for change in written:
            if isinstance(change, MarkBuilt):
                self._out.append(NotifyBuilt(state.plans[change.job_id]))
            state.apply(change)
            self.turns.note_written(change, state, self._now_s)
        self.starts.note_written(written, self._now_s)
        new = [change.task for change in written if isinstance(change, PutTask) and not change.task.aborted]
        self.replacements.forget(state.aborted)
        self._follow(state)
        if any(task.node_id not in self._staying for task in new):  # its node has left while that was written
            self._move()

    def _follow(self, state: BuildState) -> None:
        """Forget what is aborted or gone: it is neither worked on nor finished."""
        self.finished = {task_id: size for task_id, size in self.finished.items() if task_id in state.live}
        self.staging.follow(state)
        self._out += [CancelCall(number) for number in self.calls.without(state.is_live)]
        self.faults.forget(state)

    def _take_answer(self, number: int, finished: Mapping[str, TableSize]) -> None:
        call = self.calls.by_number.get(number)
        if call is None:
            return
        counted = {each: size for each, size in finished.items() if each in call.task_ids and self._counts(each)}
        if not counted:
            self.calls.set_back(number, "it has finished nothing yet", self._now_s)
            return
        self._out += self.faults.finish(call, self.state)
        if call.place.task_type is TaskType.PROCESS_STAGING:
            self.staging.finished.update(counted)
            return
        self.finished.update(counted)
        if self._remove_at_s is None:
            self._remove_at_s = self._now_s + REMOVE_EVERY_S

    def _counts(self, task_id: str) -> bool:
        """Return whether the task counts. One that was aborted meanwhile does not: others will replace it."""
        return self.state is None or self.state.is_live(task_id)

    # --- what follows ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if (load := self._store.load(self._now_s)) is not None:
            self._out.append(load)
        if (state := self.state) is None:
            return
        notices, tasks = self.faults.take_overdue(state, self._staying, self.finished, self._now_s)
        self._out += notices
        self.replacements.move(tasks)
        if not self._store.awaited and (changes := self._next_changes(state)):
            self._out.append(self._store.write(changes))
        elif (check := self._store.check(self._now_s)) is not None:
            self._out.append(check)
        finished = ChainMap(self.finished, self.staging.finished)
        self._out += self.calls.begin(state, self._staying, finished, self.turns.deferred, self._now_s)

    def _next_changes(self, state: BuildState) -> tuple[Change, ...]:
        """Return as many changes as fit into one transaction, of the first kind that has any."""
        for groups in self._kinds_of_changes(state):
            changes: list[Change] = []
            writes = 0
            for group in groups:
                changes += group
                writes += sum(map(writes_of, group))
                if writes > self._writes_max - GROUP_WRITES_MAX:
                    break
            if changes:
                return tuple(changes)
        return ()

    def _kinds_of_changes(self, state: BuildState) -> Iterator[Iterable[Sequence[Change]]]:
        yield self.turns.drops(state)
        yield self.staging.changes(state, self.turns, self._next_id, self.node_of, self._staying)
        yield self._removals(state)
        yield self.replacements.successor_groups(state, self._next_id, self._node_of_successor, self._node_of_copy)
        yield self.replacements.abort_groups(state, self.finished)
        yield self.turns.marks(state)
        yield self.turns.priority_changes(state)
        yield self.turns.turns(state, self.calls.stuck(state, self._now_s))
        if self._placement.eligible and self._placement.ring:  # else nobody knows where tasks should be
            yield self.turns.creations(state, self._next_id, self.node_of)

    def _removals(self, state: BuildState) -> Iterator[Sequence[Change]]:
        if self._remove_at_s is not None and self._now_s >= self._remove_at_s:
            changes = removals(state, self.finished, self._writes_max)
            if sum(isinstance(change, DeleteTask) for change in changes) == len(self.finished):
                self._remove_at_s = None
            yield changes

    def _node_of_successor(self, task: BuildTask) -> str:
        usual = self.node_of(task.table_id, task.range_id) or task.node_id
        return self.faults.node_of(task, self._staying, usual)

    def _node_of_copy(self, task: BuildTask) -> str:
        return task.node_id if task.node_id in self._staying else self._node_of_successor(task)

    def _move(self) -> None:
        if self.state is not None:
            self.replacements.move(to_move(self.state, self.finished, self._stays, self._node_of_successor))

    def _stays(self, task: BuildTask) -> bool:
        """Return whether the task stays at its node: one that is worked on does, as long as the node stays."""
        return task.node_id in self._staying and self.calls.works_on(task, place_of(task))

    def _next_id(self) -> str:
        """Return an id that was never given before: terms only rise, and the counter goes on within one, also after a
        failed write.
        """
        self._counter += 1
        return f"{self.owner_rev:08x}-{self._counter:08x}"


# --- the builds that the builder knows, and how far they are ----------------------------------------------------------


def known_builds(builder: Builder, clock_at_s: float = 0.0) -> KnownBuilds:
    """Return the tables with a build that is wanted or goes on, in the order of their turns. Raises Unavailable.

    `clock_at_s`: Unix time at which the builder's clock was 0.
    """
    state = builder.loaded()
    plans = {**builder.turns.wanted, **state.plans}
    turns = {table_id: place for place, table_id in enumerate(builder.turns.waiting)}
    ordered = sorted(plans.values(), key=lambda plan: (turns.get(plan.table_id, -1), plan.job_id))
    running = frozenset(task_id for call in builder.calls.by_number.values() for task_id in call.task_ids)
    return KnownBuilds(
        tuple(_job_build(builder, state, plan, clock_at_s) for plan in ordered), running, dict(state.priorities)
    )


def _job_build(builder: Builder, state: BuildState, plan: BuildPlan, clock_at_s: float) -> JobBuild:
    tasks = [each for each in state.jobs.get(plan.job_id, {}).values() if each.task_id not in builder.finished]
    build = JobBuild(plan, _stage(state, plan), tuple(sorted(tasks, key=lambda task: task.range_id)))
    start = builder.starts.by_job.get(plan.job_id)
    if build.stage is BuildStage.WAITING or start is None or start.version != plan.version:
        return build
    return replace(
        build,
        done=done_by_node(state, builder.finished, plan.job_id),
        began_at_s=clock_at_s + start.at_s,
        share_then=start.share,
        done_then=start.done,
    )


def _stage(state: BuildState, plan: BuildPlan) -> BuildStage:
    if state.built.get(plan.job_id) == plan.version:
        return BuildStage.PUBLISHING
    return BuildStage.BUILDING if plan.job_id in state.plans else BuildStage.WAITING


# --- the node's side --------------------------------------------------------------------------------------------------

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
    """A node's worker. Feed it events in order; carry out the effects in order.

    The worker follows the tasks in etcd, works on those that the owner calls it for, and remembers what it has
    finished. `state` has this node's tasks alone, and all plans. Rules:

    - Only what etcd has as a task of this node is worked on; one that is aborted or deleted is neither worked on nor
      reported as finished, however far it was.
    - One batch a range at a time: tasks of one type, table, range and `BuildPlan.reading`, read once.
    - Commits are staged beside that, because the source may delete the ones that wait, and one task of a table at a
      time.
    - A finished task is remembered until the owner has deleted it, so that the next owner is answered at once.
    - Once an owner was heard, no earlier one is obeyed.
    """

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
