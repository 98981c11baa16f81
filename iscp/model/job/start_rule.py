"""Decisions on when a job may run, from facts alone: which iterations of a table start now, what a trigger of the
user's own answers, and which jobs no longer run as nodes' processes have died of them.

The values of comparisons of a target with its source, and of the state in which a target was last seen, are here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from math import inf
from typing import Any, NamedTuple

from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import JobSpec, TriggerType
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import ErrorCode, JobFailed, NodeKilled, TemporaryError
from iscp.model.values.ids import ShardId
from iscp.model.values.untrusted_values import exact_float, shown
from iscp.model.values.watermark import NOTHING_APPLIED

# --- starts of iterations ---------------------------------------------------------------------------------------------
# The rule is after MatrixOne ISCP's "select candidate iterations". Jobs of one account on a table have one watermark
# and share iterations, unless their trigger says otherwise. Only what is handed over decides; when the rule is
# evaluated again, and what a job's failures mean in time, is the schedule's business.
#
# 1. A new job starts its first iteration at once, alone, without a probe of the source: to the others' watermark, so
#    that they go on together, or to now. The others do not wait for it.
# 2. The jobs at the highest watermark (the leaders) share one iteration to now when the source is ahead, none of them
#    is busy, and no job that is near lags.
# 3. Jobs that lag catch up to the leaders, one at a time. A job is near if it reached what it was sent for the last
#    time: one more iteration brings it to the leaders, and they wait for that. Nobody waits for a job that is far: its
#    catching up may take long, and the leaders would wait because of another's trouble.
# 4. A failing job is retried alone, by its own backoff, and counts for nobody else.
# 5. Jobs of different accounts have nothing to do with each other.
# 6. Jobs that go alone (greedy, independent, periodic, custom, and those that read their tables themselves) start to
#    now whenever the source is ahead and their trigger lets them, whatever other jobs do. The others neither wait for
#    them nor go to their watermark.
# 7. Periodic jobs that share go together where they are due and at one watermark.

TARGET_LAG_S = 60.0
"""Target lag of a job that has none, where iterations are ordered by their deadlines."""

_SAYING_WHEN = ('"trigger"', '"target_lag"', '"independent"')


class SharingGroup(Enum):
    """The group with which a job shares iterations: its table's, the other periodic ones that share, or nobody."""

    TABLE = "table"
    PERIOD = "period"
    NONE = "none"


def run_spec(spec_json: str) -> JobSpec | None:
    """Return the spec if it may say when the job runs, else None; a hundred thousand others then cost no parsing."""
    return parse_spec(spec_json) if any(name in spec_json for name in _SAYING_WHEN) else None


def sharing_group(spec: JobSpec | None) -> SharingGroup:
    if spec is None:
        return SharingGroup.TABLE
    trigger = spec.trigger
    if trigger.job_type is TriggerType.PERIODIC and trigger.share:
        return SharingGroup.PERIOD
    shares = trigger.job_type is TriggerType.DEFAULT and not spec.independent
    return SharingGroup.TABLE if shares else SharingGroup.NONE


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The state of a source as last seen.

    `stamp` is the identity of the newest commit file (inode and time, or ETag), which only the probe reads; empty: not
    probed yet, only the version is known. `since_s` is when the first of the commits that came with the last change was
    made, or, at a first probe that finds just the version that was known, this one (Unix seconds; 0: not known).
    `repair` is the newest repair (iscp.model.job.source_holds) among what was committed since the first probe; 0: none.
    """

    version: int
    stamp: bytes = b""
    since_s: float = 0.0
    repair: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that may run: neither paused nor failed for good.

    `watermark` is -1 until its first iteration is done. With `busy` it is in an iteration, or has to wait for a time.
    With `stale` the source at its watermark is another one than before, so it must run though the versions agree. With
    `waits` its trigger does not let it start yet, whatever is outstanding.
    """

    account: str
    watermark: int = NOTHING_APPLIED
    busy: bool = False
    failing: bool = False
    near: bool = False
    stale: bool = False
    group: SharingGroup = SharingGroup.TABLE
    waits: bool = False

    @property
    def built(self) -> bool:
        return self.watermark > NOTHING_APPLIED

    def outstanding(self, newest: int | None) -> bool:
        """Return whether a job that is built has something to do."""
        return self.stale or (newest is not None and newest > self.watermark)


@dataclass(frozen=True, slots=True)
class Start:
    """One iteration for the candidates with these indexes, to `to_version`, or if that is None to now."""

    jobs: tuple[int, ...]
    to_version: int | None


def decide(jobs: Sequence[Candidate], newest: int | None) -> list[Start]:
    """Return the iterations to start; `newest` is the newest known version of the source (None: not known yet).

    Invariants: no busy job is in any, no job is in two, all jobs of one are of the same account.
    """
    accounts: dict[str, list[int]] = {}
    alone: list[int] = []
    for index, job in enumerate(jobs):
        if job.group is SharingGroup.TABLE:
            accounts.setdefault(job.account, []).append(index)
        else:
            alone.append(index)
    starts = [start for group in accounts.values() for start in _of_account(jobs, group, newest)]
    return starts + list(_by_themselves(jobs, alone, newest)) if alone else starts


def _by_themselves(jobs: Sequence[Candidate], group: list[int], newest: int | None) -> Iterator[Start]:
    together: dict[tuple[str, int], list[int]] = {}
    for index in group:
        job = jobs[index]
        if job.busy:
            continue
        if job.failing or not job.built:
            yield Start((index,), None)
        elif job.outstanding(newest) and not job.waits:
            if job.group is SharingGroup.PERIOD:
                together.setdefault((job.account, job.watermark), []).append(index)
            else:
                yield Start((index,), None)
    for shared in together.values():
        yield Start(tuple(shared), None)


def _of_account(jobs: Sequence[Candidate], group: list[int], newest: int | None) -> Iterator[Start]:
    healthy = [index for index in group if jobs[index].built and not jobs[index].failing]
    top = max((jobs[index].watermark for index in healthy), default=None)
    for index in group:
        job = jobs[index]
        if not job.busy and (job.failing or not job.built):
            yield Start((index,), top if top is not None and job.watermark < top else None)
    if top is not None:
        leaders = tuple(index for index in healthy if jobs[index].watermark == top)
        lagging = [index for index in healthy if jobs[index].watermark < top]
        yield from _catch_up(jobs, lagging, top)
        if not any(jobs[index].near for index in lagging):
            yield from _lead(jobs, leaders, newest)


def _catch_up(jobs: Sequence[Candidate], lagging: list[int], top: int) -> Iterator[Start]:
    """Yield one start of the near and one of the far at a time.

    The near must not queue behind the far, as the leaders wait for them.
    """
    for near in (True, False):
        alike = [index for index in lagging if jobs[index].near is near]
        if alike and not any(jobs[index].busy for index in alike):
            yield Start((max(alike, key=lambda index: jobs[index].watermark),), top)


def _lead(jobs: Sequence[Candidate], leaders: tuple[int, ...], newest: int | None) -> Iterator[Start]:
    outstanding = any(jobs[index].outstanding(newest) for index in leaders)
    if outstanding and not any(jobs[index].busy for index in leaders):
        yield Start(leaders, None)


# --- triggers of the user's own ---------------------------------------------------------------------------------------
# A trigger decides from the facts alone that it is handed, so that the same facts always lead to the same answer. The
# answer is checked: it must not be a time in the past, nor nothing.

ASK_AGAIN_S = 0.1
"""Least time until a trigger is called again, whatever time it answers, unless something happens."""


@dataclass(frozen=True, slots=True)
class TriggerFacts:
    """A job whose source is ahead of it. Times are Unix seconds, 0 where there is none yet.

    `applied_at_s`: when the version was committed that is applied; `last_start_at_s` and `last_end_at_s` are those of
    the job's last iteration, failed ones included. `options` are those of the job's spec.
    """

    account: str
    table: str
    job: str
    applied_version: int
    applied_at_s: float
    source_version: int
    now_s: float
    last_start_at_s: float
    last_end_at_s: float
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartNow:
    """Start an iteration to the newest version."""


@dataclass(frozen=True, slots=True)
class NotBefore:
    """Evaluate again at this time (Unix seconds, later than `now_s`), or earlier if something happens."""

    at_s: float


def wait_of(answer: object, facts: TriggerFacts) -> float:
    """Return the seconds that a job has to wait by its trigger's answer (0: none).

    Raises TemporaryError for anything that is no answer.
    """
    match answer:
        case StartNow():
            return 0.0
        case NotBefore(at_s):
            try:
                exact_s = exact_float(at_s, "at_s", -inf, inf)
            except ValueError as error:
                raise _wrong(f"NotBefore({shown(at_s)}), which is no time") from error
            if exact_s <= facts.now_s:
                raise _wrong(f"NotBefore({exact_s!r}), which is not later than now ({facts.now_s!r})")
            return max(ASK_AGAIN_S, exact_s - facts.now_s)
        case _:
            raise _wrong(f"{shown(answer)}, and neither StartNow() nor NotBefore(at_s)")


def _wrong(answer: str) -> TemporaryError:
    return TemporaryError(f"answered {answer}", code=ErrorCode.TRIGGER_FAILED)


# --- jobs that nodes' processes have died of --------------------------------------------------------------------------
# The jobs are found by what the processes left when a native library crashed them. A fault of Python is the iteration's
# own. A fault in a library of another language ends the whole process: it aborts, or touches memory that is not its
# own. The same work would end the process again as soon as it is back. A job's deaths count at all nodes together, and
# those of an account's jobs too: there are always further jobs.

DEATHS_MAX = 2
"""How often in a row nodes' processes crash while a job is at work, before no node runs the job."""

KILLS_FEARED = 2
"""How often in a row nodes' processes are killed while a job is at work, before it runs alone."""

KILLS_MAX = 5
"""How often in a row nodes' processes are killed while a job is at work, before no node runs the job."""

ACCOUNT_DEATHS_FEARED = 2
"""Of how many deaths within a day jobs of one account are suspected, before each job of it runs alone."""

ACCOUNT_DEATHS_MAX = 4
"""Of how many deaths within a day jobs of one account are suspected, before none of its jobs runs."""

ACCOUNT_DEATHS_S = 86_400.0
"""Seconds for which a death counts for an account."""

KILLED = "Killed"
"""The signal of a process that ended without a word."""

_SIGNAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_CURRENT = re.compile(r"^Current thread 0x([0-9a-f]+).*\n((?:  .*\n?)*)", re.MULTILINE)
# Of what helps a job's thread, as it reads files side by side; calls of others are answered in such threads too.
_OF_POOL, _OF_CALLS = "concurrent/futures/thread.py", "/grpc/"


class AtWork(NamedTuple):
    """Jobs on which a thread of Python was at work, by their job_ids, with their accounts and names."""

    thread: int
    table_uri: str
    jobs: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the process, with its `signal` in Python's words, as `Aborted`.

    `thread` is the thread of Python that crashed, with its `stack`; None: it was one of a library's own. With `helps`
    it is one of several among which a job's work is spread.
    """

    signal: str
    thread: int | None = None
    stack: str = ""
    helps: bool = False


@dataclass(frozen=True, slots=True)
class Deaths:
    """The deaths of one job in a row: how many crashes, and the last of all (Unix seconds, and by which signal).

    `kills` are the ends by SIGKILL, as of a process that takes too much memory. People send that as well, and whatever
    was at work then is suspected: so more of them count. `forgiven_at_s` is when the fault was reported that a person
    has had tried again since; 0: none was. `account` is the job's.
    """

    count: int = 0
    at_s: float = 0.0
    signal: str = ""
    forgiven_at_s: float = 0.0
    kills: int = 0
    account: str = ""

    @property
    def some(self) -> bool:
        return self.count + self.kills > 0

    @property
    def feared(self) -> bool:
        return self.count > 0 or self.kills >= KILLS_FEARED

    @property
    def too_many(self) -> bool:
        return self.count >= DEATHS_MAX or self.kills >= KILLS_MAX

    @property
    def described(self) -> str:
        at = datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="seconds")
        return f"{self.count + self.kills} times in a row, the last time at {at} ({self.signal})"


def parse_crash(dump: str) -> Crash | None:
    """Return the crash that Python's fault handler wrote down as the process died, or None if it did not die so."""
    found = _SIGNAL.search(dump)
    if found is None:
        return None
    current = _CURRENT.search(dump)
    if current is None:
        return Crash(found[1])
    stack = current[2].rstrip()
    return Crash(found[1], int(current[1], 16), stack, _OF_POOL in stack and _OF_CALLS not in stack)


def suspects(crash: Crash, at_work: Iterable[AtWork]) -> Sequence[AtWork]:
    """Return the work that may have crashed: that of the thread, or all where a thread works for any of them, or is
    unknown.
    """
    all_of_them = list(at_work)
    own = [each for each in all_of_them if each.thread == crash.thread]
    if own or not (crash.thread is None or crash.helps):
        return own
    return all_of_them


def counted_together(row: JobRow, own: Deaths, elsewhere: Iterable[Deaths]) -> Deaths:
    """Return a job's deaths in a row at a node and at others, whose own do not count once it has run well since."""
    forgotten_s = own.forgiven_at_s if row.status.error_code else max(row.status.end_at_s, own.forgiven_at_s)
    later = [each for each in elsewhere if each.some and each.at_s > forgotten_s]
    last = max((own, *later), key=lambda each: each.at_s)
    return replace(
        own,
        count=own.count + sum(each.count for each in later),
        kills=own.kills + sum(each.kills for each in later),
        at_s=last.at_s,
        signal=last.signal,
    )


def deaths_of_account(account: str, deaths: Iterable[Deaths], now_s: float) -> int:
    """Return of how many deaths jobs of the account are suspected; one of which several are suspected is one."""
    since_s = now_s - ACCOUNT_DEATHS_S
    return len({each.at_s for each in deaths if each.account == account and each.feared and each.at_s > since_s})


def killed(deaths: Deaths) -> NodeKilled:
    """Return the error that says why a job does not run any more."""
    return NodeKilled(
        f"the process of a node died while it worked for the job, {deaths.described}: no node runs it any more",
        remedy="Repair what a library crashes at (`node.crashed` in the node's log has the stack), then "
        "`iscp-admin job resume`",
    )


def killed_by_account(account: str, deaths: int) -> NodeKilled:
    """Return the error that says why no job of an account runs for a while."""
    return NodeKilled(
        f"processes of nodes died {deaths} times within a day while they worked for jobs of the account {account!r}: "
        "none of its jobs runs before the first of these is a day ago",
        remedy="Repair or drop the jobs of which they died (`node.crashed` in the nodes' logs names them and has the "
        "stack), then `iscp-admin job resume` for each of them",
    )


# --- comparisons of a job's target with its source --------------------------------------------------------------------
# The request, the report, and when a comparison is refused.

SAMPLES_MAX = 10
"""Keys that a comparison shows; the others are only counted."""

SAMPLE_CHARACTERS_MAX = 300
"""Characters that a comparison shows of a value; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Compare the target of the registration `job_id`, and with `repair` make it equal.

    It is answered once, under `verify_id`; `shard` says which node has to do it.
    """

    verify_id: str
    shard: ShardId
    job_id: str
    repair: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One key that is not as it should be.

    `fault` is `missing` in the target, `extra` there, or `different`, in `columns`. `key` is JSON, cut where it is
    long; without a key it is the row itself.
    """

    fault: str
    key: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of a target and those that it should have.

    `ranges_differing` of the `ranges` ranges of keys were read row by row. `missing` and `extra` count rows that the
    target lacks or has too many, `different` keys that it has as often, but with other values; `shared` the keys that
    rows of the source share, about which nothing else is said.
    """

    rows_source: int = 0
    rows_target: int = 0
    ranges: int = 0
    ranges_differing: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    shared: int = 0
    samples: tuple[Sample, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        shown = "; ".join(f"{one.fault} {one.key}" for one in self.samples)
        counts = f"{self.missing} rows are missing, {self.extra} are too many, {self.different} are different"
        return f"{counts}, as {shown}" if shown else counts


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A job's target compared with its source at `version`, the job's watermark.

    `void` says why the target's rows were in doubt before (others have written to it). With `repaired` they were made
    equal, by the iteration `seq`; otherwise that is the target's last.
    """

    version: int
    seq: int
    comparison: Comparison
    void: str = ""
    repaired: bool = False

    @property
    def equal(self) -> bool:
        return self.comparison.equal


def refuse_unverifiable(row: JobRow, repair: bool) -> None:
    """Raise JobFailed if there is nothing to compare, or if a repair must not be made."""
    name = row.key.job_name
    if row.failed_for_good:
        why = "Repair that, `iscp-admin job resume`, and verify then"
        raise JobFailed(f"the job {name!r} has failed: {row.status.error_msg}", remedy=why)
    if row.watermark.version < 0:
        raise JobFailed(
            f"the job {name!r} has not been built yet",
            about="job",
            remedy="Wait for it with `iscp-admin job wait`, and verify then",
        )
    if repair and row.paused:
        raise JobFailed(
            f"the job {name!r} is paused, and a repair writes",
            about="repair",
            remedy="Resume it with `iscp-admin job resume`, or verify without repair",
            code=ErrorCode.JOB_FAILED,
        )


# --- the state of a target as last seen -------------------------------------------------------------------------------
# The kinds of logs show whether somebody has written to the target.


class TargetLog(StrEnum):
    """The kind of log that a target has: a Delta table's, a Lance dataset's, or none that can be probed."""

    NONE = "none"
    DELTA = "delta"
    LANCE = "lance"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """A target as last seen: `state` is that of the log at `uri` when the target had what was applied to it.

    Without a URI there is nothing that can be probed at the cost of a `stat`. With one this is a Delta table: nearly
    all targets are, a hundred thousand of them in one node, and nothing is stored of each that says so.
    """

    uri: str = ""
    state: ProbeState | None = None

    @property
    def log(self) -> TargetLog:
        """Return the kind of log that was seen."""
        return TargetLog.DELTA if self.uri else TargetLog.NONE


@dataclass(frozen=True, slots=True)
class OtherTargetSeen(TargetSeen):
    """A target as last seen that has a log of a kind other than Delta's."""

    kind: TargetLog = TargetLog.NONE

    @property
    def log(self) -> TargetLog:
        return self.kind


def seen_target(log: TargetLog, uri: str, state: ProbeState) -> TargetSeen:
    """Return a target with a log of that kind as last seen."""
    return TargetSeen(uri, state) if log is TargetLog.DELTA else OtherTargetSeen(uri, state, log)


class TargetQuery(NamedTuple):
    """A job's target is to be probed, going on from `seen` (None: for the first time).

    A named tuple, as one is made for each idle job at each probe.
    """

    row: JobRow
    seen: TargetSeen | None
