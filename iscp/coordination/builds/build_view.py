"""Show the builds that the owner's builder knows, and how far they are."""

from __future__ import annotations

from dataclasses import replace

from iscp.coordination.builds.build_counts import done_by_node
from iscp.coordination.builds.build_state import BuildState
from iscp.coordination.builds.builder import Builder
from iscp.core.build.api_builds import BuildStage
from iscp.core.build.build_progress import JobBuild, KnownBuilds
from iscp.core.build.build_task import BuildPlan


def known_builds(builder: Builder, clock_at_s: float = 0.0) -> KnownBuilds:
    """Return the tables with a build that is wanted or goes on, in the order of their turns. Raises Unavailable.

    `clock_at_s`: Unix time at which the builder's clock was 0.
    """
    state = builder.loaded()
    plans = {**builder.turns.wanted, **state.plans}
    turns = {table_id: place for place, table_id in enumerate(builder.turns.waiting)}
    ordered = sorted(plans.values(), key=lambda plan: (turns.get(plan.table_id, -1), plan.job_id))
    running = frozenset(task_id for call in builder.calls.by_number.values() for task_id in call.task_ids)
    return KnownBuilds(
        tuple(_job_build(builder, state, plan, clock_at_s) for plan in ordered), running, dict(state.priorities)
    )


def _job_build(builder: Builder, state: BuildState, plan: BuildPlan, clock_at_s: float) -> JobBuild:
    tasks = [each for each in state.jobs.get(plan.job_id, {}).values() if each.task_id not in builder.finished]
    build = JobBuild(plan, _stage(state, plan), tuple(sorted(tasks, key=lambda task: task.range_id)))
    start = builder.starts.by_job.get(plan.job_id)
    if build.stage is BuildStage.WAITING or start is None or start.version != plan.version:
        return build
    return replace(
        build,
        done=done_by_node(state, builder.finished, plan.job_id),
        began_at_s=clock_at_s + start.at_s,
        share_then=start.share,
        done_then=start.done,
    )


def _stage(state: BuildState, plan: BuildPlan) -> BuildStage:
    if state.built.get(plan.job_id) == plan.version:
        return BuildStage.PUBLISHING
    return BuildStage.BUILDING if plan.job_id in state.plans else BuildStage.WAITING
