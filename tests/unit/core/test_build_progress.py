"""How far builds are, and how fast: only what their unfinished tasks and the time show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.api_builds import BuildStage, BuildTaskView, TaskState, counts_by_node, counts_by_state
from iscp.core.build_progress import JobBuild, KnownBuilds, build_views, share_done
from iscp.core.build_task import BuildPlan, BuildTask, TaskType
from iscp.core.progress import LEFT_MOST_S, UNKNOWN, TableSize
from iscp.core.range_tree import children

SIZE = TableSize(1_000, 8_000)


def plan(job_name: str, table_id: str = "t-1", account: str = "a", version: int = 7) -> BuildPlan:
    return BuildPlan(f"id-{job_name}", account, table_id, job_name, f"/tables/{table_id}", version, "{}", 0, 2)


def task(range_id: int, job_name: str = "x", node_id: str = "n-1", *, aborted: bool = False) -> BuildTask:
    task_id = f"{job_name}-{range_id}"
    return BuildTask(task_id, TaskType.BUILD_RANGE, aborted, "t-1", f"id-{job_name}", range_id, node_id)


def building(job_name: str, *ranges: int) -> JobBuild:
    """Begun at 1,000 s, with these ranges unfinished."""
    tasks = tuple(task(each, job_name) for each in ranges)
    return JobBuild(plan(job_name), BuildStage.BUILDING, tasks, began_at_s=1_000.0, size=SIZE)


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
    (view,) = build_views(KnownBuilds((building("x", 5, 6, 7),)), {"t-1": "orders"}, 1_010.0)
    assert (view.table, view.table_id, view.account, view.jobs, view.version) == ("orders", "t-1", "a", ("x",), 7)
    assert (view.state, view.began_at_s) == (BuildStage.BUILDING, 1_000.0)
    assert (view.rows_total, view.bytes_total, view.done_share) == (1_000, 8_000, 0.25)
    assert (view.rows_per_s, view.bytes_per_s, view.left_s) == (25.0, 200.0, 30.0)


def test_an_owner_that_takes_a_build_over_counts_what_is_done_since_then() -> None:
    taken_over = replace(building("x", 7), share_then=0.5)
    (view,) = build_views(KnownBuilds((taken_over,)), {}, 1_010.0)
    assert (view.done_share, view.rows_per_s, view.left_s) == (0.75, 25.0, 10.0)


def test_without_a_basis_nothing_is_estimated() -> None:
    """Nothing done yet, no time passed or a clock set back, too much time left, or rows that nobody counted."""
    for known, now_s in ((building("x", 1), 1_010.0), (building("x", 2), 1_000.0), (building("x", 2), 990.0)):
        (view,) = build_views(KnownBuilds((known,)), {}, now_s)
        assert (view.rows_per_s, view.bytes_per_s, view.left_s) == (UNKNOWN, UNKNOWN, UNKNOWN)
    slow = building("x", *range(2**10 + 1, 2**11))
    (view,) = build_views(KnownBuilds((slow,)), {}, 1_000.0 + LEFT_MOST_S)
    assert view.left_s == UNKNOWN
    uncounted = replace(building("x", 2), size=TableSize(UNKNOWN, 8_000))
    (view,) = build_views(KnownBuilds((uncounted,)), {}, 1_010.0)
    assert (view.rows_total, view.rows_per_s, view.bytes_per_s, view.left_s) == (UNKNOWN, UNKNOWN, 400.0, 10.0)


def test_jobs_of_a_table_and_version_are_one_build_and_accounts_see_their_own() -> None:
    known = [building("x", 2), building("y", 2, 3)]
    other = replace(building("z", 1), plan=plan("z", account="b"))
    later = replace(building("w", 1), plan=plan("w", version=8))
    views = build_views(KnownBuilds((*known, other, later)), {}, 1_010.0)
    assert [(view.account, view.version, view.jobs) for view in views] == [
        ("a", 7, ("x", "y")),
        ("b", 7, ("z",)),
        ("a", 8, ("w",)),
    ]
    assert views[0].done_share == 0.25
    assert views[0].table == "/tables/t-1"


def test_a_build_is_as_far_as_its_jobs_and_what_is_built_comes_first() -> None:
    waiting = JobBuild(plan("w", "t-2"), BuildStage.WAITING, (task(3, "w"),))
    built = JobBuild(plan("b", "t-3"), BuildStage.PUBLISHING, began_at_s=900.0)
    half = replace(built, plan=plan("b"))
    views = build_views(KnownBuilds((waiting, built, building("x", 3), half)), {}, 1_010.0)
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
