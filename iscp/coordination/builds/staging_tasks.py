"""Decide which commits are retained for jobs that are built or have to apply a repair (tasks of the type
process_staging), and when those commits are deleted.

One task a table at a time, so that commits are retained in order of version, each once. Rules:

- `RetainedSpan` is written before the first task, and deleted with the last one: whatever is there of its commits,
  etcd has it.
- All retained commits of a table are deleted together, once no job needs any of them.
- Once a table's commits are to be deleted, none of them counts as retained: the task may delete them unreported.
- A task that nobody needs any more is deleted, whether or not it ever comes to its end.
- A repair is retained with the unread commits before it, which alone make it one that the tail can take in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from iscp.coordination.builds.build_state import (
    BuildState,
    Change,
    DeleteRetained,
    DeleteStaging,
    PutRetained,
    PutStaging,
)
from iscp.coordination.builds.builder_events import TableSeen
from iscp.coordination.builds.table_turns import TableTurns
from iscp.core.build.build_task import BuildPlan, RetainedSpan, StagingTask
from iscp.core.job.commit_route import CommitRoute, JobPhase, route_commit
from iscp.core.rows.range_tree import WHOLE
from iscp.core.values.progress import TableSize

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
    """The staging tasks of one term. `finished` has the tasks that are to be removed, with the size of what each has
    retained.
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
