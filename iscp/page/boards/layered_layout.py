"""Place a graph in layers from left to right, so that few edges cross (after Sugiyama, Tagawa and Toda, 1981).

Edges that would close a circle are turned. A node's layer is the longest way to it. Within layers nodes are ordered by
the mean place of their neighbours, in a few sweeps to and fro.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWEEPS = 6
"""Sweeps over all layers by which the nodes in them are ordered; more change little."""

NODE_WIDTH, NODE_HEIGHT = 190, 46
"""Size of a node's box, in pixels."""

GAP_X, GAP_Y = 60, 14
"""Room between two layers, and between two nodes of a layer, in pixels."""

MARGIN = 8
"""Room around the drawing, in pixels."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The upper left corners of the nodes' boxes, by key, and the size of the drawing, all in pixels."""

    corners: Mapping[str, tuple[int, int]]
    width: int
    height: int


def layered_layout(keys: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> Layout:
    """Return the layout of these nodes; inputs that are not among them are left out."""
    there = set(keys)
    before = _without_circles(keys, {key: [each for each in inputs.get(key, ()) if each in there] for key in keys})
    layers = _layers(keys, before)
    after: dict[str, list[str]] = {key: [] for key in keys}
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
    return Layout(corners, width, 2 * MARGIN + max(0, tallest * (NODE_HEIGHT + GAP_Y) - GAP_Y))


def curve(begin: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the SVG path of an edge from the right side of one box to the left side of another."""
    x1, y1 = begin[0] + NODE_WIDTH, begin[1] + NODE_HEIGHT // 2
    x2, y2 = end[0], end[1] + NODE_HEIGHT // 2
    bend = max(GAP_X // 2, abs(x2 - x1) // 2)
    return f"M {x1} {y1} C {x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


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
