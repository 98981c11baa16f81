"""Which commits are kept for jobs that are built, and for those that are to apply a repair: tasks of the type
process_staging, and when what is kept is deleted.

One task a table at a time, so that commits are kept in order of version, each once. Rules:

- `KeptSpan` is written before the first task, and deleted with the last one: whatever is there of a table's commits,
  etcd has it.
- All that is kept of a table is deleted together, once no job needs any of it.
- From when it is to be deleted nothing of it counts as kept: the task may do so without anybody hearing of it.
- A task that nobody needs any more is deleted, whether or not it ever comes to its end.
- A repair is kept with the unread commits before it, which alone make it one that the tail can take in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from iscp.coordination.builds.build_state import (
    BuildState,
    Change,
    DeleteKept,
    DeleteStaging,
    PutKept,
    PutStaging,
)
from iscp.coordination.builds.builder_events import TableSeen
from iscp.coordination.builds.table_turns import TableTurns
from iscp.core.build.build_task import BuildPlan, KeptSpan, StagingTask
from iscp.core.job.commit_route import CommitRoute, JobPhase, route_commit
from iscp.core.rows.range_tree import WHOLE
from iscp.core.values.progress import TableSize

COMMITS_OF_TASK_MAX = 100
"""Commits that one task keeps; the others are for the next one, and another node may take it. Of a repair so many are
kept, with those before it: a job that is further behind compares.
"""

WAITING_TABLES_MAX = 10
"""Tables of which commits are kept before they are built: those whose turn is next."""


@dataclass(slots=True)
class _Needs:
    """Of one table. `building`: the versions at which its jobs are built; `others`: how far each other one has come.

    `seen`: what was reported last; `known`: that was since the last of them was published.
    """

    uri: str = ""
    building: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    phases: set[JobPhase] = field(default_factory=set)
    seen: TableSeen | None = None
    known: bool = False

    def wanted(self) -> tuple[int, int] | None:
        """The commits to be kept, as (after, until]; None: what lands is for the tail."""
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
        """Whether a job is still to take this commit."""
        return any(each < version for each in (*self.building, *self.others))


class StagingTasks:
    """Of one term. `finished`: tasks that are to be removed, with what each has kept."""

    def __init__(self, kept_bytes_max: int) -> None:
        self.finished: dict[str, TableSize] = {}
        self._kept_bytes_max = kept_bytes_max
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
        """One of its jobs has moved: what is kept stays until the table is seen again."""
        self._doubted.add(table_id)

    def tables(self, state: BuildState, turns: TableTurns) -> set[str]:
        """Of which something is built or kept, or soon will be."""
        return {plan.table_id for plan in _open_builds(state, turns)} | state.kept.keys() | self._repaired.keys()

    def follow(self, state: BuildState) -> None:
        """What is gone is not finished."""
        self.finished = {task_id: size for task_id, size in self.finished.items() if task_id in state.staging}

    def changes(
        self,
        state: BuildState,
        turns: TableTurns,
        next_id: Callable[[], str],
        node_of: Callable[[str, int], str],
        staying: Container[str],
    ) -> Iterator[Sequence[Change]]:
        """At most one group for a table."""
        tasks = {task.table_id: task for task in state.staging.values()}
        for table_id, needs in self._needs(state, turns).items():
            node_id = node_of(table_id, WHOLE)
            task, kept = tasks.get(table_id), state.kept.get(table_id)
            if task is None:
                if node_id and (made := self._begin(needs, table_id, kept)):
                    span, after, until = made
                    new = StagingTask(next_id(), table_id, span.table_uri, after, until, node_id)
                    yield [*([PutKept(span)] if span != kept else []), PutStaging(new)]
            elif kept is not None and task.task_id in self.finished:
                yield [DeleteStaging(table_id, task.task_id), self._result(kept, task)]
            elif kept is None or not self._is_needed(needs, kept, task):
                yield [DeleteStaging(table_id, task.task_id)]
            elif node_id and task.node_id not in staying:
                moved = task._replace(task_id=next_id(), node_id=node_id)
                yield [DeleteStaging(table_id, task.task_id), PutStaging(moved)]

    def _result(self, kept: KeptSpan, task: StagingTask) -> Change:
        if task.removes:
            return DeleteKept(task.table_id)
        size = kept.bytes + max(0, self.finished[task.task_id].bytes)
        return PutKept(KeptSpan(kept.table_id, kept.table_uri, kept.since, task.until, size))

    def _begin(self, needs: _Needs, table_id: str, kept: KeptSpan | None) -> tuple[KeptSpan, int, int] | None:
        """What is to be written of a table without a task: its span, and from where to where a new task goes."""
        after, until = needs.wanted() or (-1, -1)
        if kept is not None and self._is_over(needs, kept):
            return replace(kept, since=kept.until), kept.until, kept.until
        if kept is None or after < kept.since:  # what is there already is found when it is to be kept
            kept = KeptSpan(table_id, needs.uri, after, after)
        if until <= kept.until or kept.bytes >= self._kept_bytes_max:
            return None
        return kept, kept.until, min(until, kept.until + COMMITS_OF_TASK_MAX)

    def _is_over(self, needs: _Needs, kept: KeptSpan) -> bool:
        """Nobody needs what is kept, and it does not go on with what is wanted."""
        wanted = needs.wanted()
        return needs.known and not needs.before(kept.until) and (wanted is None or wanted[0] != kept.until)

    def _is_needed(self, needs: _Needs, kept: KeptSpan, task: StagingTask) -> bool:
        if task.removes:
            return self._is_over(needs, kept)
        wanted = needs.wanted()  # of what has begun while a job was built, its tail has all the same
        needed = needs.before(task.until) or not needs.known
        return needed and (wanted is None or wanted[0] >= kept.since)

    def _needs(self, state: BuildState, turns: TableTurns) -> dict[str, _Needs]:
        """Of the tables of which something is built or kept, or soon will be."""
        begun = {plan.job_id: plan for plan in _open_builds(state, turns)}
        repaired = [self._seen[table_id] for table_id in self._repaired]
        places: list[TableSeen | BuildPlan | KeptSpan | StagingTask] = [*repaired, *begun.values()]
        places += [*state.kept.values(), *state.staging.values()]
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
    """Those that have begun, those of which all is staged and nothing published, and those whose turn is next: what
    lands meanwhile is as much in danger.
    """
    yield from state.plans.values()
    for job_id, version in state.built.items():
        plan = turns.wanted.get(job_id)
        if plan is not None and plan.version == version:
            yield plan
    for table_id in (*state.tables, *turns.waiting.next_ones(WAITING_TABLES_MAX)):
        yield from (plan for plan in turns.plans_on(table_id) if plan.job_id not in state.plans)
