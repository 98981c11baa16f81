"""A run, which brings jobs up to date once without a cluster: its plan, the standing of each target, the forecast, the
progress of each job, and its result.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any

from iscp.model.api.api_requests import RegisterRequest
from iscp.model.job.iteration import JobOutcome, SparkNeed
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import marked_job_id, parse_job_id
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.ids import next_job_id
from iscp.model.values.untrusted_values import Refusals
from iscp.model.values.watermark import Position, Watermark

# --- the result of each job -------------------------------------------------------------------------------------------


class ResultState(StrEnum):
    """The end of a job's part in a run.

    UPDATED: it wrote to its target. CURRENT: the target was as it should be, and nothing was written. FAILED: `error`
    says why. SKIPPED: a job whose target it reads has failed, or the run was ended before its turn.
    """

    UPDATED = "updated"
    CURRENT = "current"
    FAILED = "failed"
    SKIPPED = "skipped"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class RunResult:
    """One job's part in a run.

    `strategy` and `reason` say how its rows were brought up to date, and why so. `from_version` and `to_version` are
    those of its own table that the target was at before (-1: it held nothing of the job's) and is at now. `rows` were
    written, within `seconds`, in `iterations` commits. `error_code` is an ErrorCode, and `error` a sentence with its
    remedy; both are empty unless it failed or was skipped. `warning` is what its user should know otherwise.

    `spark` says why the job needed Spark; None: it needed none, or Spark was given, and nobody has seen who uses it.
    `started_spark`: it was the first that needed Spark, which was started for it.
    """

    name: str
    account: str
    kind: str
    table: str
    target: str
    state: ResultState
    strategy: str = ""
    reason: str = ""
    from_version: int = -1
    to_version: int = -1
    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
    iterations: int = 0
    error_code: int = 0
    error: str = ""
    warning: str = ""
    spark: str | None = None
    started_spark: bool = False

    @property
    def ok(self) -> bool:
        return self.state in (ResultState.UPDATED, ResultState.CURRENT)

    def document(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        return {name: value.value if isinstance(value, ResultState) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        versions = (
            f"version {self.from_version} → {self.to_version}"
            if self.from_version >= 0
            else (f"version {self.to_version}")
        )
        match self.state:
            case ResultState.FAILED | ResultState.SKIPPED:
                return f"{self.name}: {self.state}: {self.error}"
            case ResultState.CURRENT:
                return f"{self.name}: current at version {self.to_version}"
            case _:
                why = f" ({self.reason})" if self.reason else ""
                return f"{self.name}: {self.strategy}{why}, {self.rows} rows in {self.seconds:.2f} s, {versions}"


def with_need(result: RunResult, need: SparkNeed | None) -> RunResult:
    """Return the result with all that the job needed Spark for; None: it needed none."""
    return result if need is None else replace(result, spark=str(need), started_spark=need.started)


# --- remedies in the words of a run -----------------------------------------------------------------------------------
# What jobs meet is worded for a cluster, whose commands a run does not have.

FULL = "a full refresh (--full-refresh, or full=True)"

_WORDS = {
    " (`iscp-admin notify`, `iscp-admin job wait`)": "",
    "`iscp-admin notify` has": "A refresh has",
    "Wait until it is built (`iscp-admin job wait`)": "Refresh it",
    "Wait until the job has caught up (`iscp-admin job wait`)": "Refresh it",
    "`iscp-admin job resync` builds": f"{FULL[0].upper()}{FULL[1:]} builds",
    "`iscp-admin job resync` it with": f"give it, by {FULL},",
    "`iscp-admin job resync --table` has its jobs follow it": f"name its place in the job, and build that by {FULL}",
    "`iscp-admin job resync`": FULL,
    "`job resync`": FULL,
    "; `iscp-admin job verify` compares": "; `verify()` in a program compares",
    "; verify the job to have it": "; `verify()` in a program has it",
    "`iscp-admin job resume`": "run it again",
    "Resume it once": "Run it again once",
    "resume or resync it": f"run it again, or build its target again by {FULL}",
    "resume the job": "run the job again",
    "resync the job to it": f"name that in the job, and build that by {FULL}",
    "Resync the job": f"Build its target again by {FULL}",
    "resync the job": f"build its target again by {FULL}",
    "resync its jobs": f"build its jobs' targets again by {FULL}",
    "Register the job again, on": "Give the job",
    "Register the job when": "Run the job when",
    "Register the job with": "Give the job",
    "Register the view on the first of its tables": "Name the first of its tables as the view's",
    "register the job again with": "give the job",
    "register the job with": "give the job",
    "register a job with": "give the job",
    "delete it and register it with": "give the job",
    ", and restart the nodes": ", and run the job again",
    "; see `iscp-admin job list`": "",
    " computed by ranges of it, on all nodes": " computed in one go, as a cluster would by ranges of it",
    "the node's": "the",
    "the node may": "you may",
    "the node is": "this process is",
    "the node stops": "this process ends",
    "the node died": "its process died",
    "this node cannot": "this process cannot",
    ", on every node, and restart them": ", and run the job again",
    " on every node, and restart them": ", and run the job again",
    "The cluster did not": "The run did not",
    "The cluster does not": "The run does not",
}
"""The words of a run for those of a cluster."""

_FOUND = re.compile("|".join(map(re.escape, sorted(_WORDS, key=len, reverse=True))))


def words_of_a_run(text: str) -> str:
    """Return an error or a remedy without commands that only a cluster has."""
    return _FOUND.sub(lambda found: _WORDS[found[0]], text)


# --- the standing of a target -----------------------------------------------------------------------------------------
# The id of a target's last commit says whose the target is, and so how it stands to a run that wants to keep it.


class TargetStanding(StrEnum):
    """A target stands to a run in one of these ways.

    NEW: nobody has claimed it. SAME: a run keeps it under the wanted spec, and this one goes on under its id.
    KEPT_BY_CLUSTER: a job of a cluster keeps it, or it does not say who does; a run only takes it over if its user says
    so. OTHER_SPEC: a run keeps it under another spec, and its rows have to be built.
    """

    NEW = "new"
    SAME = "same"
    KEPT_BY_CLUSTER = "kept_by_cluster"
    OTHER_SPEC = "other_spec"


def standing_for_run(position: Position, mark: str) -> TargetStanding:
    """Return how the target at `position` stands to a run whose job has this mark."""
    if position.seq == 0 and not position.job_id:
        return TargetStanding.NEW
    found = parse_job_id(position.job_id)
    if not found.run:
        return TargetStanding.KEPT_BY_CLUSTER
    return TargetStanding.SAME if found.mark == mark else TargetStanding.OTHER_SPEC


def job_id_for_run(position: Position, mark: str, now_s: float, *, full: bool) -> str:
    """Return the id under which a run begins with the target at `position`, or builds it again.

    It is later than the one there, also where a clock is behind. `full`: the target is built from nothing.
    """
    return marked_job_id(next_job_id(now_s, parse_job_id(position.job_id).time), mark, run=True, full=full)


# --- the forecast -----------------------------------------------------------------------------------------------------
# What a run would do to each job, and why, without doing it.


class Forecast(StrEnum):
    """A run would CREATE the target, UPDATE it by what has changed, REBUILD its rows, or do nothing (CURRENT).

    REFUSED: it would fail before anything is written. SKIPPED: a job whose target it reads would be refused.
    """

    CREATE = "create"
    UPDATE = "update"
    REBUILD = "rebuild"
    TAKE_OVER = "take over"
    CURRENT = "current"
    REFUSED = "refused"
    SKIPPED = "skipped"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast of one job. `versions` has for each table that it reads the version that the target is at (-1: none)
    and the newest one; it is empty where that cannot be known yet. `spark` says why it is certain that the job will
    need Spark; None: it is not known before.
    """

    name: str
    account: str
    table: str
    target: str
    action: Forecast
    why: str
    versions: Mapping[str, tuple[int, int]]
    spark: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the forecast as JSON has it."""
        versions = {uri: {"applied": applied, "newest": newest} for uri, (applied, newest) in self.versions.items()}
        return asdict(self) | {"action": self.action.value, "versions": versions}


BY_ALL_ROWS = (Forecast.CREATE, Forecast.REBUILD)
"""What is made of all rows of its tables."""


def forecast_action(
    standing: TargetStanding,
    versions: Mapping[str, tuple[int, int]],
    *,
    full: bool,
    void: str,
    upstream: Sequence[str],
    replaced: Sequence[str] = (),
) -> tuple[Forecast, str]:
    """Return what would be done and why. `upstream`: the jobs whose targets it reads, and that would write to them.

    `replaced`: the tables that are others than those whose rows the target has.
    `void` says why the target's rows cannot be trusted, and is empty if they can.
    """
    if standing is TargetStanding.NEW:
        return Forecast.CREATE, "nothing is there"
    if full:
        return Forecast.REBUILD, "so requested"
    if standing is TargetStanding.KEPT_BY_CLUSTER:
        return Forecast.TAKE_OVER, "a cluster keeps it"
    if void:
        return Forecast.UPDATE, void
    if upstream:
        return Forecast.UPDATE, f"reads {', '.join(repr(each) for each in upstream)}"
    if replaced:
        return Forecast.UPDATE, f"{', '.join(replaced)} was replaced"
    behind = [f"{uri}: {applied} → {newest}" for uri, (applied, newest) in versions.items() if applied != newest]
    return (Forecast.UPDATE, "; ".join(behind)) if behind else (Forecast.CURRENT, "no table has changed")


# --- the progress of a job --------------------------------------------------------------------------------------------
# After each iteration of a run a job goes on, waits for another try, or has ended.

TRIES_MAX = 4
"""Iterations in a row of one job that may fail by something temporary; after the last of them the job has failed."""

RETRY_BASE_S = 0.5
"""Seconds before the second try of a job; each further one waits twice as long. A job that waits for tables that are
behind checks so often whether they are so still.
"""

_CAME_LATE = "the answer to its commit was lost"

_ENDED = frozenset({ErrorCode.CANCELED, ErrorCode.TIMEOUT})


@dataclass(slots=True)
class JobProgress:
    """One job while it is brought to `goal`, the version of its own table that was the newest when its turn came.

    `result` is what is known of it so far. `retry_s`: seconds to wait before the next iteration.
    """

    row: JobRow
    goal: int
    result: RunResult
    ended: bool = False
    retry_s: float = 0.0
    _failures: int = 0
    _first: JobOutcome | None = field(default=None)

    def take(self, outcome: JobOutcome, seconds: float) -> None:
        """Take in what came of an iteration, which took `seconds` for all its jobs."""
        before, self.retry_s = self.row.watermark, 0.0
        # Of an iteration that failed the commit may have come to be when its answer was lost.
        came_late = outcome.ok and not outcome.committed and self._failures > 0 and outcome.seq > self.row.seq
        self.row = self.row._replace(watermark=outcome.watermark, seq=outcome.seq)
        self._count(outcome, seconds)
        if came_late:
            self.result = replace(
                self.result, state=ResultState.UPDATED, reason=_CAME_LATE, iterations=self.result.iterations + 1
            )
        if not outcome.ok:
            self._fail(outcome)
            return
        self._failures = 0
        if outcome.waits_for:
            self.retry_s = min(outcome.wait_s, RETRY_BASE_S)
        elif outcome.watermark.version >= self.goal and not outcome.watermark.steps:
            self.ended = True
        elif not _moved(before, outcome.watermark):
            self.end_by(ErrorCode.INTERNAL, "the iteration ended without progress")

    def end_by(self, code: int, error: str) -> None:
        """End the job as failed."""
        self.ended = True
        self.result = replace(self.result, state=ResultState.FAILED, error_code=int(code), error=words_of_a_run(error))

    def _fail(self, outcome: JobOutcome) -> None:
        self._failures += 1
        code = ErrorCode(outcome.error_code)
        if code.temporary and code not in _ENDED and self._failures < TRIES_MAX:
            self.retry_s = RETRY_BASE_S * 2.0 ** (self._failures - 1)
        else:
            self.end_by(code, outcome.error_msg)

    def _count(self, outcome: JobOutcome, seconds: float) -> None:
        work_s = seconds if outcome.usage is None else outcome.usage.work_s
        result = replace(
            self.result, seconds=round(self.result.seconds + work_s, 4), to_version=outcome.watermark.version
        )
        if outcome.ok:
            result = replace(result, dead_letters=outcome.dead_letters, warning=outcome.warning)
        if outcome.ok and outcome.committed:
            # Of several iterations the first one says how far the target was behind, and why.
            first = self._first = self._first or outcome
            result = replace(
                result,
                state=ResultState.UPDATED,
                strategy=first.strategy or first.data_type.value,
                reason=first.strategy_reason,
                rows=result.rows + outcome.rows,
                bytes=result.bytes + outcome.bytes,
                iterations=result.iterations + 1,
            )
        self.result = result


def _moved(before: Watermark, after: Watermark) -> bool:
    return (before.version, before.step) != (after.version, after.step)


# --- the plan ---------------------------------------------------------------------------------------------------------
# The jobs that come next are those whose tables are as fresh as the run will make them. A job comes after all jobs
# whose targets it reads, and is skipped if one of them fails. Jobs of one table that are ready together are one unit,
# as their table is read once for all of them. A job that reads its tables itself is a unit of its own: it shares no
# read, and would wait for whatever the others do.

PARALLEL_DEFAULT, PARALLEL_MAX = 4, 64
"""Tables whose jobs are run at once: by default, and at the most."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a plan: its own table is the first that it `reads`; an empty `target` is that of no table.

    `place` says where it is written (`jobs.yaml[3]`). Others may have the same target if it is `shared`. `alone`: it
    reads its tables itself.
    """

    name: str
    account: str
    reads: tuple[str, ...]
    target: str
    place: str
    shared: bool = False
    alone: bool = False

    @property
    def unit(self) -> tuple[str, str]:
        """Return what jobs of one unit have in common."""
        return self.account, self.reads[0]


@dataclass(slots=True)
class RunPlan:
    """The jobs of a run by their numbers, and what has become of them. Makes no decision twice; not safe for threads.

    `chosen` are the numbers of the jobs that are run; the others count as they are. With `fail_fast` nothing is begun
    after the first failure.
    """

    jobs: Sequence[PlannedJob]
    chosen: Collection[int]
    fail_fast: bool = False
    skipped: dict[int, str] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _begun: set[int] = field(default_factory=set)
    _waits: dict[int, set[int]] = field(default_factory=dict)
    _readers: dict[int, set[int]] = field(default_factory=dict)
    _makers: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidRequest for all jobs in a circle, and all of one table with one name or one target."""
        refusals = Refusals()
        _refuse_same_names(self.jobs, refusals)
        makers = _makers_of(self.jobs, refusals)
        with refusals.collect():
            _refuse_circle(self.jobs, makers)
        refusals.raise_all()
        for number in self.chosen:
            found = {maker for uri in self.jobs[number].reads for maker in makers.get(uri, ())}
            self._makers[number] = found & set(self.chosen)
            self._waits[number] = set(self._makers[number])
            for maker in self._waits[number]:
                self._readers.setdefault(maker, set()).add(number)

    def tables_on_several_ways(self) -> set[str]:
        """Return the tables, none of the run's targets, that some chosen job reads on several ways: itself, or through
        the targets of others.
        """
        below: dict[str, set[str]] = {}
        several: set[str] = set()
        for number in TopologicalSorter({number: self._makers[number] for number in self.chosen}).static_order():
            job = self.jobs[number]
            ways = [below.get(uri, {uri}) for uri in job.reads]
            found = set().union(*ways)
            several.update(uri for uri in found if sum(uri in way for way in ways) > 1)
            if job.target:
                below[job.target] = below.get(job.target, set()) | found
        return several

    @property
    def over(self) -> bool:
        return len(self._ended) == len(self.chosen)

    def begin(self) -> list[tuple[int, ...]]:
        """Return the units that can be begun now, each once, in the order of their first jobs."""
        units: dict[tuple[str, str, int], list[int]] = {}
        for number in sorted(self._waits):
            if number not in self._begun and not self._waits[number]:
                job = self.jobs[number]
                units.setdefault((*job.unit, number if job.alone else -1), []).append(number)
        self._begun.update(number for unit in units.values() for number in unit)
        return [tuple(unit) for unit in units.values()]

    def end(self, number: int, *, failed: bool) -> list[int]:
        """Take in that a job has ended; return the numbers of those that are skipped because of it."""
        self._ended.add(number)
        name = self.jobs[number].name
        if not failed:
            for reader in self._readers.get(number, ()):
                self._waits[reader].discard(number)
            return []
        skipped = self._skip(self._readers.get(number, ()), f"reads the target of {name!r}, which failed")
        return skipped + self.stop(f"{name!r} failed before its turn") if self.fail_fast else skipped

    def stop(self, why: str) -> list[int]:
        """Return the numbers of all jobs that were not begun, which are skipped for this reason."""
        return self._skip(set(self.chosen) - self._begun, why)

    def _skip(self, numbers: Iterable[int], why: str) -> list[int]:
        """Skip jobs, and those that read their targets; return the numbers of all of them that were not begun."""
        found, left = [], deque((number, why) for number in sorted(numbers))
        while left:
            number, reason = left.popleft()
            if number in self._begun:
                continue
            self._begun.add(number)
            self._ended.add(number)
            self.skipped[number] = reason
            found.append(number)
            reason = f"reads the target of {self.jobs[number].name!r}, which was skipped"
            left.extend((reader, reason) for reader in sorted(self._readers.get(number, ())))
        return found


def _refuse_same_names(jobs: Sequence[PlannedJob], refusals: Refusals) -> None:
    """Refuse jobs of a table that have the name of an earlier one: they are known by it."""
    places: dict[tuple[str, str, str], str] = {}
    for job in jobs:
        key = (*job.unit, job.name)
        if key in places:
            message = f"has the name of the job at {places[key]}, {job.name!r}, on the same table"
            remedy = "Give each job of a table a name of its own"
            refusals.add(InvalidRequest(message, field=job.place, remedy=remedy))
        places.setdefault(key, job.place)


def _makers_of(jobs: Sequence[PlannedJob], refusals: Refusals) -> dict[str, list[int]]:
    """Return the numbers of the jobs that make each target; refuse those that make one which is not shared."""
    makers: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        if not job.target:
            continue
        others = makers.setdefault(job.target, [])
        if others and not (job.shared and jobs[others[0]].shared):
            message = f"has the target of {jobs[others[0]].name!r} at {jobs[others[0]].place}, {job.target}"
            refusals.add(InvalidRequest(message, field=job.place, remedy="Give each job a target of its own"))
        others.append(number)
    return makers


def _refuse_circle(jobs: Sequence[PlannedJob], makers: Mapping[str, Sequence[int]]) -> None:
    """Raise InvalidRequest if a job reads what follows from its own target, or that itself."""
    reads = {number: [maker for uri in job.reads for maker in makers.get(uri, ())] for number, job in enumerate(jobs)}
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        circle: Sequence[int] = error.args[1]
        if len(set(circle)) == 1:
            raise InvalidRequest(
                f"has the table as its target that it reads, {jobs[circle[0]].target}",
                field=jobs[circle[0]].place,
                remedy="Give it another target",
            ) from error
        named = " → ".join(jobs[number].name for number in circle)
        raise InvalidRequest(
            f"is in a circle: {named}", field=jobs[circle[0]].place, remedy="Have one of them read other tables"
        ) from error


# --- jobs as a file or a program wants them ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that is wanted, and where it is written (`jobs/sales.yaml[3]`).

    `rebuild`: the target may be rebuilt if the user agrees. `leave`: a job of this name that is there stays as it is.
    """

    request: RegisterRequest
    place: str
    rebuild: bool = False
    leave: bool = False


# --- the choice of jobs by their names and tags -----------------------------------------------------------------------

TAG_PREFIX = "tag:"
"""The beginning of a pattern that is of tags, as dbt writes it."""

PATTERNS_MAX = 1_000
"""Patterns of one run; more are refused."""


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job as patterns see it."""

    name: str
    tags: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class JobSelection:
    """Patterns of jobs, as shells have them (`*`, `?`, `[ab]`), over names, or after `tag:` over tags.

    A job is selected if a pattern of `select` fits (all do where there is none), and none of `exclude` does.
    """

    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def choose(self, jobs: Sequence[NamedJob]) -> list[bool]:
        """Return for each job whether it is selected.

        Raises InvalidRequest for a pattern that fits no job: it would leave out, or run, what was not meant.
        """
        for option, patterns in (("--select", self.select), ("--exclude", self.exclude)):
            _refuse_unfit(option, patterns, jobs)
        return [
            (not self.select or _fits_any(self.select, each)) and not _fits_any(self.exclude, each) for each in jobs
        ]


def _refuse_unfit(field: str, patterns: Sequence[str], jobs: Iterable[NamedJob]) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise InvalidRequest(f"is given more than {PATTERNS_MAX} times", field=field, remedy="Use wider patterns")
    jobs = tuple(jobs)
    for pattern in patterns:
        if not any(_fits(pattern, each) for each in jobs):
            raise InvalidRequest(
                f"{pattern!r:.200} fits no job of these files",
                about=field,
                remedy="Write a job's name, a pattern as in 'sales.*', or a tag as in 'tag:nightly'",
            )


def _fits_any(patterns: Iterable[str], job: NamedJob) -> bool:
    return any(_fits(pattern, job) for pattern in patterns)


def _fits(pattern: str, job: NamedJob) -> bool:
    if pattern.startswith(TAG_PREFIX):
        return any(fnmatchcase(tag, pattern.removeprefix(TAG_PREFIX)) for tag in job.tags)
    return fnmatchcase(job.name, pattern)
