"""What lands on sources while they are built, in a cluster that builds: commits, VACUUM, and what is kept of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from iscp.model.build.build_state import BuildState, TableSeen
from iscp.model.build.build_task import BuildPlan, StagingTask
from tests.simulation.violation import expect

FIRST = 7


@dataclass
class Landing:
    """`gone`: by table the last commit whose changes its source does not have any more. `kept`: by table the commits
    that are kept; `missed`: those that were gone before they could be. `away`: sources that nobody can read. `applied`:
    by job how far its tail has come. `repairs`: by table the last commit that is a repair.
    """

    newest: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    kept: dict[str, set[int]] = field(default_factory=dict)
    missed: dict[str, set[int]] = field(default_factory=dict)
    applied: dict[str, tuple[str, int]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    repairs: dict[str, int] = field(default_factory=dict)
    tailed_from_kept: int = 0

    def of(self, table_id: str) -> int:
        return self.newest.setdefault(table_id, FIRST)

    def commit(self, table_id: str, repair: bool = False) -> None:
        self.newest[table_id] = self.of(table_id) + 1
        if repair:
            self.repairs[table_id] = self.of(table_id)

    def vacuum(self, table_id: str) -> None:
        self.gone[table_id] = self.of(table_id)

    def seen(self, table_id: str) -> TableSeen:
        found = [version for table, version in self.applied.values() if table == table_id]
        applied, repair = min(found, default=None), self.repairs.get(table_id, 0)
        unread = repair if applied is not None and repair > applied else 0
        return TableSeen(table_id, self.of(table_id), applied, unread, f"/lake/{table_id}")

    @property
    def repaired(self) -> set[str]:
        """Tables with a repair that some job has not applied."""
        return {table_id for table_id in self.repairs if self.seen(table_id).repaired}

    def forget(self) -> None:
        """Nobody knows any more that something is kept: it is nobody's, and missed."""
        for table_id, kept in self.kept.items():
            self.missed.setdefault(table_id, set()).update(kept)
            kept.clear()

    def keep(self, task: StagingTask, plans: tuple[BuildPlan, ...]) -> list[BuildPlan]:
        """The builds that have to begin again, as a commit after their version is gone."""
        if task.removes:
            needs = [version for table, version in self.applied.values() if table == task.table_id]
            kept = self.kept.pop(task.table_id, set())
            last = max((version for version in kept if version <= task.after), default=-1)
            expect(min(needs, default=last) >= last, "what is kept of {} up to {} is deleted too early", task, last)
            return []
        for version in range(task.after + 1, task.until + 1):
            if version > self.gone.get(task.table_id, -1):
                self.kept.setdefault(task.table_id, set()).add(version)
            elif version not in self.kept.get(task.table_id, ()):
                self.missed.setdefault(task.table_id, set()).add(version)
                if outdated := [plan for plan in plans if plan.version < version]:
                    return outdated
        return []

    def tail(self, job_id: str) -> None:
        """One commit, as long as its changes are there; else a comparison with all rows."""
        table_id, version = self.applied[job_id]
        if version >= self.of(table_id):
            return
        there = version + 1 > self.gone.get(table_id, -1)
        kept = version + 1 in self.kept.get(table_id, ())
        self.tailed_from_kept += kept and not there
        self.applied[job_id] = table_id, version + 1 if there or kept else self.of(table_id)

    def check_write(self, after: BuildState) -> None:
        """What etcd says is kept is there, as far as somebody needs it, and whatever is kept etcd knows of."""
        tables = [task.table_id for task in after.staging.values()]
        expect(len(tables) == len({*tables}), "two tasks at once keep commits of {}", tables)
        for task in after.staging.values():
            span = after.retained.get(task.table_id)
            expect(span is not None, "{} has a task, and nothing says that something may be kept", task.table_id)
            at = span.until if span else -1
            expect(task.after == at, "{} goes on at {}, and {} is kept", task, task.after, span)
        for table_id, span in after.retained.items():
            needs = [version for table, version in self.applied.values() if table == table_id]
            needs += [plan.version for plan in after.plans.values() if plan.table_id == table_id]
            self._check_span(table_id, max(span.since, min(needs, default=span.until)), span.until)
        unknown = [table_id for table_id, kept in self.kept.items() if kept and table_id not in after.retained]
        expect(not unknown, "nobody knows that commits of {} are kept", unknown)

    def check_published(self, plan: BuildPlan, state: BuildState) -> None:
        """Nothing has been passed over that was committed after what is published."""
        if (span := state.retained.get(plan.table_id)) is not None:
            self._check_span(plan.table_id, max(span.since, plan.version), span.until)

    def check_idle(
        self, state: BuildState, wanted: Mapping[str, BuildPlan], seen: Mapping[str, TableSeen], there: Collection[str]
    ) -> None:
        """An owner that has nothing to write has a task for each commit it has heard of while a job is built, or waits
        for that, and for each repair that a job has not applied, at a node that is there.
        """
        busy = {task.table_id for task in state.staging.values()}
        away = [task for task in state.staging.values() if task.node_id not in there]
        expect(not away, "nobody works on {}", away)
        for plan in {**wanted, **state.plans}.values():
            heard = seen.get(plan.table_id)
            span, newest = state.retained.get(plan.table_id), heard.newest if heard is not None else -1
            if newest > plan.version and plan.table_id not in busy:
                whole = span is not None and span.since <= plan.version and newest <= span.until
                expect(whole, "{} is at {}, and {} is kept for {}", plan.table_id, newest, span, plan)
        for heard in seen.values():
            if heard.repaired and heard.table_id not in busy:
                span, after = state.retained.get(heard.table_id), max(heard.applied or 0, heard.repair - 100)
                whole = span is not None and span.since <= after and heard.repair <= span.until
                expect(whole, "{} has not been applied, and {} is kept", heard, span)

    def _check_span(self, table_id: str, since: int, until: int) -> None:
        known = self.kept.get(table_id, set()) | self.missed.get(table_id, set())
        lost = [version for version in range(since + 1, until + 1) if version not in known]
        expect(not lost, "the commits {} of {} are not kept, and somebody needs them", lost, table_id)
