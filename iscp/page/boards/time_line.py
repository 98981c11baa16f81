"""The time line: the iterations that run, and the last one of each job, in lanes of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp.core.job.job_row import JobState
from iscp.page.boards.job_facts import JobFacts
from iscp.page.boards.shown_values import last_part, span

WINDOWS: Mapping[str, float] = {"1 min": 60.0, "10 min": 600.0, "1 h": 3_600.0, "1 d": 86_400.0}
"""Spans that the board can show, in seconds, by the words in an address."""

WINDOW = "10 min"
"""The span that the board shows where an address says none."""

BARS_MAX = 500
"""Iterations that the board draws, those that run and the newest ones; how many more there are is said."""

LANES_MAX = 32
"""Lanes of one node; iterations that fit into none are left out, and counted."""

WIDTH, LANE_HEIGHT, BAR_HEIGHT = 1_000, 20, 14
"""Width of the drawing, and heights of its lanes and bars, in its units."""

TICKS = 5
"""Parts of the span, whose ends have a time beneath them."""


@dataclass(frozen=True, slots=True)
class TimeBar:
    """An iteration; `x`, `y` and `width` in the drawing's units of its node."""

    job: JobFacts
    x: int
    y: int
    width: int
    running: bool
    failed: bool
    text: str


@dataclass(frozen=True, slots=True)
class NodeLanes:
    node_id: str
    bars: Sequence[TimeBar]
    lanes: int
    running: int

    @property
    def height(self) -> int:
        return max(1, self.lanes) * LANE_HEIGHT


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The board; `ticks` are places in the drawing with what is beneath them, `more` counts what is left out."""

    window: str
    nodes: Sequence[NodeLanes]
    ticks: Sequence[tuple[int, str]]
    shown: int
    more: int
    width: int = WIDTH
    bar_height: int = BAR_HEIGHT


def time_line(jobs: Sequence[JobFacts], query: Mapping[str, str], now_s: float) -> TimeLine:
    """Return the board of these jobs at `now_s` (Unix seconds)."""
    window = query.get("window", "") if query.get("window") in WINDOWS else WINDOW
    begin_s = now_s - WINDOWS[window]
    found = []
    for job in jobs:
        running = job.state is JobState.RUNNING
        end_s = now_s if running else job.ended_at_s
        if job.started_at_s > 0 and end_s >= begin_s and job.started_at_s <= now_s and job.node_id:
            found.append((not running, -end_s, job.started_at_s, max(end_s, job.started_at_s), job))
    found.sort(key=lambda each: each[:3])
    by_node: dict[str, list[tuple[float, float, JobFacts]]] = {}
    for _, _, start_s, end_s, job in found[:BARS_MAX]:
        by_node.setdefault(job.node_id, []).append((start_s, end_s, job))
    nodes = [_lanes(node_id, by_node[node_id], begin_s, now_s) for node_id in sorted(by_node)]
    shown = sum(len(node.bars) for node in nodes)
    step = WINDOWS[window] / TICKS
    ticks = [
        (WIDTH * number // TICKS, "now" if number == TICKS else f"-{span((TICKS - number) * step)}")
        for number in range(TICKS + 1)
    ]
    return TimeLine(window, nodes, ticks, shown, len(found) - shown)


def _lanes(
    node_id: str, iterations: Sequence[tuple[float, float, JobFacts]], begin_s: float, now_s: float
) -> NodeLanes:
    """Return the lanes of a node: each iteration in the first one that is free when it starts."""
    ends: list[float] = []
    bars = []
    for start_s, end_s, job in sorted(iterations, key=lambda each: each[0]):
        lane = next((number for number, free_s in enumerate(ends) if free_s <= start_s), len(ends))
        if lane == LANES_MAX:
            continue
        ends[lane : lane + 1] = [end_s]
        x, end = (_place(at_s, begin_s, now_s) for at_s in (start_s, end_s))
        running = job.state is JobState.RUNNING
        did = "runs for" if running else "took"
        bars.append(
            TimeBar(
                job,
                x,
                lane * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
                max(2, end - x),
                running,
                failed=job.error_code != 0,
                text=f"{last_part(job.title)} {did} {span(end_s - start_s)}",
            )
        )
    return NodeLanes(node_id, bars, len(ends), sum(bar.running for bar in bars))


def _place(at_s: float, begin_s: float, end_s: float) -> int:
    return round(WIDTH * min(1.0, max(0.0, (at_s - begin_s) / (end_s - begin_s))))


def busy_lanes(node: NodeLanes, slots: int) -> Sequence[int]:
    """Return how many iterations of a node there were in each of so many parts of the span, the newest part last."""
    counts = [0] * slots
    for bar in node.bars:
        first, last = (min(slots - 1, at * slots // WIDTH) for at in (bar.x, bar.x + bar.width - 1))
        for slot in range(first, last + 1):
            counts[slot] += 1
    return counts
