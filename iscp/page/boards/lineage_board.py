"""The board of lineage: sources, views, indexes and feeds as a graph, with what holds each of them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp.page.boards.freshness_board import FILTER_CHARS_MAX
from iscp.page.boards.layered_layout import NODE_HEIGHT, NODE_WIDTH, curve, layered_layout
from iscp.page.boards.lineage_graph import (
    LineageGraph,
    LineageNode,
    key_of,
    neighbourhood,
    way_to_the_reason,
)
from iscp.page.boards.shown_values import short

NODES_MAX = 120
"""Nodes that one drawing has; of a larger lineage the ones around the chosen node are drawn."""

CHOICES_MAX = 50
"""Nodes that the board offers to choose where the lineage is too large for one drawing, the worst ones."""

WAY_MAX = 100
"""Nodes of the way upstream that the board lists, the first ones and the last; how many are left out is said."""

PLACE_CHARS_MAX = 4_000
"""Characters of a node's place in an address; the rest is not read."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the drawing. `on_way`: it is on the way from the chosen node to what holds it up."""

    node: LineageNode
    key: str
    x: int
    y: int
    chosen: bool
    on_way: bool


@dataclass(frozen=True, slots=True)
class Edge:
    path: str
    on_way: bool


@dataclass(frozen=True, slots=True)
class LineageBoard:
    """`total` counts all nodes. `way` leads from the chosen node upstream, without `way_more` nodes before its last;
    `choices` are offered where not all are drawn.
    """

    chosen: LineageNode | None
    words: str
    boxes: Sequence[Box]
    edges: Sequence[Edge]
    width: int
    height: int
    total: int
    way: Sequence[LineageNode]
    way_more: int
    reason: str
    choices: Sequence[LineageNode]
    missing: bool
    box_width: int = NODE_WIDTH
    box_height: int = NODE_HEIGHT


def lineage_board(graph: LineageGraph, query: Mapping[str, str]) -> LineageBoard:
    """Return the board of a lineage. `query`: the place of the chosen node, or words in the names of nodes."""
    place, words = query.get("place", "")[:PLACE_CHARS_MAX], short(query.get("words", "").strip(), FILTER_CHARS_MAX)
    key = key_of(place) if place else ""
    chosen = graph.nodes.get(key)
    way = way_to_the_reason(graph, key) if chosen is not None else ()
    drawn = _drawn_keys(graph, key if chosen is not None else "")
    boxes, edges, size = _drawing(graph, drawn, key, set(way))
    return LineageBoard(
        chosen=chosen,
        words=words,
        boxes=boxes,
        edges=edges,
        width=size[0],
        height=size[1],
        total=len(graph.nodes),
        way=[graph.nodes[each] for each in (way if len(way) <= WAY_MAX else [*way[: WAY_MAX - 1], way[-1]])],
        way_more=max(0, len(way) - WAY_MAX),
        reason=_reason(graph, way),
        choices=_choices(graph, words) if words or (not drawn and graph.nodes) else (),
        missing=bool(place) and chosen is None,
    )


def _drawn_keys(graph: LineageGraph, key: str) -> Sequence[str]:
    if key:
        return neighbourhood(graph, key, NODES_MAX)
    return list(graph.nodes) if len(graph.nodes) <= NODES_MAX else ()


def _drawing(
    graph: LineageGraph, keys: Sequence[str], chosen: str, way: set[str]
) -> tuple[Sequence[Box], Sequence[Edge], tuple[int, int]]:
    inputs = {key: graph.nodes[key].inputs for key in keys}
    layout = layered_layout(keys, inputs)
    boxes = [
        Box(graph.nodes[key], key, *layout.corners[key], chosen=key == chosen, on_way=key in way and len(way) > 1)
        for key in keys
    ]
    edges = [
        Edge(
            curve(layout.corners[each], layout.corners[key], layout.bends.get((each, key), ())),
            on_way=key in way and each in way,
        )
        for key in keys
        for each in inputs[key]
        if each in layout.corners
    ]
    return boxes, edges, (layout.width, layout.height)


def _reason(graph: LineageGraph, way: Sequence[str]) -> str:
    if not way:
        return ""
    first, last = graph.nodes[way[0]], graph.nodes[way[-1]]
    if not first.jobs:
        return "Nothing here maintains it: it is a table at the beginning."
    if len(way) == 1:
        fresh = first.condition == "fresh" and first.global_least_s == 0.0
        return (
            "It is fresh, and so is all that it is made of."
            if fresh
            else "All that it is made of is fresh: it is the reason itself."
        )
    return f"It is held up by what it is made of: {short(last.place, 200)} is {last.condition}."


def _choices(graph: LineageGraph, words: str) -> Sequence[LineageNode]:
    wanted = words.casefold().split()
    found = [node for node in graph.nodes.values() if all(each in node.place.casefold() for each in wanted)]
    found.sort(key=lambda node: (node.condition in ("fresh", "source"), -node.global_s))
    return found[:CHOICES_MAX]
