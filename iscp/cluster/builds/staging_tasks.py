"""Parts of the owner's builder: which commits are retained by tasks, how tasks are replaced by others, which nodes are
called for tasks, and what is done about ranges that do not come to an end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp.cluster.builds.table_turns import TableTurns
from iscp.model.build.build_state import (
    RANGE_TIMEOUT_S,
    BuildPlace,
    BuildState,
    CallNode,
    CancelCall,
    Change,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    PutRetained,
    PutStaging,
    PutTask,
    RangeFailed,
    ShowFault,
    TableSeen,
    place_of,
)
from iscp.model.build.build_task import DEPTH_MAX, BuildPlan, BuildTask, RetainedSpan, StagingTask, TaskType, depth
from iscp.model.job.source_holds import CommitRoute, JobPhase, route_commit
from iscp.model.rows.key_ranges import WHOLE, children
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.progress import TableSize

# --- commits that are retained ----------------------------------------------------------------------------------------

COMMITS_OF_TASK_MAX = 100
"""Commits that one task retains; the others are for the next one, and another node may take it. Before a repair so many
unread commits are retained at most: a job that is further behind compares.
"""

WAITING_TABLES_MAX = 10
"""Tables whose commits are retained before they are built: those whose turn is next."""


@dataclass(slots=True)
class _Needs:
    """The needs of one table. `building` has the versions at which its jobs are built; `others` says how far each other
    one has come.

    `seen` is what was reported last; `known` says that it was reported since the last of them was published.
    """

    uri: str = ""
    building: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    phases: set[JobPhase] = field(default_factory=set)
    seen: TableSeen | None = None
    known: bool = False

    def wanted(self) -> tuple[int, int] | None:
        """Return the commits to be retained, as (after, until], or None if new commits are for the tail."""
        repaired = self.seen is not None and self.seen.repaired
        if route_commit(self.phases, repair=repaired) is CommitRoute.TAIL:
            return None
        spans: list[tuple[int, int]] = []
        if self.building:
            spans.append((min(self.building), self.seen.newest if self.seen else -1))
        if (seen := self.seen) is not None and seen.applied is not None and seen.repaired:
            spans.append((max(seen.applied, seen.repair - COMMITS_OF_TASK_MAX), seen.repair))
        return min(after for after, _ in spans), max(until for _, until in spans)

    def before(self, version: int) -> bool:
        """Return whether a job has still to take this commit."""
        return any(each < version for each in (*self.building, *self.others))


class StagingTasks:
    """The tasks of one term that retain commits (tasks of the type process_staging).

    The commits are retained for jobs that are built or have to apply a repair. This class decides which ones are, and
    when they are deleted. One task a table at a time, so that commits are retained in order of version, each once.
    Rules:

    - `RetainedSpan` is written before the first task, and deleted with the last one: whatever is there of its commits,
      etcd has it.
    - All retained commits of a table are deleted together, once no job needs any of them.
    - Once a table's commits are to be deleted, none of them counts as retained: the task may delete them unreported.
    - A task that nobody needs any more is deleted, whether or not it ever comes to its end.
    - A repair is retained with the unread commits before it, which alone make it one that the tail can take in order.

    `finished` has the tasks that are to be removed, with the size of what each has retained.
    """

    def __init__(self, retained_bytes_max: int) -> None:
        self.finished: dict[str, TableSize] = {}
        self._retained_bytes_max = retained_bytes_max
        self._seen: dict[str, TableSeen] = {}
        self._doubted: set[str] = set()
        self._repaired: dict[str, None] = {}

    def see(self, event: TableSeen) -> None:
        self._seen[event.table_id] = event
        self._doubted.discard(event.table_id)
        if event.repaired:
            self._repaired[event.table_id] = None
        else:
            self._repaired.pop(event.table_id, None)

    def doubt(self, table_id: str) -> None:
        """Note that one of the table's jobs has moved: what is retained stays until the table is seen again."""
        self._doubted.add(table_id)

    def tables(self, state: BuildState, turns: TableTurns) -> set[str]:
        """Return the tables that are being built or have retained commits, or soon will."""
        return {plan.table_id for plan in _open_builds(state, turns)} | state.retained.keys() | self._repaired.keys()

    def follow(self, state: BuildState) -> None:
        """Forget finished tasks that are gone."""
        self.finished = {task_id: size for task_id, size in self.finished.items() if task_id in state.staging}

    def changes(
        self,
        state: BuildState,
        turns: TableTurns,
        next_id: Callable[[], str],
        node_of: Callable[[str, int], str],
        staying: Container[str],
    ) -> Iterator[Sequence[Change]]:
        """Yield the next changes, at most one group for a table."""
        tasks = {task.table_id: task for task in state.staging.values()}
        for table_id, needs in self._needs(state, turns).items():
            node_id = node_of(table_id, WHOLE)
            task, retained = tasks.get(table_id), state.retained.get(table_id)
            if task is None:
                if node_id and (made := self._begin(needs, table_id, retained)):
                    span, after, until = made
                    new = StagingTask(next_id(), table_id, span.table_uri, after, until, node_id)
                    yield [*([PutRetained(span)] if span != retained else []), PutStaging(new)]
            elif retained is not None and task.task_id in self.finished:
                yield [DeleteStaging(table_id, task.task_id), self._result(retained, task)]
            elif retained is None or not self._is_needed(needs, retained, task):
                yield [DeleteStaging(table_id, task.task_id)]
            elif node_id and task.node_id not in staying:
                moved_task = task._replace(task_id=next_id(), node_id=node_id)
                yield [DeleteStaging(table_id, task.task_id), PutStaging(moved_task)]

    def _result(self, retained: RetainedSpan, task: StagingTask) -> Change:
        if task.removes:
            return DeleteRetained(task.table_id)
        size = retained.bytes + max(0, self.finished[task.task_id].bytes)
        return PutRetained(RetainedSpan(retained.table_id, retained.table_uri, retained.since, task.until, size))

    def _begin(
        self, needs: _Needs, table_id: str, retained: RetainedSpan | None
    ) -> tuple[RetainedSpan, int, int] | None:
        """Return the span to be written of a table without a task, and between which versions a new task stages
        commits; None if there is nothing to do.
        """
        after, until = needs.wanted() or (-1, -1)
        if retained is not None and self._is_over(needs, retained):
            return replace(retained, since=retained.until), retained.until, retained.until
        if retained is None or after < retained.since:  # what is there already is found when it is to be retained
            retained = RetainedSpan(table_id, needs.uri, after, after)
        if until <= retained.until or retained.bytes >= self._retained_bytes_max:
            return None
        return retained, retained.until, min(until, retained.until + COMMITS_OF_TASK_MAX)

    def _is_over(self, needs: _Needs, retained: RetainedSpan) -> bool:
        """Return whether nobody needs the retained commits, and they do not continue with what is wanted."""
        wanted = needs.wanted()
        return needs.known and not needs.before(retained.until) and (wanted is None or wanted[0] != retained.until)

    def _is_needed(self, needs: _Needs, retained: RetainedSpan, task: StagingTask) -> bool:
        if task.removes:
            return self._is_over(needs, retained)
        wanted = needs.wanted()  # of what has begun while a job was built, its tail has all the same
        needed = needs.before(task.until) or not needs.known
        return needed and (wanted is None or wanted[0] >= retained.since)

    def _needs(self, state: BuildState, turns: TableTurns) -> dict[str, _Needs]:
        """Return the needs of all tables that are being built or have retained commits, or soon will."""
        begun = {plan.job_id: plan for plan in _open_builds(state, turns)}
        repaired = [self._seen[table_id] for table_id in self._repaired]
        places: list[TableSeen | BuildPlan | RetainedSpan | StagingTask] = [*repaired, *begun.values()]
        places += [*state.retained.values(), *state.staging.values()]
        found = {each.table_id: _Needs(each.table_uri) for each in places}
        for plan in begun.values():
            found[plan.table_id].building.append(plan.version)
            found[plan.table_id].phases.add(JobPhase.BUILDING)
        for table_id, needs in found.items():
            waiting = [plan.version for plan in turns.plans_on(table_id) if plan.job_id not in begun]
            needs.others += waiting
            needs.phases |= {JobPhase.WAITING} if waiting else set()
            if (seen := self._seen.get(table_id)) is not None:
                needs.seen, needs.known = seen, table_id not in self._doubted
                if seen.applied is not None:
                    needs.others.append(seen.applied)
                    needs.phases.add(JobPhase.BUILT)
        return found


def _open_builds(state: BuildState, turns: TableTurns) -> Iterator[BuildPlan]:
    """Yield the builds that have begun, those that are all staged but not published, and those whose turn is next: the
    commits that arrive meanwhile are as much in danger.
    """
    yield from state.plans.values()
    for job_id, version in state.built.items():
        plan = turns.wanted.get(job_id)
        if plan is not None and plan.version == version:
            yield plan
    for table_id in (*state.tables, *turns.waiting.next_ones(WAITING_TABLES_MAX)):
        yield from (plan for plan in turns.plans_on(table_id) if plan.job_id not in state.plans)


# --- tasks that are replaced by others --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replacement:
    """One job's tasks that are replaced together, and the ranges of those that follow.

    Invariant: both are exactly the same part of the snapshot.
    """

    job_id: str
    task_ids: tuple[str, ...]
    range_ids: tuple[int, ...]


class Replacements:
    """Replacements of tasks by others: at another node, or for other ranges.

    A replacement has two steps, each a transaction: first the tasks are aborted, then others replace them, under ids of
    their own. Tasks of the first step, by an owner that has ended or whose second step failed, become copies of what
    they were. `aborting` wait for their first step, `begun` has the tasks that have taken it, for the second.
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


# --- calls to nodes that work on tasks --------------------------------------------------------------------------------

CALLS_OF_NODE_MAX = 2
"""Ranges that a node is given to work on at a time, so that its next one is there when one is finished; the others wait
at the owner, where they still can move.
"""

STAGING_CALLS_OF_NODE_MAX = 2
"""Tables of which a node is given commits to keep at a time, beside its ranges: what waits may be deleted."""

NODE_REST_S = 1.0
"""Pause before a node is called for another range after a call that has failed; those that it is at go on."""

CALL_RETRY_S = 1.0
"""Pause before a range is given to a node again that has failed at it or finished nothing; doubled each time."""

CALL_RETRY_MAX_S = 60.0
"""Longest pause before a range that keeps failing is tried again; other ranges go on meanwhile, and once a table has no
others left, tables that wait.
"""


TURN_HELD_S = 300.0
"""Seconds that an unfinished range may delay waiting tables once its table has no other ranges left."""

FAILURES_SHOWN = 3
"""Failures of a range in a row from which on its jobs are shown as failing."""


@dataclass(frozen=True, slots=True)
class RangeCall:
    number: int
    place: BuildPlace
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setback:
    """A `Setback` says why a place has to wait, and until when."""

    fault: str
    due_s: float
    pause_s: float
    failures: int = 1


class RangeCalls:
    """The calls of one term: which are made next, and when a call that failed is made again.

    `setbacks` has the places that failed last time, also when they are over. `since_s` says when each place was called
    for what it has not finished.
    """

    def __init__(self, owner_rev: int, timeout_s: float = RANGE_TIMEOUT_S) -> None:
        self._owner_rev = owner_rev
        self.timeout_s = timeout_s
        self.since_s: dict[BuildPlace, float] = {}
        self._number = 0
        self.by_number: dict[int, RangeCall] = {}
        self.setbacks: dict[BuildPlace, Setback] = {}
        self._busy: dict[BuildPlace, RangeCall] = {}
        self._resting: dict[str, float] = {}
        self._of_node: Counter[tuple[str, TaskType]] = Counter()

    def works_on(self, task: BuildTask, place: BuildPlace) -> bool:
        call = self._busy.get(place)
        return call is not None and task.task_id in call.task_ids

    def next_due_s(self, now_s: float) -> float | None:
        due = [*(each.due_s for each in self.setbacks.values()), *self._resting.values()]
        for since_s in self.since_s.values():
            due += (since_s + TURN_HELD_S, since_s + self.timeout_s)
        return min((due_s for due_s in due if due_s > now_s), default=None)

    def begin(
        self,
        state: BuildState,
        nodes: Container[str],
        finished: Container[str],
        deferred: Collection[str],
        now_s: float,
    ) -> Iterator[CallNode]:
        """Yield the calls that may be made now, at these nodes; ranges of `deferred` tables get none."""
        yield from self._begin_staging(state, nodes, finished, now_s)
        if deferred and all(table_id in deferred for table_id in state.tables):
            return
        for node_id, places in state.places.items():
            if node_id not in nodes or self._resting.get(node_id, now_s) > now_s:
                continue
            for place, tasks in places.items():
                if self._of_node[node_id, place.task_type] >= CALLS_OF_NODE_MAX:
                    break
                if place.table_id in deferred or self._waits(place, now_s):
                    continue
                if task_ids := _read_together(tasks, state.plans, finished):
                    self.since_s.setdefault(place, now_s)
                    yield self._begin(place, task_ids)

    def _begin_staging(
        self, state: BuildState, nodes: Container[str], finished: Container[str], now_s: float
    ) -> Iterator[CallNode]:
        for task in state.staging.values():
            place, node_id = place_of(task), task.node_id
            if node_id not in nodes or task.task_id in finished or self._resting.get(node_id, now_s) > now_s:
                continue
            free = self._of_node[node_id, place.task_type] < STAGING_CALLS_OF_NODE_MAX
            if free and not self._waits(place, now_s):
                yield self._begin(place, (task.task_id,))

    def _waits(self, place: BuildPlace, now_s: float) -> bool:
        """Return whether a call is under way, or the last one has failed lately."""
        setback = self.setbacks.get(place)
        return place in self._busy or (setback is not None and setback.due_s > now_s)

    def end(self, number: int) -> RangeCall | None:
        """End the call, and return it; None if it was over already."""
        call = self.by_number.pop(number, None)
        if call is not None:
            del self._busy[call.place]
            self._of_node[call.place.node_id, call.place.task_type] -= 1
        return call

    def fail(self, number: int, fault: str, now_s: float) -> None:
        """Note that the call has failed: at a node that is away, all others would as well, one after the other."""
        if (call := self.by_number.get(number)) is not None:
            self._resting[call.place.node_id] = now_s + NODE_REST_S
            self.set_back(number, fault, now_s)

    def set_back(self, number: int, fault: str, now_s: float) -> None:
        """Set the place back, whose call has failed, or finished nothing."""
        if (call := self.end(number)) is not None:
            before = self.setbacks.get(call.place)
            pause_s = min(before.pause_s * 2, CALL_RETRY_MAX_S) if before else CALL_RETRY_S
            failures = before.failures + 1 if before else 1
            self.setbacks[call.place] = Setback(fault, now_s + pause_s, pause_s, failures)

    def failures(self, place: BuildPlace) -> int:
        """Return how many calls for the place have failed in a row."""
        setback = self.setbacks.get(place)
        return setback.failures if setback is not None else 0

    def finish(self, place: BuildPlace) -> None:
        """Note that the place has finished what it was called for."""
        self.setbacks.pop(place, None)
        self.since_s.pop(place, None)

    def overdue(self, now_s: float) -> list[BuildPlace]:
        """Return the ranges that their nodes had for too long."""
        return [place for place, since_s in self.since_s.items() if since_s + self.timeout_s <= now_s]

    def take_away(self, place: BuildPlace, now_s: float) -> int | None:
        """End the turn of a node that has used its time, and return the number of the call to be canceled, if one runs.
        A range that stays at the node is called again later.
        """
        del self.since_s[place]
        call = self._busy.get(place)
        self.setbacks[place] = Setback(
            f"not finished within {self.timeout_s:g} s", now_s + CALL_RETRY_MAX_S, CALL_RETRY_MAX_S, FAILURES_SHOWN
        )
        return call.number if call is not None and self.end(call.number) else None

    def stuck(self, state: BuildState, now_s: float) -> set[str]:
        """Return the tables of whose ranges nothing is left but what keeps failing, or does not end."""
        failing = {place for place, each in self.setbacks.items() if each.pause_s >= CALL_RETRY_MAX_S}
        failing.update(place for place, since_s in self.since_s.items() if since_s + TURN_HELD_S <= now_s)
        if not failing:
            return set()
        places = [place for places in state.places.values() for place in places]
        going = {place.table_id for place in places if place not in failing}
        return {place.table_id for place in places}.difference(going)

    def forget(self, state: BuildState) -> None:
        """Forget the setbacks of places where nothing is to be done any more."""
        for place in [each for each in {**self.setbacks, **self.since_s} if not state.is_at(each)]:
            self.finish(place)

    def without(self, is_live: Callable[[str], bool]) -> list[int]:
        """Ends the calls none of whose tasks is live any more."""
        numbers = [call.number for call in self.by_number.values() if not any(map(is_live, call.task_ids))]
        for number in numbers:
            self.end(number)
        return numbers

    def _begin(self, place: BuildPlace, task_ids: tuple[str, ...]) -> CallNode:
        self._number += 1
        self.by_number[self._number] = self._busy[place] = RangeCall(self._number, place, task_ids)
        self._of_node[place.node_id, place.task_type] += 1
        return CallNode(self._number, self._owner_rev, place, task_ids)


def _read_together(
    tasks: Mapping[str, BuildTask], plans: Mapping[str, BuildPlan], finished: Container[str]
) -> tuple[str, ...]:
    """Return all that may be worked on, of those whose range is the same rows as the first one's."""
    ready = [
        (plan.reading, task_id)
        for task_id, task in tasks.items()
        if task_id not in finished and (plan := plans.get(task.job_id)) is not None
    ]
    return tuple(task_id for reading, task_id in ready if reading == ready[0][0])


# --- ranges that do not come to an end --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Vain:
    """A range that nodes had in vain. `tried` has the nodes that had it for too long; `node_id` is the one that has it
    instead (empty: whichever should).
    """

    tried: set[str] = field(default_factory=set)
    node_id: str = ""


class RangeFaults:
    """The faults of one term: which nodes have had ranges in vain, and whose jobs are shown as failing.

    A node has a range for so long; then another node gets it that has not had it yet, and once all have, each may
    again. `shown` has the jobs that were reported as failing.
    """

    def __init__(self, calls: RangeCalls) -> None:
        self.shown: set[str] = set()
        self._calls = calls
        self._vain: dict[tuple[str, int], _Vain] = {}

    def fail(self, event: RangeFailed, state: BuildState | None, now_s: float) -> list[ShowFault]:
        """Note that a call has failed, and return what is to be shown."""
        call = self._calls.by_number.get(event.number)
        self._calls.fail(event.number, event.fault, now_s)
        if call is None or state is None or self._calls.failures(call.place) < FAILURES_SHOWN:
            return []
        return self._show(_jobs_of(call.task_ids, state), event.code, event.fault)

    def finish(self, call: RangeCall, state: BuildState | None) -> list[ShowFault]:
        """Note that a call has finished something, and return whose builds go on again."""
        self._calls.end(call.number)
        self._calls.finish(call.place)
        self._vain.pop((call.place.table_id, call.place.range_id), None)
        if state is None or not self.shown:
            return []
        failing = [place for place in self._calls.setbacks if self._calls.failures(place) >= FAILURES_SHOWN]
        still = {job_id for place in failing for job_id in _jobs_of(tasks_at(place, state), state)}
        better = sorted(self.shown.intersection(_jobs_of(call.task_ids, state)).difference(still))
        self.shown.difference_update(better)
        return [ShowFault(job_id, ErrorCode.OK) for job_id in better]

    def take_overdue(
        self, state: BuildState, staying: Collection[str], finished: Container[str], now_s: float
    ) -> tuple[list[ShowFault | CancelCall], Iterator[BuildTask]]:
        """Return what is to be reported of nodes that have used their time, and the tasks that are to move."""
        notices: list[ShowFault | CancelCall] = []
        moving: list[BuildTask] = []
        for place in self._calls.overdue(now_s):
            tasks = tasks_at(place, state)
            if (number := self._calls.take_away(place, now_s)) is not None:
                notices.append(CancelCall(number))
            fault = f"a range of the build was not finished by {place.node_id} within {self._calls.timeout_s:g} s"
            notices += self._show(_jobs_of(tasks, state), ErrorCode.TIMEOUT, fault)
            if self._send_elsewhere(place, staying):
                moving += [task for task_id, task in tasks.items() if task_id not in finished]
        return notices, iter(moving)

    def node_of(self, task: BuildTask, staying: Container[str], usual: str) -> str:
        """Return the node at which a range should be that is `usual`ly at that one."""
        vain = self._vain.get((task.table_id, task.range_id))
        return vain.node_id if vain is not None and vain.node_id in staying else usual

    def forget(self, state: BuildState) -> None:
        """Forget what is known of places, builds and tables that are over."""
        self._calls.forget(state)
        self.shown.intersection_update(state.jobs)
        for each in [each for each in self._vain if each[0] not in state.tables]:
            del self._vain[each]

    def _send_elsewhere(self, place: BuildPlace, staying: Collection[str]) -> bool:
        vain = self._vain.setdefault((place.table_id, place.range_id), _Vain())
        vain.tried.add(place.node_id)
        free = sorted(set(staying) - vain.tried)
        if not free:
            vain.tried.clear()
            return False
        vain.node_id = free[place.range_id % len(free)]
        return True

    def _show(self, job_ids: Collection[str], code: int, fault: str) -> list[ShowFault]:
        self.shown.update(job_ids)
        return [ShowFault(job_id, code, fault) for job_id in sorted(job_ids)]


def tasks_at(place: BuildPlace, state: BuildState) -> Mapping[str, BuildTask]:
    return state.places.get(place.node_id, {}).get(place, {})


def _jobs_of(task_ids: Iterable[str], state: BuildState) -> set[str]:
    return {state.live[task_id].job_id for task_id in task_ids if task_id in state.live}
