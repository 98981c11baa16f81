"""The board of the cluster: the ring, who holds how much, what moves, and what is wrong.

The board of builds: how far each is, and who catches up.
"""

from __future__ import annotations

import math
from dataclasses import replace

from iscp.model.api.api_requests import EventView, NodeView, ShardView
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.job.job_row import JobState, Reason
from iscp.server.boards.cluster_board import (
    BEHIND_MAX,
    BUILDS_MAX,
    EVENTS_MAX,
    MARKS_MAX,
    NODES_DRAWN_MAX,
    RING_RADIUS,
    SHARDS_MAX,
    builds_board,
    cluster_board,
)
from iscp.server.boards.job_board import all_facts
from tests.fakes.viewed_cluster import cluster_view, job_view


def test_arcs_are_as_long_as_the_nodes_have_shards() -> None:
    board = cluster_board(cluster_view(), [])
    assert [(row.node.node_id, row.owner, row.load) for row in board.nodes] == [
        *(("iscp-0", True, 0.75), ("iscp-1", False, 0.25))
    ]
    first, second = board.arcs
    # Three quarters of a turn from the top: clockwise, on the long way, to the left.
    assert first.path == "M 0.00 -100.00 A 100 100 0 1 1 -100.00 0.00"
    assert second.path.startswith("M -100.00 0.00 A 100 100 0 0 1 ")
    assert dict(board.states) == {"running": 4}


def test_a_node_that_holds_all_has_a_whole_turn_and_one_without_none() -> None:
    idle = replace(cluster_view().nodes[1], shards=0)
    board = cluster_board(cluster_view(nodes=(cluster_view().nodes[0], idle)), [])
    (arc,) = board.arcs
    assert " 0 1 1 " in arc.path


def test_shards_stand_where_their_hashes_lie() -> None:
    board = cluster_board(cluster_view(), [])
    assert {mark.color for mark in board.marks} == {0, 1}
    for mark in board.marks:
        assert abs(math.hypot(mark.x2, mark.y2) - (RING_RADIUS - 12)) < 0.2


def test_a_large_cluster_is_drawn_in_part() -> None:
    shards = tuple(ShardView(f"t{n}", f"/t{n}", "", "absent", 1) for n in range(10_000))
    nodes = tuple(NodeView(f"n{n}", n, "", 1, "1", "ready", 1, 0, 0) for n in range(NODES_DRAWN_MAX + 1))
    board = cluster_board(cluster_view(shards=shards, nodes=nodes), [])
    assert board.arcs == ()
    assert len(board.marks) <= MARKS_MAX
    assert (len(board.moving), board.moving_more) == (SHARDS_MAX, 10_000 - SHARDS_MAX)
    assert all(mark.color == -1 for mark in board.marks)


def test_what_is_wrong_is_said() -> None:
    old = replace(cluster_view().nodes[1], version="0.0.9", queue_waiting=-1)
    board = cluster_board(cluster_view(owner="", nodes=(cluster_view().nodes[0], old), left_out_count=3), [])
    assert [each.partition(" ")[0] for each in board.warnings] == ["The", "The", "Without", "The"]
    assert "0.0.9, 0.1.0" in board.warnings[1]
    assert "iscp-1" in board.warnings[2]
    assert cluster_board(cluster_view(), []).warnings == []


def test_the_newest_events_come_first() -> None:
    events = [EventView(1, n, float(n), "dispatch", "n", "s", "") for n in range(1, 200)]
    shown = cluster_board(cluster_view(), events).events
    assert (len(shown), shown[0].number) == (EVENTS_MAX, 199)


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
