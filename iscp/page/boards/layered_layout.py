"""Place a graph in layers from left to right, so that few edges cross (after Sugiyama, Tagawa and Toda, 1981).

Edges that would close a circle are turned. A node's layer is the longest way to it. An edge over several layers has a
bend in each of those between, which takes a place as a node does. Within layers all of them are ordered by the mean
place of their neighbours, in a few sweeps to and fro.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWEEPS = 6
"""Sweeps over all layers by which the nodes in them are ordered; more change little."""

NODE_WIDTH, NODE_HEIGHT = 190, 46
"""Size of a node's box, in pixels."""

BENDS_MAX = 600
"""Nodes and bends of one drawing; further edges over several layers go straight, behind what is in their way."""

GAP_X, GAP_Y = 60, 14
"""Room between two layers, and between two nodes of a layer, in pixels."""

MARGIN = 8
"""Room around the drawing, in pixels."""


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The upper left corners of the nodes' boxes, by key, and the size of the drawing, all in pixels.

    `bends` has the corners of what stands between an input and what is made of it, by both.
    """

    corners: Mapping[str, tuple[int, int]]
    bends: Mapping[tuple[str, str], Sequence[tuple[int, int]]]
    width: int
    height: int


def layered_layout(keys: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> GraphLayout:
    """Return the layout of these nodes; inputs that are not among them are left out."""
    there = set(keys)
    before = _without_circles(keys, {key: [each for each in inputs.get(key, ()) if each in there] for key in keys})
    layers = _layers(keys, before)
    bends = _bend(layers, before)
    after: dict[str, list[str]] = {key: [] for layer in layers for key in layer}
    for key, found in before.items():
        for each in found:
            after[each].append(key)
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        rows = range(1, len(layers)) if forth else range(len(layers) - 2, -1, -1)
        for row in rows:
            layers[row] = _ordered(layers[row], before if forth else after, _places(layers))
    tallest = max(map(len, layers), default=0)
    corners = {}
    for column, layer in enumerate(layers):
        top = (tallest - len(layer)) * (NODE_HEIGHT + GAP_Y) // 2
        for row, key in enumerate(layer):
            corners[key] = MARGIN + column * (NODE_WIDTH + GAP_X), MARGIN + top + row * (NODE_HEIGHT + GAP_Y)
    width = 2 * MARGIN + max(0, len(layers) * (NODE_WIDTH + GAP_X) - GAP_X)
    corners_of_bends = {edge: [corners.pop(bend) for bend in found] for edge, found in bends.items()}
    return GraphLayout(corners, corners_of_bends, width, 2 * MARGIN + max(0, tallest * (NODE_HEIGHT + GAP_Y) - GAP_Y))


def curve(begin: tuple[int, int], end: tuple[int, int], bends: Sequence[tuple[int, int]] = ()) -> str:
    """Return the SVG path of an edge from the right side of one box to the left side of another, through bends, each
    of which is as wide as a box.
    """
    half = NODE_HEIGHT // 2
    x1, y1 = begin[0] + NODE_WIDTH, begin[1] + half
    path = f"M {x1} {y1}"
    for x2, y2, width in [*((x, y + half, NODE_WIDTH) for x, y in bends), (end[0], end[1] + half, 0)]:
        bend = max(GAP_X // 2, abs(x2 - x1) // 2)
        path += f" C {x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" + (f" H {x2 + width}" if width else "")
        x1, y1 = x2 + width, y2
    return path


def _bend(layers: list[list[str]], before: dict[str, list[str]]) -> dict[tuple[str, str], list[str]]:
    """Put a key of its own for each bend into the layers, and between the ends of its edge; return the bends of each
    edge, from the input on.
    """
    depth = {key: number for number, layer in enumerate(layers) for key in layer}
    found: dict[tuple[str, str], list[str]] = {}
    for key in list(before):
        for place, source in enumerate(before[key]):
            if (source, key) in found or depth[key] - depth[source] < 2 or len(depth) + _count(found) >= BENDS_MAX:
                continue
            bends = [f"{source}\n{key}\n{layer}" for layer in range(depth[source] + 1, depth[key])]
            found[source, key] = bends
            for layer, bend, previous in zip(
                range(depth[source] + 1, depth[key]), bends, [source, *bends], strict=False
            ):
                layers[layer].append(bend)
                before[bend] = [previous]
            before[key][place] = bends[-1]
    return found


def _count(bends: Mapping[tuple[str, str], Sequence[str]]) -> int:
    return sum(map(len, bends.values()))


def _without_circles(keys: Sequence[str], before: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the edges as (node: those before it), each that closes a circle turned; one to itself is left out."""
    found: dict[str, list[str]] = {key: [] for key in keys}
    state: dict[str, int] = {}
    for start in keys:
        stack = [(start, 0)]
        while stack:
            key, number = stack.pop()
            if number == 0:
                if key in state:
                    continue
                state[key] = 1
            if number == len(before[key]):
                state[key] = 2
                continue
            stack.append((key, number + 1))
            each = before[key][number]
            if each == key:
                continue
            if state.get(each) == 1:
                found[each].append(key)
            else:
                found[key].append(each)
                stack.append((each, 0))
    return found


def _layers(keys: Sequence[str], before: Mapping[str, Sequence[str]]) -> list[list[str]]:
    depth: dict[str, int] = {}
    for start in keys:
        stack = [start]
        while stack:
            key = stack[-1]
            waits_for = [each for each in before[key] if each not in depth]
            if waits_for:
                stack.extend(waits_for)
                continue
            stack.pop()
            depth[key] = 1 + max((depth[each] for each in before[key]), default=-1)
    layers: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for key in keys:
        layers[depth[key]].append(key)
    return layers


def _places(layers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return where each node is in its layer, from 0 to 1."""
    return {key: (row + 0.5) / len(layer) for layer in layers for row, key in enumerate(layer)}


def _ordered(layer: Sequence[str], neighbours: Mapping[str, Sequence[str]], places: Mapping[str, float]) -> list[str]:
    def mean(key: str) -> float:
        found = [places[each] for each in neighbours[key]]
        return sum(found) / len(found) if found else places[key]

    return sorted(layer, key=mean)
