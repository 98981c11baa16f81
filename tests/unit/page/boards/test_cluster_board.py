"""The board of the cluster: the ring, who holds how much, what moves, and what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

from iscp.core.api.api_views import EventView, NodeView, ShardView
from iscp.page.boards.cluster_board import (
    EVENTS_MAX,
    MARKS_MAX,
    NODES_DRAWN_MAX,
    RING_RADIUS,
    SHARDS_MAX,
    cluster_board,
)
from tests.fakes.viewed_cluster import cluster_view


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
