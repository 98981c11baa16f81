"""Retains the commits that a staging task names (docs/adr/0031-builds-by-ranges.md), while they can be read."""

from __future__ import annotations

import logging
from collections.abc import Callable

from iscp.core.build.build_task import BuildPlan, StagingBatch
from iscp.core.values.errors import FileLost, PlanOutdated
from iscp.core.values.progress import NOTHING, TableSize, total_size
from iscp.ports.range_builder import TablePlace
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts

log = logging.getLogger(__name__)


def retain_commits(
    ports: IterationPorts, batch: StagingBatch, guard: Guard, end_build: Callable[[BuildPlan], None]
) -> TableSize:
    """Retain the task's commits, in order of version; return their rows and bytes. `end_build` has a build begun again.

    A commit that is gone is not needed by builds of its version or a later one, nor does it harm who tails: its changes
    are found by comparing. A build that has yet to be published is rather begun again, at a version behind it: all
    nodes share that, and one node would compare. Raises PlanOutdated then.
    """
    task = batch.task
    table = TablePlace(task.table_id, task.table_uri)
    if task.removes:
        guard.check()
        ports.retained.remove(table)
        return NOTHING
    sizes = [
        _retain(ports, batch, table, version, guard, end_build) for version in range(task.after + 1, task.until + 1)
    ]
    return total_size(sizes)


def _retain(
    ports: IterationPorts,
    batch: StagingBatch,
    table: TablePlace,
    version: int,
    guard: Guard,
    end_build: Callable[[BuildPlan], None],
) -> TableSize:
    guard.check()
    ports.failpoints.reach("keep.before")
    try:
        with ports.engine.session() as session:
            return ports.retained.retain(session, table, version, guard)
    except (ChangesUnavailableError, FileLost) as gone:
        guard.check()  # what fails as it is stopped says nothing of the files
        about = {"table": table.uri, "version": version, "error": str(gone)}
        log.warning("build.commit_gone", extra=about)
        if outdated := [plan for plan in batch.plans if plan.version < version]:
            for plan in outdated:
                end_build(plan)
            raise PlanOutdated(f"version {version} of {table.uri} cannot be read: {gone}") from gone
        return NOTHING
