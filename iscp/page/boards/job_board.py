"""The board of one job: why it waits now, its iterations as bars, where it is, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp.core.api.api_views import JobView
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobCondition, JobState, Reason
from iscp.core.values.progress import RunProgress
from iscp.page.boards.job_facts import JobFacts, error_name, facts_of, spec_text
from iscp.page.boards.shown_values import age, count, lag, moment, share, short, size, span, until, version

ITERATIONS_MAX = 40
"""Iterations of a job's history that its board shows, the newest ones."""

SPEC_CHARS_MAX = 20_000
"""Characters of a spec that the board shows; the rest is cut."""

PARTS = ("wait", "read", "compute", "commit")
"""The parts of an iteration that have a colour, in the order in which they come; others follow."""

BAR_UNITS = 1_000
"""Width of the longest bar, in the units of its drawing."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: `begin` and `width` in BAR_UNITS, and its class of colour."""

    name: str
    begin: int
    width: int
    seconds: float


@dataclass(frozen=True, slots=True)
class IterationBar:
    """One iteration: its bar, whose whole length is its time from begin to end, and what is said of it."""

    seq: int
    range: str
    at_s: float
    took: str
    lag: str
    parts: Sequence[BarPart]
    rows: str
    rows_in: str
    bytes: str
    strategy: str
    reason: str
    trials: str
    node_id: str
    error: str
    error_msg: str


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The version up to which one of the job's tables was read."""

    uri: str
    version: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the job, and what to do about it."""

    what: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class JobBoard:
    """The whole board. `why` says in a sentence what the job waits for."""

    job: JobFacts
    why: str
    progress: RunProgress | None
    progress_share: float
    faults: Sequence[Fault]
    bars: Sequence[IterationBar]
    positions: Sequence[SourcePosition]
    figures: Mapping[str, str]
    spec: str
    sql: str
    ranges: int
    actions: Sequence[str]


def job_board(job: JobView, history: Sequence[HistoryEntry], now_s: float) -> JobBoard:
    """Return the board of a job with its iterations, the newest first."""
    facts = facts_of(job)
    spec = spec_text(job.spec_json)
    return JobBoard(
        job=facts,
        why=why_it_waits(job, now_s),
        progress=job.progress,
        progress_share=_progress_share(job.progress),
        faults=_faults(job, facts, now_s),
        bars=_bars(history[:ITERATIONS_MAX]),
        positions=[
            SourcePosition(uri, mark.watermark.version, mark.watermark.at_s) for uri, mark in job.status.sources.items()
        ],
        figures={**_upkeep(job, now_s), **{name: f"{value:,.6g}" for name, value in sorted(job.figures.items())}},
        spec=short(spec, SPEC_CHARS_MAX),
        sql=short(_sql_of(job), SPEC_CHARS_MAX),
        ranges=job.ranges,
        actions=actions_of(job),
    )


def why_it_waits(job: JobView, now_s: float) -> str:
    """Return what the job does or waits for at `now_s` (Unix seconds), in a sentence."""
    if job.progress is not None:
        return f"It runs: {job.progress.purpose}, for {span(job.progress.elapsed_s)}."
    if job.status.deletion:
        failed = job.state is JobState.ERROR
        return f"Its target {'was not deleted: see what is wrong' if failed else 'is being deleted; then it goes'}."
    if job.reason is Reason.PAUSED:
        return "It is paused, until somebody resumes it."
    if job.condition == JobCondition.FAILED:
        return "It has failed, and waits for somebody: see what is wrong, then resume or resync it."
    if not job.node_id:
        return "No node has its table now: it waits for the owner to assign it."
    if job.reason is not Reason.NONE:
        return _why_held_up(job, now_s)
    return _why_at_rest(job, now_s)


def _why_held_up(job: JobView, now_s: float) -> str:
    status = job.status
    match job.reason:
        case Reason.QUARANTINED:
            return "It keeps failing, and is tried rarely. Resume it once the fault is repaired."
        case Reason.RETRYING:
            if not status.failures and job.seq == 0 and job.applied_version < 0:
                return "It could not begin: see what is wrong. It is tried again."
            when = f" {until(status.retry_at_s, now_s)}" if status.retry_at_s else ""
            return f"Its last {_times(status.failures)} failed; it is tried again{when}."
        case Reason.QUOTA:
            return "Its account has used what it may at a time: it waits for its turn."
        case Reason.BUILDING:
            return "Its first snapshot is being built by several nodes, range by range."
        case _:
            return f"It is held up: {job.reason}."


def _why_at_rest(job: JobView, now_s: float) -> str:
    status = job.status
    if job.state is JobState.RUNNING:
        return f"It runs since {age(status.start_at_s, now_s)}." if status.start_at_s else "It runs."
    if job.state is JobState.PENDING:
        return "It is queued, and waits for a slot."
    if job.state is JobState.CANCELED:
        return "Its iteration was cancelled; the next one starts by itself."
    if status.waits_for:
        return f"It waits for {status.waits_for}, and runs {until(status.waits_until_s, now_s)} at the latest."
    if job.source_version > job.applied_version >= 0:
        return (
            f"{count(job.source_version - job.applied_version)} versions are not applied yet: it waits for its trigger."
        )
    if status.due_at_s:
        return (
            f"All changes are applied. It runs again {until(status.due_at_s, now_s)}, as its rows depend on the time."
        )
    if job.applied_version < 0:
        return "It has not run yet."
    return "All changes are applied: it waits for the next commit of its source."


def actions_of(job: JobView) -> Sequence[str]:
    """Return the verbs that make sense for the job as it is; whether the caller may, the server decides."""
    if job.reason is Reason.PAUSED:
        return ("resume", "resync")
    stuck = job.state is JobState.ERROR or job.reason in (Reason.RETRYING, Reason.QUARANTINED)
    return ("retry", "pause", "resync") if stuck else ("pause", "resync")


def _times(failures: int) -> str:
    return f"{count(failures)} iterations" if failures > 1 else "iteration"


def _progress_share(progress: RunProgress | None) -> float:
    """Return how much of an iteration is done, from 0 to 1; 0 where that is not known."""
    if progress is None:
        return 0.0
    if progress.rows_total > 0:
        return share(progress.rows_read, progress.rows_total)
    return share(progress.bytes_read, progress.bytes_total)


def _faults(job: JobView, facts: JobFacts, now_s: float) -> Sequence[Fault]:
    status, found = job.status, []
    if status.error_code:
        # A message has the remedy as its last sentence, as errors write themselves.
        found.append(Fault(error_name(int(status.error_code)), status.error_msg, ""))
    if status.warning:
        found.append(Fault("warning", status.warning, ""))
    if status.dead_letters:
        where = f"{job_target}_dead_letter" if (job_target := facts.target) and facts.kind == "replica" else ""
        remedy = f"They are in {where}." if where else "See the job's warning."
        found.append(Fault("dead letters", f"{count(status.dead_letters)} rows are left out of the target.", remedy))
    if job.may_lose_history:
        behind = lag(job.lag_s, job.lag_least_s)
        lost = f"It is behind by {behind}, and its source retains removed files for {span(job.retained_s)}."
        found.append(Fault("retention", lost, "Have it go on, or its source retain more."))
    if status.doubted_at_s:
        doubt = f"Since {moment(status.doubted_at_s)} it is not known whether the target holds what was applied."
        found.append(Fault("in doubt", doubt, "It is compared by itself; `iscp-admin job verify` compares it now."))
    for name, figures in (("refresh", job.upkeep.refresh), ("purge", job.upkeep.purge)):
        if figures is not None and figures.error_code:
            found.append(Fault(f"{name}: {error_name(int(figures.error_code))}", figures.error_msg, ""))
    if job.figures_fault:
        found.append(Fault("figures", job.figures_fault, ""))
    return found


def _bars(history: Sequence[HistoryEntry]) -> Sequence[IterationBar]:
    longest = max((sum(_spans(each).values()) for each in history), default=0.0)
    return [_bar(each, longest) for each in history]


def _spans(entry: HistoryEntry) -> dict[str, float]:
    """Return the seconds of an iteration's parts, in the order in which they come: those of its usage, or, of a node
    that measures none, those of a query's refresh; `other` is the rest of its time.
    """
    if entry.usage is not None:
        spans = {part.value: max(0.0, seconds) for part, seconds in entry.usage.seconds().items()}
    else:
        known = [name for name in PARTS if name in entry.parts_s]
        known += sorted(name for name in entry.parts_s if name not in PARTS)
        spans = {name: max(0.0, entry.parts_s[name]) for name in known}
    # It waits before it begins.
    rest = entry.end_at_s - entry.start_at_s - sum(spans.values()) + spans.get("wait", 0.0)
    if rest > 0.0:
        spans["other"] = rest
    return spans


def _bar(entry: HistoryEntry, longest: float) -> IterationBar:
    parts, begin = [], 0
    for name, seconds in _spans(entry).items():
        width = round(BAR_UNITS * share(seconds, longest))
        if width > 0 and begin < BAR_UNITS:
            parts.append(BarPart(name if name in PARTS else "other", begin, min(width, BAR_UNITS - begin), seconds))
        begin += width
    lag_s = entry.end_at_s - entry.source_commit_at_s
    rows_in = entry.usage.rows_read if entry.usage is not None else entry.rows_in
    return IterationBar(
        seq=entry.seq,
        range=f"{version(entry.from_version)} → {version(entry.to_version)}",
        at_s=entry.end_at_s,
        took=span(entry.end_at_s - entry.start_at_s),
        lag=span(lag_s) if entry.source_commit_at_s > 0 else "",
        parts=parts,
        rows=count(entry.rows),
        rows_in=count(rows_in) if rows_in else "",
        bytes=size(entry.bytes),
        strategy=entry.data_type,
        reason=entry.reason,
        trials=_trials(entry),
        node_id=entry.node_id,
        error=error_name(int(entry.error_code)) if entry.error_code else "",
        error_msg=short(entry.error_msg, 1_000),
    )


def _trials(entry: HistoryEntry) -> str:
    """Return what stood in the way of an iteration; empty where nothing did."""
    if entry.usage is None:
        return ""
    counts = (("retries", entry.usage.retries), ("conflicts", entry.usage.conflicts))
    return ", ".join(f"{count(number)} {name}" for name, number in counts if number)


def _upkeep(job: JobView, now_s: float) -> dict[str, str]:
    found = {}
    for name, figures in (("refreshes", job.upkeep.refresh), ("purges", job.upkeep.purge)):
        if figures is not None:
            next_time = f", next {until(figures.next_at_s, now_s)}" if figures.next_at_s else ""
            found[name] = f"{count(figures.completed)} done, {count(figures.failed)} failed{next_time}"
    return found


def _sql_of(job: JobView) -> str:
    from iscp.core.spec.view_fields import view_of

    view = view_of(job.spec_json)
    return view.sql if view is not None else ""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The lags of a job's last iterations, as bars of a small drawing from left (old) to right (new)."""

    bars: Sequence[tuple[int, int, bool]]
    """Each bar's left edge, its height, and whether the iteration failed."""

    text: str


SPARK_BARS = 20
"""Iterations that a sparkline shows."""

SPARK_HEIGHT = 20
"""Height of a sparkline, in pixels."""


def sparkline(history: Sequence[HistoryEntry]) -> Sparkline:
    """Return the lags at which the last iterations ended, the greatest as high as the drawing."""
    newest = list(reversed(history[:SPARK_BARS]))
    lags = [
        max(0.0, each.end_at_s - each.source_commit_at_s) if each.source_commit_at_s > 0 else 0.0 for each in newest
    ]
    most = max(lags, default=0.0)
    bars = [
        (4 * place, max(1, round(SPARK_HEIGHT * share(lag, most))), bool(entry.error_code))
        for place, (lag, entry) in enumerate(zip(lags, newest, strict=True))
    ]
    return Sparkline(
        bars, f"lag of the last {len(bars)} iterations, at most {span(most)}" if bars else "no iterations yet"
    )
