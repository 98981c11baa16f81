"""What is shown of builds, from what an owner knows of them: how far they are, and how fast. Without a clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iscp.core.api_builds import BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.build_task import BuildPlan, BuildTask, TaskType, depth
from iscp.core.progress import LEFT_MOST_S, UNKNOWN, TableSize, rate

_NOT_COUNTED = TableSize(UNKNOWN, UNKNOWN)
_ORDER = (BuildStage.BUILDING, BuildStage.PUBLISHING, BuildStage.WAITING)


@dataclass(frozen=True, slots=True)
class JobBuild:
    """One job's build.

    `tasks` are the unfinished ones, aborted ones too; before the plan is BUILDING there may be some, which say nothing.
    `began_at_s`: since when it is measured, in Unix time: its tasks were created then, or this owner took it over,
    with `share_then` of it done. `size` and `pieces` are the snapshot's, UNKNOWN where nobody has counted.
    """

    plan: BuildPlan
    stage: BuildStage
    tasks: tuple[BuildTask, ...] = ()
    began_at_s: float = 0.0
    share_then: float = 0.0
    size: TableSize = _NOT_COUNTED
    pieces: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class KnownBuilds:
    """All builds of a moment, those that wait in the order of their turns.

    `running`: ids of tasks that nodes work on. `priorities`: by table id, 0 where none is given; the highest is first.
    """

    jobs: tuple[JobBuild, ...] = ()
    running: frozenset[str] = frozenset()
    priorities: Mapping[str, int] = field(default_factory=dict)


def share_done(tasks: Iterable[BuildTask]) -> float:
    """How much of a job's snapshot is staged, by its unfinished tasks; those that are aborted stand for their ranges.

    Exact: the parts are powers of two.
    """
    ranges = {task.range_id for task in tasks if task.task_type is TaskType.BUILD_RANGE}
    return 1.0 - sum(2.0 ** -depth(each) for each in ranges)


def build_views(known: KnownBuilds, names: Mapping[str, str], now_s: float) -> list[BuildView]:
    """One for the jobs of an account, a table and a version together; what is being built comes first.

    `names`: of the tables, by their ids. `now_s`: Unix time as of now.
    """
    groups: dict[tuple[str, str, int], list[JobBuild]] = {}
    for build in known.jobs:
        plan = build.plan
        groups.setdefault((plan.table_id, plan.account, plan.version), []).append(build)
    views = [_view(builds, known.running, names, now_s) for builds in groups.values()]
    return sorted(views, key=lambda view: _ORDER.index(view.state))


def _view(builds: Sequence[JobBuild], running: Collection[str], names: Mapping[str, str], now_s: float) -> BuildView:
    plan = builds[0].plan
    stage = _stage(builds)
    done = _mean([_share(each) for each in builds])
    began_at_s = min((each.began_at_s for each in builds if each.began_at_s > 0), default=0.0)
    gained = done - _mean([each.share_then for each in builds])
    span_s = now_s - began_at_s if began_at_s and stage is BuildStage.BUILDING else 0.0
    rows, bytes_ = (max(values) for values in zip(*((each.size.rows, each.size.bytes) for each in builds), strict=True))
    return BuildView(
        table=names.get(plan.table_id, plan.table_uri),
        table_id=plan.table_id,
        account=plan.account,
        jobs=tuple(sorted(each.plan.job_name for each in builds)),
        version=plan.version,
        state=stage,
        began_at_s=began_at_s,
        rows_total=rows,
        bytes_total=bytes_,
        done_share=done,
        rows_per_s=rate(round(gained * rows), span_s),
        bytes_per_s=rate(round(gained * bytes_), span_s),
        left_s=_left_s(done, gained, span_s),
        tasks=tuple(_task_views(builds, running)),
    )


def _stage(builds: Sequence[JobBuild]) -> BuildStage:
    stages = {each.stage for each in builds}
    return stages.pop() if len(stages) == 1 else BuildStage.BUILDING


def _share(build: JobBuild) -> float:
    match build.stage:
        case BuildStage.WAITING:
            return 0.0
        case BuildStage.BUILDING:
            return share_done(build.tasks)
        case BuildStage.PUBLISHING:
            return 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _left_s(done: float, gained: float, span_s: float) -> float:
    if gained <= 0 or span_s <= 0:
        return UNKNOWN
    left_s = (1.0 - done) * span_s / gained
    return left_s if left_s <= LEFT_MOST_S else UNKNOWN


def _task_views(builds: Iterable[JobBuild], running: Collection[str]) -> list[BuildTaskView]:
    """In the order of the ranges, as they lie in the snapshot."""
    found = [
        BuildTaskView(task.range_id, build.plan.job_name, task.node_id, _task_state(task, running))
        for build in builds
        if build.stage is BuildStage.BUILDING
        for task in build.tasks
    ]
    return sorted(found, key=lambda task: (task.range_id, task.job_name))


def _task_state(task: BuildTask, running: Collection[str]) -> TaskState:
    if task.aborted:
        return TaskState.ABORTED
    return TaskState.RUNNING if task.task_id in running else TaskState.WAITING
