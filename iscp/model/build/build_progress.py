"""Builds as operators see and change them: the views that `Builds` answers with, how they are made of what an owner
knows, and what operators' changes come to. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from iscp.model.build.build_task import DEPTH_MAX, BuildPlan, BuildTask, TaskType, depth
from iscp.model.rows.key_ranges import WHOLE, children, parent, sibling
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.progress import LEFT_MOST_S, NOTHING, UNCOUNTED, UNKNOWN, TableSize, rate, total_size

# --- answers of `Builds` ----------------------------------------------------------------------------------------------


class BuildStage(StrEnum):
    """The stage of a build: `waiting` for its table's turn, `building` while nodes stage ranges, `publishing` while all
    is staged but not visible yet.
    """

    WAITING = "waiting"
    BUILDING = "building"
    PUBLISHING = "publishing"


class TaskState(StrEnum):
    """The state of a task. `aborted` means that another task is about to take its place, at another node or of other
    ranges.
    """

    WAITING = "waiting"
    RUNNING = "running"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class BuildTaskView:
    """A range that is still to be built for a job; `node_id` is where it runs, or is to run."""

    range_id: int
    job_name: str
    node_id: str
    state: TaskState


@dataclass(frozen=True, slots=True)
class BuildNodeView:
    """The part of the snapshot that a node has built, on average of the jobs; UNKNOWN where it did not say."""

    node_id: str
    rows_done: int
    bytes_done: int


@dataclass(frozen=True, slots=True)
class BuildView:
    """The first snapshots of jobs of one account, of one version of their table, which are built together.

    `rows_total` and `bytes_total` are the snapshot's, `rows_done` and `bytes_done` how much of it is staged, on average
    of the jobs, by `nodes` too; `done_share` (0 to 1) is that of its bytes, or of its ranges where bytes are not
    counted. `began_at_s` is Unix time, 0 while it waits; where an owner took the build over, it is the time at which it
    did. The rates count the rows and bytes since then. UNKNOWN (-1) stands for what has no basis. `tasks` are the
    unfinished ones.
    """

    table: str
    table_id: str
    account: str
    jobs: tuple[str, ...]
    version: int
    state: BuildStage
    began_at_s: float = 0.0
    rows_total: int = UNKNOWN
    bytes_total: int = UNKNOWN
    done_share: float = 0.0
    rows_per_s: float = UNKNOWN
    bytes_per_s: float = UNKNOWN
    left_s: float = UNKNOWN
    tasks: tuple[BuildTaskView, ...] = ()
    rows_done: int = UNKNOWN
    bytes_done: int = UNKNOWN
    nodes: tuple[BuildNodeView, ...] = ()


def counts_by_node(tasks: Iterable[BuildTaskView]) -> dict[str, Counter[TaskState]]:
    """Return how many tasks of each state a node has, for nodes that have any, by their names."""
    counts: dict[str, Counter[TaskState]] = {}
    for task in tasks:
        counts.setdefault(task.node_id, Counter())[task.state] += 1
    return dict(sorted(counts.items()))


def counts_by_state(tasks: Iterable[BuildTaskView]) -> Counter[TaskState]:
    return Counter(task.state for task in tasks)


# --- progress ---------------------------------------------------------------------------------------------------------
# How far and how fast builds are follows from what an owner knows of them.

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


# --- changes by operators ---------------------------------------------------------------------------------------------
# Which ranges are split or merged, or why none is.


def builds_of(known: KnownBuilds, table: str, table_ids: Collection[str]) -> list[JobBuild]:
    """Return the builds of a table, which may have been dropped and recreated; raise InvalidRequest if there is
    none.
    """
    found = [each for each in known.jobs if each.plan.table_id in table_ids]
    if not found:
        raise InvalidRequest(f"{table} is not being built", about="table", remedy="See `iscp-admin build list`")
    return found


def live_ranges(builds: Iterable[JobBuild]) -> frozenset[int]:
    """Return the ranges that are still to be built for a job, in one piece, by a task that is not aborted."""
    return frozenset(
        task.range_id
        for build in builds
        if build.stage is BuildStage.BUILDING
        for task in build.tasks
        if task.task_type is TaskType.BUILD_RANGE and not task.aborted
    )


def ranges_to_split(builds: Sequence[JobBuild], range_id: int) -> list[int]:
    """Return the one range, or all if `range_id` is 0; raise InvalidRequest unless all of these can be cut."""
    live = live_ranges(builds)
    wanted = [range_id] if range_id else sorted(live)
    if not wanted or not live.issuperset(wanted):
        raise _no_range(range_id, live)
    pieces = max(each.plan.size.pieces for each in builds)
    for each in wanted:
        cuts = depth(each)
        if cuts >= DEPTH_MAX:
            raise _refused(f"{each} was cut {DEPTH_MAX} times, the most that is possible", "Split another range")
        if 0 <= pieces < 2 << cuts:
            raise _refused(
                f"{each} cannot be cut: the snapshot has {pieces} pieces (files, and parts of very large ones), "
                f"and there would be {2 << cuts} ranges of that size",
                f"Leave it, as ranges without rows give no node anything to do; {_largest_cuttable(pieces)} be split",
            )
    return wanted


def ranges_to_merge(builds: Sequence[JobBuild], range_id: int) -> list[int]:
    """Return the ranges that result: from the pair that `range_id` is half of, or (0) from all pairs of the smallest.

    Raises InvalidRequest if there is no such pair, of which both are still to be built for the same job.
    """
    live = live_ranges(builds)
    if not live or (range_id and range_id not in live):
        raise _no_range(range_id, live)
    if range_id == WHOLE:
        raise _refused("1 is the whole snapshot: it has no other half", "Merge another range")
    pairs = {parent(each) for build in builds for each in _paired(live_ranges([build]))}
    if range_id:
        if parent(range_id) not in pairs:
            raise _refused(
                f"{range_id} has no other half: {sibling(range_id)} is built already, or was cut itself",
                "See `iscp-admin build status`; merge its parts first",
            )
        return [parent(range_id)]
    if not pairs:
        raise _refused("there are no two halves that are both still to be built", "See `iscp-admin build status`")
    smallest = max(map(depth, pairs))
    return sorted(each for each in pairs if depth(each) == smallest)


def ranges_after_split(builds: Iterable[JobBuild], ranges: Iterable[int]) -> frozenset[int]:
    return live_ranges(builds).difference(ranges).union(*map(children, ranges))


def ranges_after_merge(builds: Iterable[JobBuild], ranges: Iterable[int]) -> frozenset[int]:
    """Return the ranges after a merge. A half that a job has without the other one stays."""
    return frozenset(each for build in builds for each in _merged(live_ranges([build]), ranges))


def _merged(live: frozenset[int], ranges: Iterable[int]) -> frozenset[int]:
    whole = [each for each in ranges if live.issuperset(children(each))]
    return live.difference(*map(children, whole)).union(whole)


def priority_to_be_next(known: KnownBuilds, table_ids: Collection[str]) -> tuple[str, int] | None:
    """Return the table of `table_ids` that waits, and the priority that makes its turn the next; None if it is so
    already.
    """
    begun = {each.plan.table_id for each in known.jobs if each.stage is BuildStage.BUILDING}
    waiting = list(
        dict.fromkeys(
            each.plan.table_id
            for each in known.jobs
            if each.stage is BuildStage.WAITING and each.plan.table_id not in begun
        )
    )
    mine = next((each for each in waiting if each in table_ids), None)
    if mine is None or waiting[0] in table_ids:
        return None
    return mine, 1 + max(known.priorities.get(each, 0) for each in waiting)


def _paired(live: frozenset[int]) -> Iterable[int]:
    return (each for each in live if each != WHOLE and live.issuperset(children(parent(each))))


def _largest_cuttable(pieces: int) -> str:
    """Return which ranges have halves that are not smaller than a piece on average, as the beginning of a sentence."""
    above = 1 << max(0, pieces.bit_length() - 1)
    return f"only ranges below {above} can" if above > WHOLE else "no range of it can"


def _no_range(range_id: int, live: frozenset[int]) -> InvalidRequest:
    if not live:
        return _refused("nothing of it is left to be built, or it has not begun", "See `iscp-admin build status`")
    return _refused(f"{range_id} is none of the ranges that are still to be built", "See `iscp-admin build status`")


def _refused(message: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(message, about="range", remedy=remedy)
