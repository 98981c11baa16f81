"""How far builds are, and how fast: only what their unfinished tasks and the time show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.build.build_progress import (
    BuildNodeView,
    BuildStage,
    BuildTaskView,
    BuildView,
    JobBuild,
    KnownBuilds,
    TaskState,
    build_views,
    counts_by_node,
    counts_by_state,
    share_done,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.model.rows.key_ranges import children
from iscp.model.values.progress import LEFT_MOST_S, UNCOUNTED, UNKNOWN, UNSIZED, SnapshotSize, TableSize

SIZE = SnapshotSize(1_000, 8_000, 16)


def plan(job_name: str, table_id: str = "t-1", account: str = "a", version: int = 7) -> BuildPlan:
    return BuildPlan(f"id-{job_name}", account, table_id, job_name, f"/tables/{table_id}", version, "{}", 0, 2, SIZE)


def task(range_id: int, job_name: str = "x", node_id: str = "n-1", *, aborted: bool = False) -> BuildTask:
    task_id = f"{job_name}-{range_id}"
    return BuildTask(task_id, TaskType.BUILD_RANGE, aborted, "t-1", f"id-{job_name}", range_id, node_id)


def building(job_name: str, *ranges: int, rows: int = 0) -> JobBuild:
    """Begun at 1,000 s, with these ranges unfinished, and so many rows of 8 bytes done by n-1."""
    tasks = tuple(task(each, job_name) for each in ranges)
    done = {"n-1": TableSize(rows, 8 * rows)} if rows else {}
    return JobBuild(plan(job_name), BuildStage.BUILDING, tasks, done, began_at_s=1_000.0)


def shown(build: JobBuild, now_s: float = 1_010.0) -> BuildView:
    (view,) = build_views(KnownBuilds((build,)), {}, now_s)
    return view


@pytest.mark.parametrize(
    ("ranges", "share"), [((1,), 0.0), ((4, 5, 6, 7), 0.0), ((5, 6, 7), 0.25), ((2, 13), 0.375), ((), 1.0)]
)
def test_a_part_without_an_unfinished_task_is_done(ranges: tuple[int, ...], share: float) -> None:
    assert share_done(task(each) for each in ranges) == share


@given(st.lists(st.integers(0, 2**16), max_size=40), st.data())
def test_cutting_and_finishing_count_every_part_once(cuts: list[int], data: st.DataObject) -> None:
    """Whatever is cut: nothing is done by that, and each range that is finished is as much as it is of the whole."""
    live = [1]
    for cut in cuts:
        range_id = live[cut % len(live)]
        if range_id.bit_length() <= 16:
            live.remove(range_id)
            live += children(range_id)
    assert share_done(map(task, live)) == 0.0
    finished = data.draw(st.sets(st.sampled_from(live)))
    left = [task(each) for each in live if each not in finished]
    assert share_done(left) == sum(2.0 ** (1 - each.bit_length()) for each in finished)


def test_an_aborted_task_stands_for_its_range() -> None:
    assert share_done([task(2, aborted=True), task(3)]) == 0.0


def test_a_build_is_shown_with_its_rate_and_what_is_left_at_that_rate() -> None:
    """By what the finished ranges had, which is not the same in all of them."""
    (view,) = build_views(KnownBuilds((building("x", 5, 6, 7, rows=400),)), {"t-1": "orders"}, 1_010.0)
    assert (view.table, view.table_id, view.account, view.jobs, view.version) == ("orders", "t-1", "a", ("x",), 7)
    assert (view.state, view.began_at_s) == (BuildStage.BUILDING, 1_000.0)
    assert (view.rows_total, view.bytes_total, view.done_share) == (1_000, 8_000, 0.4)
    assert (view.rows_done, view.bytes_done, view.nodes) == (400, 3_200, (BuildNodeView("n-1", 400, 3_200),))
    assert (view.rows_per_s, view.bytes_per_s, round(view.left_s, 6)) == (40.0, 320.0, 15.0)


def test_an_owner_that_takes_a_build_over_counts_what_is_done_since_then() -> None:
    taken_over = replace(building("x", 7, rows=750), share_then=0.25, done_then=TableSize(500, 4_000))
    view = shown(taken_over)
    assert (view.done_share, view.rows_per_s, view.left_s) == (0.75, 25.0, 10.0)


def test_a_build_of_an_earlier_version_which_counted_nothing_is_shown_by_its_ranges() -> None:
    earlier = replace(building("x", 7, rows=100), plan=replace(plan("x"), size=UNSIZED), share_then=0.5)
    view = shown(earlier)
    assert (view.rows_total, view.rows_done, view.rows_per_s, view.nodes) == (UNKNOWN, UNKNOWN, UNKNOWN, ())
    assert (view.bytes_total, view.bytes_done, view.bytes_per_s) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert (view.done_share, view.left_s) == (0.75, 10.0)


def test_what_a_node_of_an_earlier_version_has_built_leaves_the_sum_open() -> None:
    mixed = replace(building("x", 7), done={"n-1": TableSize(500, 4_000), "n-2": UNCOUNTED}, share_then=0.5)
    view = shown(mixed)
    assert (view.rows_total, view.rows_done, view.bytes_done, view.rows_per_s) == (1_000, UNKNOWN, UNKNOWN, UNKNOWN)
    assert view.nodes == (BuildNodeView("n-1", 500, 4_000), BuildNodeView("n-2", UNKNOWN, UNKNOWN))
    assert (view.done_share, view.left_s) == (0.75, 10.0)


def test_rows_that_no_statistics_know_are_counted_as_they_are_done() -> None:
    open_end = replace(plan("x"), size=SnapshotSize(UNKNOWN, 8_000, 16))
    view = shown(replace(building("x", 2, rows=400), plan=open_end))
    assert (view.rows_total, view.rows_done, view.rows_per_s, view.done_share) == (UNKNOWN, 400, 40.0, 0.4)
    staged = shown(replace(building("x", rows=990), plan=open_end, stage=BuildStage.PUBLISHING))
    assert (staged.rows_done, staged.bytes_done, staged.done_share) == (990, 8_000, 1.0)


def test_no_more_is_done_than_there_is() -> None:
    """An owner of an earlier version has begun it again, and not what was counted."""
    assert shown(building("x", 7, rows=1_200)).done_share == 1.0


def test_without_a_basis_nothing_is_estimated() -> None:
    """Nothing done yet, no time passed or a clock set back, too much time left, or rows that nobody counted."""
    half = building("x", 2, rows=500)
    for known, now_s in ((building("x", 1), 1_010.0), (half, 1_000.0), (half, 990.0)):
        view = shown(known, now_s)
        assert (view.rows_per_s, view.bytes_per_s, view.left_s) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert shown(building("x", *range(2**10 + 1, 2**11), rows=1), 1_000.0 + LEFT_MOST_S).left_s == UNKNOWN


def test_jobs_of_a_table_and_version_are_one_build_and_accounts_see_their_own() -> None:
    known = [building("x", 2, rows=500), building("y", 2, 3)]
    other = replace(building("z", 1), plan=plan("z", account="b"))
    later = replace(building("w", 1), plan=plan("w", version=8))
    views = build_views(KnownBuilds((*known, other, later)), {}, 1_010.0)
    assert [(view.account, view.version, view.jobs) for view in views] == [
        ("a", 7, ("x", "y")),
        ("b", 7, ("z",)),
        ("a", 8, ("w",)),
    ]
    assert (views[0].done_share, views[0].rows_done, views[0].nodes[0].rows_done) == (0.25, 250, 250)
    assert views[0].table == "/tables/t-1"


def test_a_build_is_as_far_as_its_jobs_and_what_is_built_comes_first() -> None:
    waiting = JobBuild(plan("w", "t-2"), BuildStage.WAITING, (task(3, "w"),))
    built = JobBuild(plan("b", "t-3"), BuildStage.PUBLISHING, began_at_s=900.0)
    half = replace(built, plan=plan("b"))
    views = build_views(KnownBuilds((waiting, built, building("x", 3, rows=500), half)), {}, 1_010.0)
    assert [(view.table_id, view.state, view.done_share) for view in views] == [
        ("t-1", BuildStage.BUILDING, 0.75),
        ("t-3", BuildStage.PUBLISHING, 1.0),
        ("t-2", BuildStage.WAITING, 0.0),
    ]
    assert [view.left_s for view in views[1:]] == [UNKNOWN, UNKNOWN]
    assert views[2].tasks == ()  # of a creation that is not complete
    assert views[0].began_at_s == 900.0


def test_tasks_are_shown_by_range_and_counted_by_node_and_state() -> None:
    tasks = (task(6, node_id="n-2"), task(5, aborted=True), task(4))
    known = KnownBuilds((replace(building("x"), tasks=tasks),), running=frozenset(["x-4", "x-5"]))
    (view,) = build_views(known, {}, 1_010.0)
    assert view.tasks == (
        BuildTaskView(4, "x", "n-1", TaskState.RUNNING),
        BuildTaskView(5, "x", "n-1", TaskState.ABORTED),
        BuildTaskView(6, "x", "n-2", TaskState.WAITING),
    )
    assert counts_by_node(view.tasks) == {
        "n-1": {TaskState.RUNNING: 1, TaskState.ABORTED: 1},
        "n-2": {TaskState.WAITING: 1},
    }
    assert counts_by_state(view.tasks).total() == 3
