"""The owner's side of builds: cuts snapshots into tasks, has nodes work on them, and says what is built.

After ScyllaDB's view building coordinator. Decides what is written to etcd and which node is called; knows nothing of
etcd, channels or files. Rules:

- etcd has the tasks that are unfinished, and no more; what is finished, the storage knows (iscp.ports.range_builder).
- What is decided rests on what is written: a change counts once its transaction is done. One is on its way at a time;
  when one fails, or is not there any more, the builder begins again with what etcd has, like the next owner would.
- A task is finished when its node has said so, unless it was aborted or deleted before that is written.
- An aborted task is never revived: others take its place, under ids that were never given before (term, counter).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from iscp.coordination.builds.build_counts import BuildStarts, removals
from iscp.coordination.builds.build_limits import GROUP_WRITES_MAX, REMOVE_EVERY_S, BuildLimits
from iscp.coordination.builds.build_state import (
    BuildState,
    Change,
    DeleteTask,
    MarkBuilt,
    PutTask,
    place_of,
    range_name,
    writes_of,
)
from iscp.coordination.builds.builder_events import (
    BuilderEffect,
    BuilderEvent,
    BuildOver,
    BuildsLoaded,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWanted,
    CancelCall,
    JobsMoved,
    MergeRange,
    NodesPlaced,
    NotifyBuilt,
    Prioritize,
    RangeAnswered,
    RangeFailed,
    SplitRange,
    TableSeen,
)
from iscp.coordination.builds.range_calls import RangeCalls
from iscp.coordination.builds.range_faults import RangeFaults
from iscp.coordination.builds.replacements import Replacements, to_move
from iscp.coordination.builds.staging_tasks import StagingTasks
from iscp.coordination.builds.store_turns import StoreTurns
from iscp.coordination.builds.table_turns import TableTurns
from iscp.coordination.membership.preferred_nodes import Placement
from iscp.core.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.core.values.errors import Unavailable
from iscp.core.values.progress import TableSize


class Builder:
    """One term's. Feed it events in order with a clock that does not step back; carry out the effects in order.

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
