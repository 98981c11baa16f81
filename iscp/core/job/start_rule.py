"""Decide which iterations of a table start now (after MatrixOne ISCP's "select candidate iterations").

Jobs of one account on a table have one watermark and share iterations, unless their trigger says otherwise. Only
what is handed over decides; when it is evaluated again, and what a job's failures mean in time, is the schedule's
business.

1. A new job starts its first iteration at once, alone, without a probe of the source: to the others' watermark,
   so that they go on together, or to now. The others do not wait for it.
2. The jobs at the highest watermark (the leaders) share one iteration to now when the source is ahead, none of
   them is busy, and no job that is near lags.
3. Jobs that lag catch up to the leaders, one at a time. Near is one that reached what it was sent for the last time:
   one more iteration brings it to the leaders, and they wait for that. Nobody waits for one that is far: its
   catching up may take long, and the leaders would wait because of another's trouble.
4. A failing job is retried alone, by its own backoff, and counts for nobody else.
5. Jobs of different accounts have nothing to do with each other.
6. Jobs that go alone (greedy, independent, periodic, custom, and those that read their tables themselves) start to now
   whenever the source is ahead and their trigger lets them, whatever others do, who neither wait for
   them nor go to their watermark.
7. Periodic jobs that share go together where they are due and at one watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from iscp.core.spec.spec import JobSpec, TriggerType
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.values.watermark import NOTHING_APPLIED

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
    `repair` is the newest repair (iscp.core.job.commit_route) among what was committed since the first probe; 0: none.
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
