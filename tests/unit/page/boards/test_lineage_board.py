"""The board of lineage: all of it where it is small, what is near the chosen table where it is large."""

from __future__ import annotations

from collections.abc import Iterable

from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobState
from iscp.page.boards.job_facts import all_facts
from iscp.page.boards.lineage_board import CHOICES_MAX, NODES_MAX, WAY_MAX, lineage_board
from iscp.page.boards.lineage_graph import LineageGraph, lineage_graph
from tests.fakes.viewed_cluster import job_view


def graph_of(jobs: Iterable[JobView]) -> LineageGraph:
    return lineage_graph(all_facts(jobs))


SMALL = graph_of([job_view(0), job_view(1, state=JobState.ERROR), job_view(2, table="/lake/copies/c1", table_id="x")])
LARGE = graph_of(job_view(n, table=f"/lake/copies/c{n - 1}", table_id=f"t{n}", lag_s=float(n)) for n in range(10_000))


def test_a_small_lineage_is_drawn_as_a_whole() -> None:
    board = lineage_board(SMALL, {})
    assert (board.total, len(board.boxes), len(board.edges), board.choices) == (5, 5, 3, ())
    assert (board.chosen, board.reason, board.missing) == (None, "", False)


def test_the_way_to_the_reason_is_marked_and_said() -> None:
    board = lineage_board(SMALL, {"place": "/lake/copies/c2"})
    assert [node.place for node in board.way] == ["/lake/copies/c2", "/lake/copies/c1"]
    assert board.reason == "It is held up by what it is made of: /lake/copies/c1 is failed."
    assert sum(edge.on_way for edge in board.edges) == 1
    assert [box.node.place for box in board.boxes if box.chosen] == ["/lake/copies/c2"]
    assert "the reason itself" in lineage_board(SMALL, {"place": "/lake/copies/c1/"}).reason
    assert "is fresh" in lineage_board(SMALL, {"place": "/lake/copies/c0"}).reason
    assert "at the beginning" in lineage_board(SMALL, {"place": "/lake/t0"}).reason


def test_of_a_lineage_of_ten_thousand_a_part_is_drawn() -> None:
    board = lineage_board(LARGE, {})
    assert (board.total, board.boxes, len(board.choices)) == (10_001, [], CHOICES_MAX)
    assert board.choices[0].place == "/lake/copies/c9999"  # it lies furthest behind
    chosen = lineage_board(LARGE, {"place": "/lake/copies/c5000"})
    assert len(chosen.boxes) == NODES_MAX
    assert chosen.choices == ()
    found = lineage_board(LARGE, {"words": "COPIES/c77"})
    assert all("c77" in node.place for node in found.choices)


def test_of_a_long_way_the_first_and_the_last_are_listed() -> None:
    board = lineage_board(LARGE, {"place": "/lake/copies/c9999"})
    assert (len(board.way), board.way_more) == (WAY_MAX, 9_999 - WAY_MAX)
    assert [node.place for node in (board.way[0], board.way[-2], board.way[-1])] == [
        "/lake/copies/c9999",
        f"/lake/copies/c{9_999 - WAY_MAX + 2}",
        "/lake/copies/c1",
    ]


def test_a_table_that_is_not_there_is_said() -> None:
    assert lineage_board(SMALL, {"place": "/elsewhere"}).missing
    assert lineage_board(graph_of(()), {}).total == 0
