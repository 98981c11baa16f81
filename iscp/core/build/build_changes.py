"""Decide what operators' changes of builds come to: which ranges are split or merged, or why none is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from iscp.core.build.api_builds import BuildStage
from iscp.core.build.build_progress import JobBuild, KnownBuilds
from iscp.core.build.build_task import DEPTH_MAX, TaskType, depth
from iscp.core.rows.range_tree import WHOLE, children, parent, sibling
from iscp.core.values.errors import InvalidRequest


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
