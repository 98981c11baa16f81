"""The lineage of all targets: which are made of which, and how far each lies behind the tables at the beginning."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iscp.core.metrics.chain_lag import chain_lags
from iscp.page.boards.job_facts import JobFacts

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
