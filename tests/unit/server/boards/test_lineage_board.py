"""The board of lineage: all of it where it is small, what is near the chosen table where it is large.

The lineage of targets: places that are one, lags that add up, the way to what holds a table up.

Graphs in layers: from left to right, without overlaps, with few crossings, whatever the graph is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from iscp.model.api.api_requests import JobView
from iscp.model.job.job_row import JobState
from iscp.server.boards.job_board import JobFacts, all_facts, facts_of
from iscp.server.boards.lineage_board import (
    BENDS_MAX,
    CHOICES_MAX,
    GAP_X,
    MARGIN,
    NODE_HEIGHT,
    NODE_WIDTH,
    NODES_MAX,
    WAY_MAX,
    LineageGraph,
    curve,
    key_of,
    layered_layout,
    lineage_board,
    lineage_graph,
    neighbourhood,
    way_to_the_reason,
)
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


def job(target: str, *tables: str, lag_s: float = 0.0, **changes: Any) -> JobFacts:
    options = {"tables": {str(number): table for number, table in enumerate(tables)}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": target, "options": options}}}
    named = {"table": tables[0], "table_id": f"id of {key_of(tables[0])}", "job_id": target or tables[0]}
    return facts_of(job_view(0, spec, lag_s=lag_s, **named, **changes))


def test_a_place_is_one_however_it_is_written() -> None:
    assert key_of("file:///lake/t/") == key_of("/lake/t") == "/lake/t"
    assert key_of("s3a://b/t") == key_of("s3://b/t//") == "s3://b/t"
    assert key_of("/") == "/"
    graph = lineage_graph([job("/b", "/a/"), job("/c/", "file:///b"), job("/d", "/c", "/a")])
    assert {key: node.inputs for key, node in graph.nodes.items()} == {
        "/a": (),
        "/b": ("/a",),
        "/c": ("/b",),
        "/d": ("/c", "/a"),
    }
    assert (graph.nodes["/a"].kind, graph.nodes["/d"].kind) == ("source", "view")


def test_lags_add_up_along_the_longest_way() -> None:
    graph = lineage_graph(
        [job("/b", "/a", lag_s=10.0), job("/c", "/a", lag_s=100.0), job("/d", "/b", "/c", lag_s=1.0), job("/e", "/x")]
    )
    assert {key: node.global_s for key, node in graph.nodes.items() if node.jobs} == {
        "/b": 10.0,
        "/c": 100.0,
        "/d": 101.0,
        "/e": 0.0,
    }
    assert graph.nodes["/d"].local_s == 1.0


def test_what_is_made_of_an_unknown_lag_has_none() -> None:
    graph = lineage_graph([job("/b", "/a", lag_s=-1.0), job("/c", "/b", lag_s=5.0)])
    assert graph.nodes["/c"].global_s == -1.0


def test_circles_and_a_table_that_is_made_of_itself_end() -> None:
    graph = lineage_graph([job("/a", "/b", lag_s=2.0), job("/b", "/a", lag_s=3.0), job("/c", "/c", lag_s=4.0)])
    assert graph.nodes["/c"].inputs == ()
    assert all(node.global_s >= node.local_s for node in graph.nodes.values())
    assert set(way_to_the_reason(graph, "/a")) == {"/a", "/b"}


def test_a_chain_of_thousands_of_views_is_no_matter() -> None:
    graph = lineage_graph(job(f"/t{n + 1}", f"/t{n}", lag_s=1.0) for n in range(5000))
    assert graph.nodes["/t5000"].global_s == 5000.0
    assert len(way_to_the_reason(graph, "/t5000")) == 5000


def test_a_long_way_through_much_takes_no_longer_than_it_is() -> None:
    """Each of these views reads the 60 before it; the way leads through all of them."""
    jobs = [
        job(f"/t{n + 1}", *(f"/t{each}" for each in range(n, max(-1, n - 60), -1)), lag_s=1.0) for n in range(6_000)
    ]
    graph, begun_s = lineage_graph(jobs), time.process_time()
    assert len(way_to_the_reason(graph, "/t6000")) == 6_000
    assert time.process_time() - begun_s < 3.0


def test_the_way_leads_to_what_is_not_fresh() -> None:
    jobs = [
        job("/b", "/a", state=JobState.ERROR, lag_s=10.0),
        job("/c", "/a", lag_s=500.0, late=True),
        job("/d", "/b", "/c"),
        job("/e", "/d"),
        job("/f", "/a"),
    ]
    graph = lineage_graph(jobs)
    # What has failed holds it up for longer than what is late.
    assert way_to_the_reason(graph, "/e") == ["/e", "/d", "/b"]
    assert way_to_the_reason(graph, "/f") == ["/f"]
    assert way_to_the_reason(graph, "/a") == ["/a"]


def test_several_jobs_of_one_target_are_one_node_and_one_without_a_target_is_its_own() -> None:
    graph = lineage_graph([job("/b", "/a", lag_s=1.0), job("/b", "/c", lag_s=9.0), job("", "/a")])
    assert [each.lag_s for each in graph.nodes["/b"].jobs] == [9.0, 1.0]
    assert set(graph.nodes["/b"].inputs) == {"/a", "/c"}
    assert graph.nodes["job /a"].inputs == ("/a",)


def test_the_nearest_are_around_a_node() -> None:
    graph = lineage_graph(job(f"/t{n + 1}", f"/t{n}") for n in range(100))
    assert neighbourhood(graph, "/t50", 5) == ["/t50", "/t49", "/t51", "/t48", "/t52"]
    assert len(neighbourhood(graph, "/t50", 1000)) == 101


def crossings(inputs: Mapping[str, Sequence[str]], corners: Mapping[str, tuple[int, int]]) -> int:
    edges = [(corners[each], corners[key]) for key, found in inputs.items() for each in found]
    return sum(
        (a[1] - c[1]) * (b[1] - d[1]) < 0
        for number, (a, b) in enumerate(edges)
        for c, d in edges[:number]
        if a[0] == c[0] and b[0] == d[0]
    )


def test_what_is_made_of_others_is_to_the_right_of_all_of_them() -> None:
    inputs = {"a": (), "b": ("a",), "c": ("b", "a"), "d": ("a",)}
    layout = layered_layout(list(inputs), inputs)
    columns = {key: x for key, (x, _) in layout.corners.items()}
    assert columns["a"] < columns["b"] == columns["d"] < columns["c"]
    assert layout.width == 2 * MARGIN + 3 * NODE_WIDTH + 2 * GAP_X


def test_lines_that_need_not_cross_do_not() -> None:
    inputs = {"a": (), "b": (), "c": (), "x": ("c",), "y": ("b",), "z": ("a",)}
    layout = layered_layout(["a", "b", "c", "x", "y", "z"], inputs)
    assert crossings(inputs, layout.corners) == 0


@pytest.mark.parametrize("seed", range(20))
def test_boxes_never_overlap_and_stay_in_the_drawing(seed: int) -> None:
    draw = random.Random(seed)
    keys = [f"n{number}" for number in range(draw.randrange(1, 60))]
    # Circles and edges to itself are among them.
    inputs = {key: [draw.choice(keys) for _ in range(draw.randrange(4))] for key in keys}
    layout = layered_layout(keys, inputs)
    assert set(layout.corners) == set(keys)
    assert len(set(layout.corners.values())) == len(keys)
    for x, y in layout.corners.values():
        assert MARGIN <= x <= layout.width - MARGIN - NODE_WIDTH
        assert MARGIN <= y <= layout.height - MARGIN - NODE_HEIGHT
    same_column = sorted(layout.corners.values())
    for (x1, y1), (x2, y2) in pairwise(same_column):
        assert x1 != x2 or y2 - y1 >= NODE_HEIGHT


def test_a_long_chain_and_nothing_at_all() -> None:
    keys = [str(number) for number in range(3000)]
    layout = layered_layout(keys, {key: [str(int(key) - 1)] for key in keys[1:]})
    assert len({x for x, _ in layout.corners.values()}) == 3000
    assert layered_layout([], {}).corners == {}


def test_the_same_graph_is_drawn_the_same() -> None:
    inputs = {"a": (), "b": ("a",), "c": ("a", "elsewhere")}
    assert layered_layout(list(inputs), inputs) == layered_layout(list(inputs), inputs)


def test_an_edge_over_several_layers_goes_around_what_is_between() -> None:
    inputs = {"a": (), "b": ("a",), "c": ("b",), "d": ("c", "a")}
    layout = layered_layout(list(inputs), inputs)
    first, second = layout.bends["a", "d"]
    assert [first[0], second[0]] == [layout.corners["b"][0], layout.corners["c"][0]]
    assert abs(first[1] - layout.corners["b"][1]) >= NODE_HEIGHT
    assert set(layout.bends) == {("a", "d")}
    assert set(layout.corners) == set(inputs)


def test_bends_are_bounded() -> None:
    keys = [str(number) for number in range(120)]
    inputs = {key: keys[: int(key)] for key in keys}  # each is made of all before it
    layout = layered_layout(keys, inputs)
    assert sum(map(len, layout.bends.values())) <= BENDS_MAX + len(keys)


def test_an_edge_goes_from_side_to_side() -> None:
    assert curve((0, 0), (500, 0), [(250, 60)]).endswith("H 440 C 470 83 470 23 500 23")
    assert curve((0, 0), (250, 60)) == "M 190 23 C 220 23 220 83 250 83"
