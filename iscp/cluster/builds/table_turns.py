"""The turns of tables: the builds that jobs want, by table, and how the tasks of a job come to be."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from iscp.model.build.build_state import (
    BeginTable,
    BuildState,
    Change,
    DropBuild,
    EndTable,
    ForgetBuilt,
    MarkBuilt,
    PutPlan,
    PutTask,
    SetPriority,
)
from iscp.model.build.build_task import PRIORITY_MAX, BuildPlan, BuildTask, TaskType
from iscp.model.values.errors import InvalidRequest

# --- tables that wait to be built -------------------------------------------------------------------------------------
# The tables wait in the order of their turns: what a step costs does not grow with their number.

GATHER_S = 2.0
"""Seconds that a table's turn waits after its first request: jobs that are registered together are read together."""

STALE_MAX = 16
"""Outdated entries of the heap, in addition to one for each table that waits; beyond them it is made again."""

_Turn = tuple[int, float, int]
"""A `_Turn` orders the tables, the least first: the priority, negated, since when the table is wanted, and a number."""


class WaitingTables:
    """Tables that wait, ordered by priority and then by when they were first wanted; tables whose requests still gather
    come last.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._heap: list[tuple[_Turn, str]] = []
        self._gathering: dict[str, None] = {}  # as they have come, which is by time
        self._number = 0
        self._ripening: deque[tuple[float, str]] = deque()

    def set(self, table_id: str, priority: int, since_s: float, now_s: float) -> None:
        """Have the table wait, wanted since `since_s`."""
        before = self._turns.get(table_id)
        if before is None:
            self._number += 1
        turn = -priority, since_s, before[2] if before else self._number
        if before == turn:
            return
        if before is None and since_s + GATHER_S > now_s:
            self._gathering[table_id] = None
            self._ripening.append((since_s + GATHER_S, table_id))
        self._turns[table_id] = turn
        if table_id not in self._gathering:
            self._push(table_id)

    def remove(self, table_id: str) -> None:
        if self._turns.pop(table_id, None) is not None:
            self._gathering.pop(table_id, None)

    def ripen(self, now_s: float) -> None:
        """Let the turns of those that have gathered come from now on."""
        while self._ripening and self._ripening[0][0] <= now_s:
            _, table_id = self._ripening.popleft()
            turn = self._turns.get(table_id)
            if turn is not None and turn[1] + GATHER_S <= now_s and table_id in self._gathering:
                del self._gathering[table_id]
                self._push(table_id)

    def ripens_at_s(self) -> float | None:
        """Return when the turn of a further table may come, or None if none gathers."""
        return self._ripening[0][0] if self._ripening else None

    def first(self, most: int) -> list[str]:
        """Return up to so many of those whose turn may come, in order."""
        found: list[tuple[_Turn, str]] = []
        while self._heap and len(found) < most:
            entry = heapq.heappop(self._heap)
            if self._holds(entry) and (not found or found[-1] != entry):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [table_id for _, table_id in found]

    def next_ones(self, most: int) -> list[str]:
        """Return what `first` does, and then tables whose requests still gather."""
        found = self.first(most)
        for table_id in self._gathering:
            if len(found) >= most:
                break
            found.append(table_id)
        return found

    def __iter__(self) -> Iterator[str]:
        """Return all of them, in order, at a cost that grows with their number."""
        return iter(sorted(self._turns, key=lambda table_id: (table_id in self._gathering, self._turns[table_id])))

    def _holds(self, entry: tuple[_Turn, str]) -> bool:
        turn, table_id = entry
        return self._turns.get(table_id) == turn and table_id not in self._gathering

    def _push(self, table_id: str) -> None:
        heapq.heappush(self._heap, (self._turns[table_id], table_id))
        if len(self._heap) > 2 * len(self._turns) + STALE_MAX:
            self._heap = [(turn, each) for each, turn in self._turns.items() if each not in self._gathering]
            heapq.heapify(self._heap)


# --- turns, and the tasks of jobs -------------------------------------------------------------------------------------
# A table whose turn has come is built for all of its jobs together. The tasks of a job are created in several
# transactions, and its plan with the last of them: tasks without a plan are what is left of a creation that was broken
# off, and are dropped before it begins again.

STUCK_TABLES_MAX = 10
"""Tables that are begun beside `build.tables_at_once` where as many others do not go on; with more of them, those that
wait do so until one goes on.
"""

REPEAT_S = 30.0
"""Seconds after a job was marked as built in which its request for the same build counts: the job misses a part of it,
and that is built again.
"""


@dataclass(slots=True)
class Creation:
    """A job's tasks that are still to be created; `ranges` goes on where the last transaction ended."""

    plan: BuildPlan
    ranges: Iterator[int]


class TableTurns:
    """The turns of tables. `wanted` has the wanted plans by job, `over` the jobs whose build is to be dropped,
    `repeated` those that are to be built again.

    `waiting`: tables on which builds are wanted that have not begun.
    """

    def __init__(self, tables_at_once: int) -> None:
        self._tables_at_once = tables_at_once
        self.wanted: dict[str, BuildPlan] = {}
        self.waiting = WaitingTables()
        self._by_table: dict[str, dict[str, BuildPlan]] = {}
        self.over: dict[str, None] = {}
        self.repeated: dict[str, None] = {}
        self.creation: Creation | None = None
        self._priorities: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self._built_s: dict[str, float] = {}

    @property
    def deferred(self) -> tuple[str, ...]:
        """Return the table of which a job is about to join: its next ranges wait for that, to be read for all jobs."""
        return (self.creation.plan.table_id,) if self.creation else ()

    def want(self, plan: BuildPlan, state: BuildState, now_s: float) -> None:
        self.over.pop(plan.job_id, None)
        before = self.wanted.get(plan.job_id)
        self.wanted[plan.job_id] = plan
        self._by_table.setdefault(plan.table_id, {})[plan.job_id] = plan
        self._since_s.setdefault(plan.table_id, now_s)
        if self.creation and self.creation.plan.job_id == plan.job_id and self.creation.plan != plan:
            self.creation = None
        self._follow(plan.table_id, state, now_s)
        if state.built.get(plan.job_id) != plan.version:
            return
        another = before is not None and before.pin != plan.pin
        if another or now_s >= self._built_s.setdefault(plan.job_id, now_s) + REPEAT_S:
            self.repeated[plan.job_id] = None

    def prioritize(self, table_id: str, priority: int) -> None:
        """Raises InvalidRequest."""
        if abs(priority) > PRIORITY_MAX:
            raise InvalidRequest(f"is {priority}: must be between {-PRIORITY_MAX} and {PRIORITY_MAX}", field="priority")
        self._priorities[table_id] = priority

    def wanted_on(self, table_id: str) -> Iterable[str]:
        """Return the wanted jobs of the table."""
        return self._by_table.get(table_id, {})

    def plans_on(self, table_id: str) -> Iterable[BuildPlan]:
        """Return the wanted plans of the table."""
        return self._by_table.get(table_id, {}).values()

    def end(self, job_id: str, state: BuildState, now_s: float) -> None:
        plan = self.wanted.pop(job_id, None)
        if self.creation and self.creation.plan.job_id == job_id:
            self.creation = None
        if plan is not None or is_known(job_id, state) or job_id in state.built:
            self.over[job_id] = None
        if plan is not None:
            del self._by_table[plan.table_id][job_id]
            if not self._by_table[plan.table_id]:
                del self._by_table[plan.table_id]
                del self._since_s[plan.table_id]
            self._follow(plan.table_id, state, now_s)

    def note_loaded(self, state: BuildState, now_s: float) -> None:
        self.creation = None
        for table_id in self._since_s:
            self._follow(table_id, state, now_s)

    def note_written(self, change: Change, state: BuildState, now_s: float) -> None:
        """Note what was written; `state` has it."""
        match change:
            case MarkBuilt(job_id):
                self._built_s[job_id] = now_s
                self._follow_job(job_id, state, now_s)
            case DropBuild(job_id) | ForgetBuilt(job_id):
                self._follow_job(job_id, state, now_s)
            case PutPlan(plan):
                if self.creation and self.creation.plan == plan:
                    self.creation = None
                self._follow_job(plan.job_id, state, now_s)
            case BeginTable(table_id) | EndTable(table_id) | SetPriority(table_id):
                self._follow(table_id, state, now_s)
            case _:
                pass

    def _follow_job(self, job_id: str, state: BuildState, now_s: float) -> None:
        if (plan := self.wanted.get(job_id)) is not None:
            self._follow(plan.table_id, state, now_s)

    def _follow(self, table_id: str, state: BuildState, now_s: float) -> None:
        """Follow a table whose wanted plans or whose build may have changed."""
        if table_id not in state.tables and self._is_waiting(table_id, state):
            self.waiting.set(table_id, state.priorities.get(table_id, 0), self._since_s[table_id], now_s)
        else:
            self.waiting.remove(table_id)

    def drops(self, state: BuildState) -> Iterator[Sequence[Change]]:
        """Yield the removal of what is left of builds that nobody wants, and of what is to be built again."""
        for job_id in list(self.repeated):
            if job_id in state.built:
                yield [ForgetBuilt(job_id)]
            else:
                del self.repeated[job_id]
                self._built_s.pop(job_id, None)
        for job_id in list(self.over):
            self.repeated.pop(job_id, None)
            changes: list[Change] = []
            if is_known(job_id, state):
                changes.append(DropBuild(job_id))
            if job_id in state.built:
                changes.append(ForgetBuilt(job_id))
                self._built_s.pop(job_id, None)
            if changes:
                yield changes
            else:
                del self.over[job_id]

    def priority_changes(self, state: BuildState) -> Iterator[Sequence[Change]]:
        for table_id, priority in self._priorities.items():
            if state.priorities.get(table_id, 0) != priority:
                yield [SetPriority(table_id, priority)]

    def marks(self, state: BuildState) -> Iterator[Sequence[Change]]:
        for job_id, plan in state.plans.items():
            if job_id not in state.jobs:
                yield [MarkBuilt(job_id, plan.version)]

    def turns(self, state: BuildState, stuck: Collection[str]) -> Iterator[Sequence[Change]]:
        """Return tables whose turn is over, and those whose turn has come. Tables that are `stuck` hold up no
        others.
        """
        needed = {plan.table_id for plan in state.plans.values()}
        over = [each for each in state.tables if each not in needed and not self._is_waiting(each, state)]
        yield from ([EndTable(table_id)] for table_id in over)
        passed = min(len({*stuck}.intersection(state.tables)), STUCK_TABLES_MAX)
        free = self._tables_at_once - len(state.tables) + len(over) + passed
        if free <= 0:
            return
        yield from ([BeginTable(table_id)] for table_id in self.waiting.first(free))

    def creations(
        self, state: BuildState, next_id: Callable[[], str], target: Callable[[str, int], str]
    ) -> Iterator[Sequence[Change]]:
        """Return the tasks of one wanted job after the other, at nodes that `target` gives, and then its plan."""
        if self.creation is None:
            plans = chain.from_iterable(self._by_table.get(table_id, {}).values() for table_id in state.tables)
            plan = next((each for each in plans if _is_missing(each, state)), None)
            if plan is None:
                return
            if is_known(plan.job_id, state):  # of a creation or a plan that counts no more
                yield [DropBuild(plan.job_id)]
                return
            self.creation = Creation(plan, iter(range(1 << plan.depth, 2 << plan.depth)))
        plan = self.creation.plan
        for range_id in self.creation.ranges:
            node_id = target(plan.table_id, range_id)
            task_type = TaskType.BUILD_RANGE
            yield [PutTask(BuildTask(next_id(), task_type, False, plan.table_id, plan.job_id, range_id, node_id))]
        yield [PutPlan(plan)]

    def _is_waiting(self, table_id: str, state: BuildState) -> bool:
        return any(_is_missing(plan, state) for plan in self._by_table.get(table_id, {}).values())


def is_known(job_id: str, state: BuildState) -> bool:
    """Return whether there is something for DropBuild to remove."""
    return job_id in state.plans or job_id in state.jobs or job_id in state.done


def _is_missing(plan: BuildPlan, state: BuildState) -> bool:
    return state.built.get(plan.job_id) != plan.version and state.plans.get(plan.job_id) != plan
