"""How builds do, as operators are shown it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iscp.coordination.builds.build_state import BuildState, place_of
from iscp.coordination.builds.builder import Builder
from iscp.core.build_task import BuildPlan, BuildTask


class RangeState(StrEnum):
    """Of a task. ABORTED: others are about to take its place; FAILED: it is tried again after a pause."""

    WAITING = "waiting"
    WORKING = "working"
    FAILED = "failed"
    ABORTED = "aborted"
    FINISHED = "finished"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class RangeView:
    """One job's part in a range. `fault`: why it failed last time."""

    range_id: int
    node_id: str
    state: RangeState
    fault: str = ""


@dataclass(frozen=True, slots=True)
class JobBuildView:
    """`ranges` has what is not finished and removed yet, sorted; `started`: all of it has been cut into tasks."""

    plan: BuildPlan
    started: bool
    built: bool
    ranges: tuple[RangeView, ...]

    @property
    def part_left(self) -> float:
        """Of the snapshot, by its ranges: 1 before anything is finished, 0 when all is."""
        if not self.started:
            return 0.0 if self.built else 1.0
        open_ranges = (each for each in self.ranges if each.state is not RangeState.FINISHED)
        return sum(0.5 ** (each.range_id.bit_length() - 1) for each in open_ranges)


@dataclass(frozen=True, slots=True)
class TableBuildView:
    """`building`: it is the table's turn. Its jobs are sorted by their ids."""

    table_id: str
    building: bool
    priority: int
    jobs: tuple[JobBuildView, ...]


def build_views(builder: Builder) -> list[TableBuildView]:
    """Tables with a build that is wanted or goes on, sorted; empty until the builds are loaded from etcd."""
    state = builder.state
    if state is None:
        return []
    plans = {**builder.turns.wanted, **state.plans}
    by_table: dict[str, list[BuildPlan]] = {}
    for plan in plans.values():
        by_table.setdefault(plan.table_id, []).append(plan)
    return [
        TableBuildView(
            table_id,
            table_id in state.tables,
            state.priorities.get(table_id, 0),
            tuple(_job_view(builder, state, plan) for plan in sorted(jobs, key=lambda plan: plan.job_id)),
        )
        for table_id, jobs in sorted(by_table.items())
    ]


def _job_view(builder: Builder, state: BuildState, plan: BuildPlan) -> JobBuildView:
    views = [_range_view(builder, task) for task in state.jobs.get(plan.job_id, {}).values()]
    built = state.built.get(plan.job_id) == plan.version
    return JobBuildView(plan, plan.job_id in state.plans, built, tuple(sorted(views, key=lambda each: each.range_id)))


def _range_view(builder: Builder, task: BuildTask) -> RangeView:
    place, fault = place_of(task), ""
    if task.aborted:
        state = RangeState.ABORTED
    elif task.task_id in builder.finished:
        state = RangeState.FINISHED
    elif builder.calls.works_on(task, place):
        state = RangeState.WORKING
    elif (setback := builder.calls.setbacks.get(place)) is not None:
        state, fault = RangeState.FAILED, setback.fault
    else:
        state = RangeState.WAITING
    return RangeView(task.range_id, task.node_id, state, fault)
