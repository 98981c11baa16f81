"""Boards of the page about all jobs: how fresh their targets are, which jobs are in trouble, which rows they leave out,
and when their iterations ran.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest

from iscp.model.access.authorization import AuditEntry
from iscp.model.api.api_requests import EventView, JobView, LeftOutRows
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobCondition, JobState
from iscp.server.boards.job_board import (
    JobFacts,
    distinct,
    error_name,
    lag,
    last_part,
    moment,
    short,
    some,
    span,
    until,
)

# --- freshness --------------------------------------------------------------------------------------------------------
# The board has all targets: how far each lags behind its source, against its target lag, the worst first.

ROWS_PER_PAGE = 50
"""Rows of one page of the board; further ones are on the next."""

FILTER_CHARS_MAX = 200
"""Characters of each filter in an address; the rest is not read."""

CHOICES_MAX = 200
"""Accounts and kinds that the board's filters offer; a further one can be written into the address."""


@dataclass(frozen=True, slots=True)
class FreshnessFilter:
    """The filters in the address; empty ones do not filter. `words` have to be in the target's, table's or job's name,
    whatever their case. `page` counts from 1.
    """

    account: str = ""
    kind: str = ""
    condition: str = ""
    words: str = ""
    page: int = 1

    def query(self, page: int | None = None) -> dict[str, str]:
        """Return the parameters of an address with these filters, of this page or another one."""
        number = self.page if page is None else page
        fields = {"account": self.account, "kind": self.kind, "condition": self.condition, "words": self.words}
        return {
            **{name: value for name, value in fields.items() if value},
            **({"page": str(number)} if number > 1 else {}),
        }


@dataclass(frozen=True, slots=True)
class FreshnessBoard:
    """A page of the board: `rows` in their order, `found` jobs in all that match, and what the filters offer."""

    chosen: FreshnessFilter
    rows: Sequence[JobFacts]
    found: int
    pages: int
    total: int
    counts: Mapping[str, int]
    accounts: Sequence[str]
    kinds: Sequence[str]


def read_filter(query: Mapping[str, str]) -> FreshnessFilter:
    """Return the filters of an address, cut to what is bearable; a page that is no number is the first."""

    def text(name: str) -> str:
        return short(query.get(name, "").strip(), FILTER_CHARS_MAX)

    return FreshnessFilter(
        account=text("account"),
        kind=text("kind"),
        condition=text("condition") if query.get("condition") in {*JobCondition} else "",
        words=text("words"),
        page=page_of(query),
    )


def page_of(query: Mapping[str, str]) -> int:
    """Return the number of the page in an address; 1 where there is none, or nonsense."""
    given = query.get("page", "")
    return max(1, int(given)) if given.isascii() and given.isdecimal() and len(given) <= 9 else 1


def freshness_board(
    jobs: Sequence[JobFacts], chosen: FreshnessFilter, rows_per_page: int = ROWS_PER_PAGE
) -> FreshnessBoard:
    """Return a page of the board; one beyond the last is the last."""
    matching = [job for job in jobs if _matches(job, chosen)]
    matching.sort(key=badness, reverse=True)
    pages = max(1, -(-len(matching) // rows_per_page))
    number = min(chosen.page, pages)
    begin = (number - 1) * rows_per_page
    counts = Counter(job.condition for job in jobs)
    return FreshnessBoard(
        chosen=replace(chosen, page=number),
        rows=matching[begin : begin + rows_per_page],
        found=len(matching),
        pages=pages,
        total=len(jobs),
        counts={name: counts[name] for name in JobCondition if counts[name]},
        accounts=distinct((job.account for job in jobs), CHOICES_MAX),
        kinds=distinct((job.kind for job in jobs), CHOICES_MAX),
    )


def badness(job: JobFacts) -> tuple[int, float, float]:
    """Return what orders the board, greater for what is worse: the condition, the lag in target lags, the lag."""
    rank = len(JobCondition) - list(JobCondition).index(JobCondition(job.condition))
    return rank, job.lag_s / job.target_lag_s if job.target_lag_s > 0 else 0.0, job.lag_s


def _matches(job: JobFacts, chosen: FreshnessFilter) -> bool:
    if chosen.account and job.account != chosen.account:
        return False
    if chosen.kind and job.kind != chosen.kind:
        return False
    if chosen.condition and job.condition != chosen.condition:
        return False
    words = chosen.words.casefold().split()
    return not words or all(word in f"{job.target} {job.table} {job.name}".casefold() for word in words)


# --- trouble ----------------------------------------------------------------------------------------------------------
# The board has the jobs that need somebody, and what was changed by whom.

ROWS_MAX = 100
"""Jobs that each kind of trouble shows; how many more there are is said."""

AUDIT_MAX = 50
"""Entries of the audit that the board shows, the newest ones."""

HISTORY_GONE = frozenset({10_015, 10_018, 20})
"""Codes of errors that say that versions or files which a job needs are gone: VERSION_GONE, FEED_PURGED, FILE_LOST."""


@dataclass(frozen=True, slots=True)
class TroubledJob:
    job: JobFacts
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of trouble; `rows` are the worst of `found`."""

    title: str
    about: str
    rows: Sequence[TroubledJob]
    found: int


@dataclass(frozen=True, slots=True)
class TroubleBoard:
    troubles: Sequence[Trouble]
    audit: Sequence[AuditEntry]
    audit_fault: str
    events: Sequence[EventView]


def trouble_board(
    jobs: Sequence[JobFacts], now_s: float, audit: Sequence[AuditEntry], audit_fault: str, events: Sequence[EventView]
) -> TroubleBoard:
    """Return the board; kinds of trouble that nobody has are left out."""
    found = [_trouble(jobs, now_s, *kind) for kind in _KINDS]
    return TroubleBoard([each for each in found if each.found], audit[:AUDIT_MAX], audit_fault, events)


Kind = tuple[str, str, Callable[[JobFacts], bool], Callable[[JobFacts, float], str], str]


def _trouble(
    jobs: Sequence[JobFacts],
    now_s: float,
    title: str,
    about: str,
    holds: Callable[[JobFacts], bool],
    what: Callable[[JobFacts, float], str],
    remedy: str,
) -> Trouble:
    found = sorted((job for job in jobs if holds(job)), key=lambda job: job.lag_s, reverse=True)
    return Trouble(title, about, [TroubledJob(job, what(job, now_s), remedy) for job in found[:ROWS_MAX]], len(found))


def _error(job: JobFacts, now_s: float) -> str:
    retry = f" Tried again {until(job.retry_at_s, now_s)}." if job.retry_at_s else ""
    return f"{error_name(job.error_code)}: {job.error_msg}{retry}" if job.error_code else f"no error is known.{retry}"


_KINDS: tuple[Kind, ...] = (
    (
        "History gone",
        "The versions that these jobs need are gone from their source.",
        lambda job: job.error_code in HISTORY_GONE,
        _error,
        "Resync the job, and have its source retain more.",
    ),
    (
        "Retention about to bite",
        "Their sources may soon drop what these jobs have yet to read; then they are computed from all rows.",
        lambda job: job.may_lose_history and job.error_code not in HISTORY_GONE,
        lambda job, _: f"behind by {lag(job.lag_s, job.lag_least_s)}; the source retains {span(job.retained_s)}",
        "Have the job go on, or its source retain more (`delta.deletedFileRetentionDuration`).",
    ),
    (
        "Failed",
        "These jobs do not go on by themselves.",
        lambda job: job.condition == "failed" and job.error_code not in HISTORY_GONE,
        _error,
        "Repair what the error names, then resume the job.",
    ),
    (
        "Quarantined",
        "These jobs keep failing, and are tried rarely.",
        lambda job: job.condition == "quarantined",
        _error,
        "Repair what the error names, then resume the job.",
    ),
    (
        "Retrying",
        "The last iterations of these jobs failed.",
        lambda job: job.condition == "retrying",
        _error,
        "Wait, or see the job for what fails.",
    ),
    (
        "Dead letters",
        "Rows of these jobs are left out of their targets.",
        lambda job: job.dead_letters > 0,
        lambda job, _: some(job.dead_letters, "row"),
        "Make the keys unique at the source; rows then return by themselves.",
    ),
    (
        "In doubt",
        "It is not known whether these targets hold what was applied to them.",
        lambda job: job.doubted_at_s > 0,
        lambda job, _: f"since {moment(job.doubted_at_s)}",
        "They are compared by themselves; verify the job to have it now.",
    ),
    (
        "Warnings",
        "These jobs go on, but their users should know:",
        lambda job: bool(job.warning) and job.condition not in ("failed", "quarantined"),
        lambda job, _: job.warning,
        "",
    ),
)


# --- rows that a job leaves out of its target -------------------------------------------------------------------------

COLUMNS_SHOWN_MAX = 8
"""Columns of rows left out that the board shows; how many more there are is said."""

VALUE_CHARS_MAX = 200
"""Characters of a value that the board shows; the rest is cut."""


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """Some rows, each with its values (in the order of `columns`) and why it is left out. `fault` says why they could
    not be read.
    """

    place: str = ""
    columns: Sequence[str] = ()
    columns_more: int = 0
    rows: Sequence[tuple[Sequence[str], str]] = ()
    fault: str = ""


def leaves_out(job: JobView) -> bool:
    """Return whether a job is known to leave out rows: those that share a key, or those that an index cannot have."""
    return job.status.dead_letters > 0 or job.figures.get("faults", 0.0) > 0.0


def left_out_table(found: LeftOutRows) -> LeftOutTable:
    """Return the table of these rows, with the columns that any of them has."""
    names = list(dict.fromkeys(name for row in found.rows for name in row.columns))
    shown = names[:COLUMNS_SHOWN_MAX]
    return LeftOutTable(
        place=found.place,
        columns=[short(name, VALUE_CHARS_MAX) for name in shown],
        columns_more=len(names) - len(shown),
        rows=[([_text(row.columns.get(name)) for name in shown], row.reason) for row in found.rows],
    )


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "null" if value is None else json.dumps(value, ensure_ascii=False)
    return short(text, VALUE_CHARS_MAX)


# --- the time line ----------------------------------------------------------------------------------------------------
# The board has the iterations that run, the last one of each job, and earlier ones of some, in lanes of the nodes.

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
