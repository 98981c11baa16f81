"""The time line: the iterations that run, the last one of each job, and earlier ones of some, in lanes of the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobState
from iscp.page.boards.job_facts import JobFacts
from iscp.page.boards.shown_values import last_part, span

WINDOWS: Mapping[str, float] = {"1 min": 60.0, "10 min": 600.0, "1 h": 3_600.0, "1 d": 86_400.0}
"""Spans that the board can show, in seconds, by the words in an address."""

WINDOW = "10 min"
"""The span that the board shows where an address says none."""

BARS_MAX = 500
"""Iterations that the board draws, those that run and the newest ones; how many more there are is said."""

HISTORIES_MAX = 12
"""Jobs whose earlier iterations the board shows, those that ended one last; of the others it has the last iteration."""

HISTORY_ENTRIES_MAX = 40
"""Iterations of each of their histories, the newest ones."""

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


@dataclass(frozen=True, slots=True)
class _Iteration:
    """An iteration of a job at a node, from `start_s` to `end_s` (Unix seconds)."""

    job: JobFacts
    node_id: str
    start_s: float
    end_s: float
    running: bool
    failed: bool


def time_line(
    jobs: Sequence[JobFacts],
    query: Mapping[str, str],
    now_s: float,
    earlier: Mapping[str, Sequence[HistoryEntry]] | None = None,
) -> TimeLine:
    """Return the board of these jobs at `now_s` (Unix seconds); `earlier` has histories, by ids of jobs."""
    window = window_of(query)
    begin_s = now_s - WINDOWS[window]
    found = [each for job in jobs for each in _iterations(job, now_s, (earlier or {}).get(job.job_id, ()))]
    found = [each for each in found if each.end_s >= begin_s and each.start_s <= now_s and each.node_id]
    found.sort(key=lambda each: (not each.running, -each.end_s, each.start_s))
    by_node: dict[str, list[_Iteration]] = {}
    for each in found[:BARS_MAX]:
        by_node.setdefault(each.node_id, []).append(each)
    nodes = [_lanes(node_id, by_node[node_id], begin_s, now_s) for node_id in sorted(by_node)]
    shown = sum(len(node.bars) for node in nodes)
    step = WINDOWS[window] / TICKS
    ticks = [
        (WIDTH * number // TICKS, "now" if number == TICKS else f"-{span((TICKS - number) * step)}")
        for number in range(TICKS + 1)
    ]
    return TimeLine(window, nodes, ticks, shown, len(found) - shown)


def window_of(query: Mapping[str, str]) -> str:
    """Return the span that an address chooses, in the words of WINDOWS."""
    return query.get("window", "") if query.get("window") in WINDOWS else WINDOW


def jobs_with_history(jobs: Sequence[JobFacts], query: Mapping[str, str], now_s: float) -> Sequence[JobFacts]:
    """Return the jobs whose earlier iterations the board shows: those within the span that ended one last, some of
    them.
    """
    begin_s = now_s - WINDOWS[window_of(query)]
    recent = (job for job in jobs if job.seq > 1 and job.ended_at_s >= begin_s)
    return nlargest(HISTORIES_MAX, recent, key=lambda job: job.ended_at_s)


def _iterations(job: JobFacts, now_s: float, earlier: Sequence[HistoryEntry]) -> Iterator[_Iteration]:
    """Yield the last iteration of a job, and those before it; an iteration has one begin, by which it is known."""
    running = job.state is JobState.RUNNING
    if job.started_at_s > 0:
        end_s = now_s if running else max(job.ended_at_s, job.started_at_s)
        yield _Iteration(job, job.node_id, job.started_at_s, end_s, running, job.error_code != 0)
    for each in earlier:
        if 0 < each.start_at_s <= each.end_at_s and each.start_at_s < job.started_at_s:
            failed = each.error_code != 0
            yield _Iteration(job, each.node_id, each.start_at_s, each.end_at_s, running=False, failed=failed)


def _lanes(node_id: str, iterations: Sequence[_Iteration], begin_s: float, now_s: float) -> NodeLanes:
    """Return the lanes of a node: each iteration in the first one that is free when it starts."""
    ends: list[float] = []
    bars = []
    for each in sorted(iterations, key=lambda each: each.start_s):
        lane = next((number for number, free_s in enumerate(ends) if free_s <= each.start_s), len(ends))
        if lane == LANES_MAX:
            continue
        ends[lane : lane + 1] = [each.end_s]
        x, end = (_place(at_s, begin_s, now_s) for at_s in (each.start_s, each.end_s))
        did = "runs for" if each.running else "took"
        bars.append(
            TimeBar(
                each.job,
                x,
                lane * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
                max(2, end - x),
                each.running,
                each.failed,
                text=f"{last_part(each.job.title)} {did} {span(each.end_s - each.start_s)}",
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
