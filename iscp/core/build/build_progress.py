"""Make what is shown of builds, how far and how fast they are, from what an owner knows of them; without a clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from iscp.core.build.api_builds import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.build.build_task import BuildPlan, BuildTask, TaskType, depth
from iscp.core.values.progress import LEFT_MOST_S, NOTHING, UNCOUNTED, UNKNOWN, TableSize, rate, total_size

_ORDER = (BuildStage.BUILDING, BuildStage.PUBLISHING, BuildStage.WAITING)


@dataclass(frozen=True, slots=True)
class JobBuild:
    """One job's build.

    `tasks` are the unfinished ones, aborted ones too; before the plan is BUILDING there may be some, which say nothing.
    `done` is what nodes have read for it, by node. `began_at_s` is the Unix time from which it is measured: its tasks
    were created then, or this owner took it over, with `share_then` of its ranges done, and `done_then` of its rows.
    """

    plan: BuildPlan
    stage: BuildStage
    tasks: tuple[BuildTask, ...] = ()
    done: Mapping[str, TableSize] = field(default_factory=dict)
    began_at_s: float = 0.0
    share_then: float = 0.0
    done_then: TableSize = NOTHING


@dataclass(frozen=True, slots=True)
class KnownBuilds:
    """All builds at one moment; those that wait are in the order of their turns.

    `running` has the ids of tasks that nodes work on. `priorities` are by table id, 0 where none is given; the highest
    is first.
    """

    jobs: tuple[JobBuild, ...] = ()
    running: frozenset[str] = frozenset()
    priorities: Mapping[str, int] = field(default_factory=dict)


def share_done(tasks: Iterable[BuildTask]) -> float:
    """Return how much of a job's snapshot is staged, by its unfinished tasks; an aborted one stands for its range.

    The result is exact, as the parts are powers of two.
    """
    ranges = {task.range_id for task in tasks if task.task_type is TaskType.BUILD_RANGE}
    return 1.0 - sum(2.0 ** -depth(each) for each in ranges)


def build_views(known: KnownBuilds, names: Mapping[str, str], now_s: float) -> list[BuildView]:
    """Return one view for the jobs of an account, a table and a version together; what is being built comes first.

    `names` are those of the tables by their ids. `now_s` is the Unix time.
    """
    groups: dict[tuple[str, str, int], list[JobBuild]] = {}
    for build in known.jobs:
        plan = build.plan
        groups.setdefault((plan.table_id, plan.account, plan.version), []).append(build)
    views = [_view(builds, known.running, names, now_s) for builds in groups.values()]
    return sorted(views, key=lambda view: _ORDER.index(view.state))


def _view(builds: Sequence[JobBuild], running: Collection[str], names: Mapping[str, str], now_s: float) -> BuildView:
    plan, stage = builds[0].plan, _stage(builds)
    size = max((each.plan.size for each in builds), key=lambda each: (each.bytes, each.rows))
    began_at_s = min((each.began_at_s for each in builds if each.began_at_s > 0), default=0.0)
    span_s = now_s - began_at_s if began_at_s and stage is BuildStage.BUILDING else 0.0
    done, then = _average([_done(each) for each in builds]), _average([each.done_then for each in builds])
    share, share_then = _mean([_share(each) for each in builds]), _mean([each.share_then for each in builds])
    if size.bytes > 0 and done.bytes >= 0 and then.bytes >= 0:  # else by ranges, which differ in size
        share, share_then = min(done.bytes / size.bytes, 1.0), then.bytes / size.bytes
    return BuildView(
        table=names.get(plan.table_id, plan.table_uri),
        table_id=plan.table_id,
        account=plan.account,
        jobs=tuple(sorted(each.plan.job_name for each in builds)),
        version=plan.version,
        state=stage,
        began_at_s=began_at_s,
        rows_total=size.rows,
        bytes_total=size.bytes,
        done_share=share,
        rows_per_s=_gained(done.rows, then.rows, span_s),
        bytes_per_s=_gained(done.bytes, then.bytes, span_s),
        left_s=_left_s(share, share - share_then, span_s),
        tasks=tuple(_task_views(builds, running)),
        rows_done=done.rows,
        bytes_done=done.bytes,
        nodes=tuple(_node_views(builds)),
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


def _done(build: JobBuild) -> TableSize:
    """Return what is done; UNCOUNTED for a build that an earlier version has begun, which counted nothing."""
    size = build.plan.size
    if build.stage is BuildStage.WAITING:
        return NOTHING
    if size.bytes < 0:
        return UNCOUNTED
    done = total_size(build.done.values())
    if build.stage is BuildStage.BUILDING:
        return done
    return TableSize(size.rows if size.rows >= 0 else done.rows, size.bytes)


def _average(sizes: Sequence[TableSize]) -> TableSize:
    whole = total_size(sizes)
    rows, bytes_ = (each // len(sizes) if each >= 0 else each for each in (whole.rows, whole.bytes))
    return TableSize(rows, bytes_)


def _node_views(builds: Sequence[JobBuild]) -> Iterator[BuildNodeView]:
    counted = [each for each in builds if each.plan.size.bytes >= 0]
    for node_id in sorted({node_id for build in counted for node_id in build.done}):
        size = _average([build.done.get(node_id, NOTHING) for build in builds])
        yield BuildNodeView(node_id, size.rows, size.bytes)


def _gained(done: int, then: int, span_s: float) -> float:
    return rate(done - then, span_s) if done >= 0 and then >= 0 else UNKNOWN


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _left_s(done: float, gained: float, span_s: float) -> float:
    if gained <= 0 or span_s <= 0:
        return UNKNOWN
    left_s = (1.0 - done) * span_s / gained
    return left_s if left_s <= LEFT_MOST_S else UNKNOWN


def _task_views(builds: Iterable[JobBuild], running: Collection[str]) -> list[BuildTaskView]:
    """Return views of the tasks in the order of the ranges, as they lie in the snapshot."""
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
