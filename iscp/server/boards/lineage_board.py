"""The board of lineage: sources, views, indexes and feeds as a graph, with what holds each of them up.

The module has the layout of a graph, the lineage itself, and the board that draws it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iscp.model.metrics.metric_readings import chain_lags
from iscp.server.boards.freshness_board import FILTER_CHARS_MAX
from iscp.server.boards.job_board import JobFacts, short

# --- the layout of a graph --------------------------------------------------------------------------------------------
# Nodes are placed in layers from left to right, so that few edges cross (after Sugiyama, Tagawa and Toda, 1981). Edges
# that would close a circle are turned. A node's layer is the longest way to it. An edge over several layers has a bend
# in each of those between, which takes a place as a node does. Within layers nodes and bends are ordered by the mean
# place of their neighbours, in a few sweeps to and fro.

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
    places = {key: place for layer in layers for key, place in _places(layer).items()}
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        rows = range(1, len(layers)) if forth else range(len(layers) - 2, -1, -1)
        for row in rows:
            layers[row] = _ordered(layers[row], before if forth else after, places)
            places.update(_places(layers[row]))
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


def _places(layer: Sequence[str]) -> dict[str, float]:
    """Return where each node is in its layer, from 0 to 1."""
    return {key: (row + 0.5) / len(layer) for row, key in enumerate(layer)}


def _ordered(layer: Sequence[str], neighbours: Mapping[str, Sequence[str]], places: Mapping[str, float]) -> list[str]:
    def mean(key: str) -> float:
        found = [places[each] for each in neighbours[key]]
        return sum(found) / len(found) if found else places[key]

    return sorted(layer, key=mean)


# --- the lineage of all targets ---------------------------------------------------------------------------------------
# The lineage says which targets are made of which, and how far each lies behind the tables at the beginning.

SCHEMES = ("file://", "s3://", "s3a://")
"""Beginnings of places that are written in several ways."""


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A place: a table that nobody here maintains (`jobs` is empty), or the target of jobs.

    `local_s` is how far its jobs lie behind what they read, `global_s` how far it lies behind the tables at the
    beginning of all ways to it: at most, and for certain; seconds, -1: not known.
    """

    place: str
    jobs: tuple[JobFacts, ...] = ()
    inputs: tuple[str, ...] = ()
    local_s: float = 0.0
    local_least_s: float = 0.0
    global_s: float = 0.0
    global_least_s: float = 0.0

    @property
    def kind(self) -> str:
        return self.jobs[0].kind if self.jobs else "source"

    @property
    def condition(self) -> str:
        return self.jobs[0].condition if self.jobs else "source"


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """All nodes by their keys, and which nodes are made of each."""

    nodes: Mapping[str, LineageNode]
    outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)


def key_of(place: str) -> str:
    """Return what is equal for the ways to write one place: without a scheme of files, and slashes at its end."""
    for scheme in SCHEMES:
        if place.startswith(scheme):
            place = place[len(scheme) :] if scheme == "file://" else f"s3://{place[len(scheme) :]}"
            break
    return place.rstrip("/") or place


def lineage_graph(jobs: Iterable[JobFacts]) -> LineageGraph:
    """Return the graph of these jobs; one without a target is an end of its own. Jobs in a circle lag by what is known
    of their own.
    """
    by_key: dict[str, list[JobFacts]] = {}
    table_ids: dict[str, str] = {}
    for job in jobs:
        by_key.setdefault(key_of(job.target) if job.target else f"job {job.job_id}", []).append(job)
        table_ids.setdefault(job.table_id, key_of(job.table))
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for key, made_by in by_key.items():
        found: dict[str, str] = {}
        for job in made_by:
            # A table may be registered by its id, or by a name of the catalog: its id is the same for both.
            first, *others = job.sources or (job.table,)
            found.setdefault(table_ids.get(job.table_id, key_of(first)), first)
            for each in others:
                found.setdefault(key_of(each), each)
        found.pop(key, None)
        inputs[key] = tuple(found)
        for source, place in found.items():
            places.setdefault(source, place)
            outputs.setdefault(source, []).append(key)
    nodes = {key: LineageNode(place) for key, place in places.items() if key not in by_key}
    local = {key: _worst([job.lag_s for job in made_by]) for key, made_by in by_key.items()}
    least = {key: _worst([job.lag_least_s for job in made_by]) for key, made_by in by_key.items()}
    whole, whole_least = chain_lags(local, inputs), chain_lags(least, inputs)
    for key, made_by in by_key.items():
        worst_first = tuple(sorted(made_by, key=lambda job: job.lag_s, reverse=True))
        lags = local[key], least[key], whole[key], whole_least[key]
        nodes[key] = LineageNode(worst_first[0].title, worst_first, inputs[key], *lags)
    return LineageGraph(nodes, outputs)


def neighbourhood(graph: LineageGraph, key: str, most: int) -> Sequence[str]:
    """Return the keys of the nodes around one, itself first, the nearest ones before others; at most so many."""
    found, queue = {key: None}, deque([key])
    while queue and len(found) < most:
        at = queue.popleft()
        for each in (*graph.nodes[at].inputs, *graph.outputs.get(at, ())):
            if each not in found and len(found) < most:
                found[each] = None
                queue.append(each)
    return list(found)


def way_to_the_reason(graph: LineageGraph, key: str) -> Sequence[str]:
    """Return the keys from a node upstream to the one that holds all of them up: each time to the input that lies
    furthest behind, as long as one is not fresh.
    """
    way, passed = [key], {key}
    while True:
        behind = [
            each
            for each in graph.nodes[way[-1]].inputs
            if each not in passed and graph.nodes[each].jobs and not _fresh(graph.nodes[each])
        ]
        if not behind:
            return way
        way.append(max(behind, key=lambda each: _weight(graph.nodes[each])))
        passed.add(way[-1])


def _fresh(node: LineageNode) -> bool:
    return node.condition == "fresh" and node.global_least_s == 0.0


def _weight(node: LineageNode) -> tuple[bool, float]:
    return node.condition not in ("fresh", "late"), node.global_s


def _worst(lags: Sequence[float]) -> float:
    return -1.0 if min(lags) < 0 else max(lags)


# --- the board --------------------------------------------------------------------------------------------------------

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
