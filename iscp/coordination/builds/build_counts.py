"""Count builds: how much of the source the finished tasks had, and since when the owner has measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from iscp.coordination.builds.build_state import (
    BuildState,
    Change,
    CountDone,
    DeleteTask,
    DropBuild,
    ForgetBuilt,
    PutPlan,
)
from iscp.core.build.build_progress import share_done
from iscp.core.values.progress import NOTHING, TableSize, total_size


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
