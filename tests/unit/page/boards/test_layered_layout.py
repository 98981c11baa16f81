"""Graphs in layers: from left to right, without overlaps, with few crossings, whatever the graph is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from iscp.page.boards.layered_layout import BENDS_MAX, GAP_X, MARGIN, NODE_HEIGHT, NODE_WIDTH, curve, layered_layout


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
