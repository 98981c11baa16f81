"""The board of one job: why it waits now, its iterations as bars, where it is, and what is wrong.

The module also has what all boards share: the facts of a job, and the short texts of numbers and times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from iscp.model.api.api_requests import JobView
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobCondition, JobState, Reason
from iscp.model.spec.spec import flatten
from iscp.model.values.errors import ErrorCode
from iscp.model.values.progress import RunProgress

# --- numbers and times as short texts ---------------------------------------------------------------------------------

UNKNOWN_TEXT = "—"
"""The text of a value that is not known."""

CUT = "…"

_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def span(seconds: float) -> str:
    """Return a span of seconds with its unit, as `3 min`; UNKNOWN_TEXT below 0, and for what is no number."""
    if not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN_TEXT
    for size, unit in _STEPS:
        if seconds >= size * 2 or (size == 60.0 and seconds >= 120):
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 10 or seconds == 0:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(1, round(seconds * 1000))} ms"


def lag(most_s: float, least_s: float) -> str:
    """Return a lag as `3 min`, and as `≤ 3 min` where only the most that it can be is known."""
    return f"≤ {span(most_s)}" if most_s >= 0.0 and least_s < most_s else span(most_s)


def age(at_s: float, now_s: float) -> str:
    """Return how long ago a Unix time is; UNKNOWN_TEXT where it is 0. A time ahead is `now`, as clocks differ."""
    if at_s <= 0:
        return UNKNOWN_TEXT
    return "now" if now_s - at_s < 1 else f"{span(now_s - at_s)} ago"


def until(at_s: float, now_s: float) -> str:
    """Return in how long a Unix time is; `now` where it has passed."""
    return "now" if at_s <= now_s else f"in {span(at_s - now_s)}"


def moment(at_s: float) -> str:
    """Return a Unix time as UTC to the second; UNKNOWN_TEXT where it is 0 or beyond what a calendar has."""
    if at_s <= 0:
        return UNKNOWN_TEXT
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return UNKNOWN_TEXT


def count(number: float) -> str:
    """Return a number with commas between thousands; UNKNOWN_TEXT below 0."""
    return f"{number:,.0f}" if math.isfinite(number) and number >= 0 else UNKNOWN_TEXT


def some(number: int, what: str) -> str:
    """Return a number of things with their name, as `1 row` or `2,000 rows`."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def size(number: float) -> str:
    """Return bytes in the unit that has few digits; UNKNOWN_TEXT below 0."""
    if not math.isfinite(number) or number < 0:
        return UNKNOWN_TEXT
    step = 0
    while number >= 1024 and step < len(_BYTES) - 1:
        number, step = number / 1024, step + 1
    return f"{number:.0f} {_BYTES[step]}" if step == 0 or number >= 100 else f"{number:.1f} {_BYTES[step]}"


def version(number: int) -> str:
    """Return a version of a table; UNKNOWN_TEXT for -1, which is none."""
    return str(number) if number >= 0 else UNKNOWN_TEXT


def share(part: float, whole: float) -> float:
    """Return `part` of `whole` from 0 to 1; 0 where there is no whole."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 and math.isfinite(part) else 0.0


def short(text: str, chars_max: int) -> str:
    """Return a text of at most so many characters, its end cut where it is longer."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + CUT


def last_part(place: str, chars_max: int = 60) -> str:
    """Return the last part of a path or URI, by which people know it; its beginning is cut where that is long."""
    name = place.rstrip("/").rpartition("/")[2] or place
    return name if len(name) <= chars_max else CUT + name[1 - chars_max :]


# --- the facts of a job -----------------------------------------------------------------------------------------------
# Boards of all jobs show these facts, taken from what `ListJobs` answers. A list has up to ten thousands of jobs: what
# is kept of each is small.

UNKNOWN_KIND = "unknown"
"""The kind of a job whose spec cannot be read."""

TEXT_CHARS_MAX = 300
"""Characters of an error, a warning or a place that boards of all jobs show; the rest is on the job's own."""

SOURCES_MAX = 64
"""Tables of one job that the boards know; further ones are left out of the lineage."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job. `lag_s`, `lag_least_s` (as JobView has them) and `target_lag_s` are seconds, -1 where not known or not
    given; times are Unix seconds.

    `sources` are the places of the tables that it reads, the first is the one on which it is registered; `target` is
    empty where its consumer needs none.
    """

    account: str
    table_id: str
    table: str
    name: str
    job_id: str
    kind: str
    target: str
    sources: tuple[str, ...]
    state: JobState
    reason: Reason
    late: bool
    lag_s: float
    lag_least_s: float
    target_lag_s: float
    applied_version: int
    source_version: int
    seq: int
    checked_at_s: float
    started_at_s: float
    ended_at_s: float
    node_id: str
    error_code: int
    error_msg: str
    warning: str
    dead_letters: int
    retry_at_s: float
    doubted_at_s: float
    retained_s: float
    may_lose_history: bool
    condition: str

    @property
    def title(self) -> str:
        """Return the place by which users know what the job maintains: its target, or else its own name."""
        return self.target or self.name


def facts_of(job: JobView) -> JobFacts:
    """Return the facts of a job; a spec that was damaged in the job log makes its kind UNKNOWN_KIND."""
    fields = _fields_of(job.spec_json)
    status = job.status
    return JobFacts(
        account=job.account,
        table_id=job.table_id,
        table=job.table,
        name=job.name,
        job_id=job.job_id,
        kind=short(str(fields.get("consumer", UNKNOWN_KIND)), TEXT_CHARS_MAX),
        target=_text(fields.get("target")),
        sources=_sources_of(job, fields),
        state=job.state,
        reason=job.reason,
        late=job.late,
        lag_s=job.lag_s,
        lag_least_s=job.lag_least_s,
        target_lag_s=_seconds(fields.get("target_lag")),
        applied_version=job.applied_version,
        source_version=job.source_version,
        seq=job.seq,
        checked_at_s=job.checked_at_s,
        started_at_s=status.start_at_s,
        ended_at_s=status.end_at_s,
        node_id=job.node_id,
        error_code=int(status.error_code),
        error_msg=short(status.error_msg, TEXT_CHARS_MAX),
        warning=short(status.warning, TEXT_CHARS_MAX),
        dead_letters=status.dead_letters,
        retry_at_s=status.retry_at_s,
        doubted_at_s=status.doubted_at_s,
        retained_s=job.retained_s,
        may_lose_history=job.may_lose_history,
        condition=job.condition,
    )


def all_facts(jobs: Iterable[JobView]) -> tuple[JobFacts, ...]:
    return tuple(map(facts_of, jobs))


def error_name(code: int) -> str:
    """Return the name of an error's code, as `TABLE_NOT_FOUND`; its number where a later version has made it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def distinct(values: Iterable[str], most: int) -> Sequence[str]:
    """Return the different values in order, at most so many, for a list to choose from."""
    return sorted(set(values))[:most]


def _fields_of(spec_json: str) -> dict[str, Any]:
    try:
        return flatten(spec_json or "{}")
    except (ValueError, RecursionError, AttributeError, TypeError):
        return {}


def _sources_of(job: JobView, fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the job's tables: the one of its registration, those of its query, those that its status names."""
    options = fields.get("options")
    tables = options.get("tables") if isinstance(options, dict) else None
    named = map(_text, tables.values()) if isinstance(tables, dict) else ()
    found = dict.fromkeys((_text(job.table), *named, *map(_text, job.status.sources)))
    return tuple(each for each in found if each)[:SOURCES_MAX]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: object) -> float:
    """Return a number of seconds; -1 for what is none, or too great to be one."""
    try:
        return float(value) if isinstance(value, (int, float)) else -1.0
    except OverflowError:
        return -1.0


def spec_text(spec_json: str) -> str:
    """Return a spec with a field on each line; as it is where it is no JSON."""
    try:
        return json.dumps(json.loads(spec_json), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return spec_json


# --- the board of one job ---------------------------------------------------------------------------------------------

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
    from iscp.model.spec.spec_parsing import view_of

    view = view_of(job.spec_json)
    return view.sql if view is not None else ""


# --- sparklines -------------------------------------------------------------------------------------------------------


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
