"""The facts of a job that boards of all jobs show, taken from what `ListJobs` answers.

A list has up to ten thousands of jobs: what is kept of each is small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobState, Reason
from iscp.core.spec.spec_fields import flatten
from iscp.core.values.errors import ErrorCode
from iscp.page.boards.shown_values import short

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
