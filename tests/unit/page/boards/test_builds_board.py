"""The board of builds: how far each is, and who catches up."""

from __future__ import annotations

from dataclasses import replace

from iscp.core.build.api_builds import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.core.job.job_row import JobState, Reason
from iscp.page.boards.builds_board import BEHIND_MAX, BUILDS_MAX, builds_board
from iscp.page.boards.job_facts import all_facts
from tests.fakes.viewed_cluster import job_view

BUILD = BuildView("/lake/t", "id", "acme", ("copy",), 5, BuildStage.BUILDING)


def test_a_build_says_how_far_it_is_and_by_whom() -> None:
    tasks = tuple(BuildTaskView(n, "copy", "n0", TaskState.RUNNING if n else TaskState.WAITING) for n in range(3))
    nodes = (BuildNodeView("n0", 1, 300), BuildNodeView("n1", 1, 100), BuildNodeView("n2", -1, -1))
    (row,) = builds_board([replace(BUILD, done_share=0.42, tasks=tasks, nodes=nodes)], ()).builds
    assert (row.done, row.tasks) == (0.42, "2 running, 1 waiting")
    assert row.nodes == [("n0", 0.75), ("n1", 0.25), ("n2", 0.0)]


def test_jobs_with_versions_to_apply_catch_up() -> None:
    jobs = all_facts(
        [
            job_view(1, source_version=9),
            job_view(2, source_version=90, lag_s=5.0, late=True),
            job_view(3),
            job_view(4, source_version=99, reason=Reason.PAUSED),
            job_view(5, source_version=99, state=JobState.ERROR),
            job_view(6, source_version=99, applied_version=-1),
        ]
    )
    assert [(each.job.name, each.versions) for each in builds_board([], jobs).behind] == [("copy2", 83), ("copy1", 2)]


def test_many_are_counted() -> None:
    jobs = all_facts(job_view(n, source_version=9) for n in range(BEHIND_MAX + 3))
    board = builds_board([BUILD] * (BUILDS_MAX + 2), jobs)
    assert (len(board.builds), board.builds_more, len(board.behind), board.behind_more) == (
        BUILDS_MAX,
        2,
        BEHIND_MAX,
        3,
    )
