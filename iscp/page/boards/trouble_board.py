"""The board of trouble: jobs that need somebody, and what was changed by whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iscp.core.access.audit_entry import AuditEntry
from iscp.core.api.api_views import EventView
from iscp.page.boards.job_facts import JobFacts, error_name
from iscp.page.boards.shown_values import lag, moment, some, span, until

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
