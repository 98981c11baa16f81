"""Boards of the page about the cluster, about its builds, and for searches of indexes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iscp.model.api.api_requests import (
    SEARCH_TEXT_CHARS_MAX,
    URI_CHARS_MAX,
    ClusterView,
    EventView,
    NodeView,
    SearchAnswer,
    SearchHit,
    ShardView,
    fragment_parts,
)
from iscp.model.build.build_progress import BuildView, counts_by_state
from iscp.model.values.ids import ShardId
from iscp.model.values.ring import ring_hash
from iscp.server.boards.job_board import JobFacts, share, short

# --- the cluster ------------------------------------------------------------------------------------------------------
# The board has nodes on the ring, shards and their moves, leases, and what owners decided.

SHARDS_MAX = 200
"""Shards on their way that the board lists; how many more there are is said."""

EVENTS_MAX = 60
"""Events of owners that the board shows, the newest first."""

NODES_DRAWN_MAX = 24
"""Nodes up to which the ring is drawn; the list of nodes has the others too."""

MARKS_MAX = 720
"""Shards whose places on the ring are drawn; of more, as many at even distances."""

_SETTLED = frozenset({"running"})
_FULL = 1 << 32

ARC_COLORS = 8
"""Colours of the ring's arcs; nodes beyond share them."""

RING_RADIUS = 100.0
"""Radius of the ring in the units of its drawing."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node; `load` is its share of all shards, `others` says whether its version differs from the owner's."""

    node: NodeView
    owner: bool
    load: float
    color: int
    other_version: bool


@dataclass(frozen=True, slots=True)
class Arc:
    """A node's part of the ring's drawing: an SVG path, by the number of its shards."""

    node_id: str
    path: str
    color: int
    shards: int


@dataclass(frozen=True, slots=True)
class RingMark:
    """A shard where its hash lies on the ring: a line between two points, in the colour of its node (-1: none)."""

    x1: float
    y1: float
    x2: float
    y2: float
    color: int


@dataclass(frozen=True, slots=True)
class ClusterBoard:
    cluster: ClusterView
    nodes: Sequence[NodeRow]
    arcs: Sequence[Arc]
    marks: Sequence[RingMark]
    states: Mapping[str, int]
    moving: Sequence[ShardView]
    moving_more: int
    events: Sequence[EventView]
    versions: Mapping[str, int]
    warnings: Sequence[str]


def cluster_board(cluster: ClusterView, events: Sequence[EventView]) -> ClusterBoard:
    """Return the board; `events` come in their order, and are shown the newest first."""
    moving = [shard for shard in cluster.shards if shard.state not in _SETTLED or not shard.node_id]
    versions = Counter(node.version for node in cluster.nodes)
    owner = next((node for node in cluster.nodes if node.node_id == cluster.owner), None)
    total = sum(node.shards for node in cluster.nodes)
    rows = [
        NodeRow(
            node=node,
            owner=node.node_id == cluster.owner,
            load=share(node.shards, total),
            color=place % ARC_COLORS,
            other_version=owner is not None and node.version != owner.version,
        )
        for place, node in enumerate(cluster.nodes)
    ]
    return ClusterBoard(
        cluster=cluster,
        nodes=rows,
        arcs=_arcs(rows) if len(rows) <= NODES_DRAWN_MAX else (),
        marks=_marks(cluster.shards, {row.node.node_id: row.color for row in rows}),
        states=dict(sorted(Counter(shard.state for shard in cluster.shards).items())),
        moving=moving[:SHARDS_MAX],
        moving_more=max(0, len(moving) - SHARDS_MAX),
        events=list(reversed(events))[:EVENTS_MAX],
        versions=dict(sorted(versions.items())),
        warnings=_warnings(cluster, versions),
    )


def _arcs(rows: Sequence[NodeRow]) -> Sequence[Arc]:
    """Return the arcs in the order of the nodes, clockwise from the top; a node without shards has none."""
    arcs, begin = [], 0.0
    for row in rows:
        if row.load <= 0:
            continue
        end = begin + row.load
        # An arc from a point to itself would be nothing.
        shown_end = min(end, begin + 0.9999)
        (x1, y1), (x2, y2) = _point(begin, RING_RADIUS), _point(shown_end, RING_RADIUS)
        large = int(shown_end - begin > 0.5)
        path = f"M {x1:.2f} {y1:.2f} A {RING_RADIUS:g} {RING_RADIUS:g} 0 {large} 1 {x2:.2f} {y2:.2f}"
        arcs.append(Arc(row.node.node_id, path, row.color, row.node.shards))
        begin = end
    return arcs


def _marks(shards: Sequence[ShardView], colors: Mapping[str, int]) -> Sequence[RingMark]:
    step = max(1, -(-len(shards) // MARKS_MAX))
    found = []
    for shard in shards[::step]:
        at = ring_hash(str(ShardId(shard.table_id, shard.range_id))) / _FULL
        (x1, y1), (x2, y2) = _point(at, RING_RADIUS - 22), _point(at, RING_RADIUS - 12)
        found.append(RingMark(round(x1, 1), round(y1, 1), round(x2, 1), round(y2, 1), colors.get(shard.node_id, -1)))
    return found


def _point(turn: float, radius: float) -> tuple[float, float]:
    """Return the point of a circle around (0, 0) after so many turns, clockwise from the top."""
    angle = 2 * math.pi * turn
    return radius * math.sin(angle), -radius * math.cos(angle)


def _warnings(cluster: ClusterView, versions: Mapping[str, int]) -> Sequence[str]:
    found = []
    if not cluster.owner:
        found.append("The cluster has no owner now: nothing is assigned or recorded until one is elected.")
    if len(versions) > 1:
        found.append(f"The nodes have different versions: {', '.join(sorted(versions))}.")
    silent = [node.node_id for node in cluster.nodes if node.queue_waiting < 0]
    if silent:
        found.append(f"Without an answer: {', '.join(silent[:10])}.")
    if cluster.left_out_count:
        found.append(f"The global checkpoint does not speak for {cluster.left_out_count} jobs.")
    return found


# --- builds -----------------------------------------------------------------------------------------------------------
# The board has first snapshots that all nodes build, and jobs that catch up with what they have missed.

BUILDS_MAX = 100
"""Builds that the board shows, what is being built first; how many more there are is said."""

BEHIND_MAX = 100
"""Jobs that catch up which the board shows, those with most versions to apply; how many more there are is said."""


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build; `done` is its share from 0 to 1, `nodes` have each node's share of what is done."""

    build: BuildView
    done: float
    tasks: str
    nodes: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class JobBehind:
    job: JobFacts
    versions: int


@dataclass(frozen=True, slots=True)
class BuildsBoard:
    builds: Sequence[BuildRow]
    builds_more: int
    behind: Sequence[JobBehind]
    behind_more: int


def builds_board(builds: Sequence[BuildView], jobs: Sequence[JobFacts]) -> BuildsBoard:
    """Return the board; a job catches up if it has versions to apply, and is neither stopped nor being built."""
    behind = [
        JobBehind(job, job.source_version - job.applied_version)
        for job in jobs
        if job.source_version > job.applied_version >= 0 and job.condition in ("fresh", "late", "retrying")
    ]
    behind.sort(key=lambda each: (each.versions, each.job.lag_s), reverse=True)
    return BuildsBoard(
        [_row(build) for build in builds[:BUILDS_MAX]],
        max(0, len(builds) - BUILDS_MAX),
        behind[:BEHIND_MAX],
        max(0, len(behind) - BEHIND_MAX),
    )


def _row(build: BuildView) -> BuildRow:
    tasks = ", ".join(f"{number} {state}" for state, number in sorted(counts_by_state(build.tasks).items()))
    whole = sum(max(0, node.bytes_done) for node in build.nodes)
    nodes = [(node.node_id, share(node.bytes_done, whole)) for node in build.nodes]
    return BuildRow(build, share(build.done_share, 1.0), tasks, nodes)


# --- searches of indexes ----------------------------------------------------------------------------------------------
# The board says at which version of the source the answer is.

INDEX_KINDS = frozenset({"fulltext", "vector", "search"})
"""Kinds of jobs whose targets can be searched."""

INDEXES_MAX = 500
"""Indexes that the board offers; a further one can be written into the address."""

HITS = 10
"""Hits of one answer."""

VALUE_CHARS_MAX = 400
"""Characters of a column of a hit; the rest is cut."""

FRAGMENTS_CHARS_MAX = 4 * VALUE_CHARS_MAX
"""Characters of the fragments of a column; the rest is cut."""

COLUMNS_SHOWN_MAX = 12
"""Columns of a hit; the others are left out."""


@dataclass(frozen=True, slots=True)
class ShownHit:
    """A hit: its key in one line, its other columns, and of columns in which words were found the texts of fragments,
    each with whether it is marked.
    """

    key: str
    score: str
    columns: Sequence[tuple[str, str]]
    fragments: Sequence[tuple[str, Sequence[tuple[str, bool]]]]


@dataclass(frozen=True, slots=True)
class SearchBoard:
    """The board; `hits` are those of `answer`, which is None where nothing was searched for."""

    uri: str
    text: str
    indexes: Sequence[JobFacts]
    answer: SearchAnswer | None
    hits: Sequence[ShownHit]
    fault: str


def wanted_of(query: Mapping[str, str]) -> tuple[str, str]:
    """Return the index and the text of an address, cut to what a search may have."""
    return query.get("index", "")[:URI_CHARS_MAX], query.get("text", "").strip()[:SEARCH_TEXT_CHARS_MAX]


def search_board(
    jobs: Sequence[JobFacts], query: Mapping[str, str], answer: SearchAnswer | None, fault: str = ""
) -> SearchBoard:
    """Return the board; `fault` says why there is no answer. An address without an index wants the only one."""
    uri, text = wanted_of(query)
    indexes = sorted((job for job in jobs if job.kind in INDEX_KINDS and job.target), key=lambda job: job.target)
    hits = [_hit(each) for each in answer.hits] if answer is not None else []
    if not uri and len(indexes) == 1:
        uri = indexes[0].target
    return SearchBoard(uri, text, indexes[:INDEXES_MAX], answer, hits, fault)


def _hit(hit: SearchHit) -> ShownHit:
    shown = {*hit.key, *hit.highlights}
    columns = [(name, _text(value)) for name, value in hit.columns.items() if name not in shown]
    return ShownHit(
        key=", ".join(f"{name} = {_text(value)}" for name, value in hit.key.items()),
        score=f"{hit.score:.4g}",
        columns=columns[:COLUMNS_SHOWN_MAX],
        fragments=[(name, list(_parts_of(texts))) for name, texts in hit.highlights.items()],
    )


def _parts_of(texts: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a column's fragments, each with whether it is marked, until there is enough to see."""
    left = FRAGMENTS_CHARS_MAX
    for number, text in enumerate(texts):
        for part, marked in ((" … ", False), *fragment_parts(text)) if number else fragment_parts(text):
            if left <= 0:
                return
            yield short(part, left), marked
            left -= len(part)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return short(text, VALUE_CHARS_MAX)
