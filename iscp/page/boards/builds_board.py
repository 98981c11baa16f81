"""The board of builds: first snapshots that all nodes build, and jobs that catch up with what they have missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iscp.core.build.api_builds import BuildView, counts_by_state
from iscp.page.boards.job_facts import JobFacts
from iscp.page.boards.shown_values import share

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
