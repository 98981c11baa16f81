"""What is kept of commits in a simulated cluster (port RetainedCommits): of which versions, and whether one is missed.

Modelled are the files; what is kept when, and when it is deleted, the real builder, workers and `retain_commits` say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp.model.build.build_state import BuildState
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.progress import TableSize
from iscp.ports.consumer import TablePlace
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.system import Guard
from iscp.schedule.lag import counts
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

KEEP_S = 2.0
SIZE = TableSize(1, 100)


def followed(rows: Iterable[JobRow], table: str) -> list[JobRow]:
    return [row for row in rows if row.table_uri == f"/{table}" and counts(row) and row.drop_at_s is None]


class KeptVersions:
    """Of all tables. `missed`: those whose changes were gone before they could be kept. `needed_by`: the jobs that were
    followed when it was decided to delete what is kept of a table.

    A node may not know yet that its task is gone. What it keeps then is an orphan, and what it deletes is missed: who
    needs it has to compare, as has a job that is resumed while they are deleted.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[str, set[int]] = {table: set() for table in world.tables}
        self._missed: dict[str, set[int]] = {table: set() for table in world.tables}
        self._needed_by: dict[str, set[JobKey]] = {}
        self._state = BuildState()
        self.count = 0

    def has(self, table: str, version: int) -> bool:
        return version in self._kept[table]

    def add(self, table: str, version: int) -> None:
        """Of a span that is being deleted only who does not know that yet keeps another one: that is an orphan too."""
        known = any(span.table_uri == f"/{table}" for span in self._state.retained.values())
        if known and not self._is_removed(table):
            self.count += 1
            self._kept[table].add(version)

    def _is_removed(self, table: str) -> bool:
        return any(task.removes and task.table_uri == f"/{table}" for task in self._state.staging.values())

    def miss(self, table: str, version: int) -> None:
        self._missed[table].add(version)

    def remove(self, table: str) -> None:
        """Nobody needs what etcd has said to be there."""
        if not self._is_removed(table):
            self._missed[table] |= self._kept[table]
            self._kept[table].clear()
            return
        span = next((each for each in self._state.retained.values() if each.table_uri == f"/{table}"), None)
        rows = followed(self._world.log.rows.values(), table)
        sinks = [self._world.sink_of(row) for row in rows if row.key in self._needed_by[table]]
        last = max((version for version in self._kept[table] if span and version <= span.until), default=-1)
        behind = [sink.name for sink in sinks if sink.content < last]
        expect(not behind, "what is kept of {} up to {} is deleted, and {} need it", table, last, behind)
        self._kept[table].clear()

    def check_write(self, before: BuildState, after: BuildState) -> None:
        """What etcd says is kept for a build that goes on is there; whatever is kept, etcd knows that something is."""
        if before.retained != self._state.retained:
            self._restore(before)
        for task in after.staging.values():
            if task.removes and task.task_id not in self._state.staging:
                table = task.table_uri.removeprefix("/")
                owners = [each.owner for each in self._world.processes.values() if each.owner.leads]
                rows = [row for owner in owners for row in followed(owner.rows, table)]
                self._needed_by[table] = {row.key for row in rows}
        self._state = after
        tables = [task.table_id for task in after.staging.values()]
        expect(len(tables) == len({*tables}), "two tasks at once keep commits of {}", tables)
        for plan in after.plans.values():
            span = after.retained.get(plan.table_id)
            table = plan.table_uri.removeprefix("/")
            known = self._kept[table] | self._missed[table]
            needed = range(max(span.since, plan.version) + 1, span.until + 1) if span is not None else ()
            lost = [version for version in needed if version not in known]
            expect(not lost, "the commits {} of {} are not kept, and {} needs them", lost, table, plan.job_id)
        there = {span.table_uri for span in after.retained.values()}
        unknown = [table for table, kept in self._kept.items() if kept and f"/{table}" not in there]
        expect(not unknown, "nobody knows that commits of {} are kept", unknown)

    def _restore(self, state: BuildState) -> None:
        """etcd was restored from a backup: what it does not know of is nobody's, and what is gone is missed."""
        for table, kept in self._kept.items():
            span = next((each for each in state.retained.values() if each.table_uri == f"/{table}"), None)
            self._missed[table] |= {*range(span.since + 1, span.until + 1)} - kept if span else {*kept}
            if span is None:
                kept.clear()


class SimulatedRetained:
    """Port RetainedCommits, in one process; tails take all from the source, which keeps its log."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._versions = process.world.kept

    def retain(self, session: object, table: TablePlace, version: int, guard: Guard) -> TableSize:
        process, world, name = self._process, self._process.world, table.uri.removeprefix("/")
        process.threads.sleep(world.random.random() * KEEP_S)
        guard.check()
        if self._versions.has(name, version):
            return SIZE
        if version <= world.staging.oldest[name]:
            self._versions.miss(name, version)
            raise ChangesUnavailableError(f"the changes of version {version} are gone")
        if world.happens(world.trouble.fail):
            raise StorageError("a file cannot be written")
        self._versions.add(name, version)
        return SIZE

    def remove(self, table: TablePlace) -> None:
        world = self._process.world
        if world.happens(world.trouble.fail):
            raise StorageError("a file cannot be deleted")
        self._versions.remove(table.uri.removeprefix("/"))
