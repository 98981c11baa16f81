"""Jobs: the row that the job log has of each, the reports on it, and what follows from rows: the tables that a job
reads, the one job that users see of the rows of its ranges, new registrations, and notifications on jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

from iscp.model.build.build_task import BuildRequest, exact_build, parse_build
from iscp.model.rows.key_ranges import condition_sql
from iscp.model.spec.spec import JobSpec
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import PERMANENT_FROM, ErrorCode, IscpError
from iscp.model.values.ids import JobKey
from iscp.model.values.untrusted_values import (
    Check,
    error_text,
    exact_code,
    exact_fields,
    exact_float,
    exact_int,
    exact_message,
    exact_name,
    exact_version,
)
from iscp.model.values.watermark import (
    SourceMarks,
    Watermark,
    exact_sources,
    later_marks,
    parse_sources,
    sources_document,
)

# --- rows and reports -------------------------------------------------------------------------------------------------


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    CANCELED = "canceled"
    ERROR = "error"
    COMPLETED = "completed"

    __hash__ = str.__hash__


class Reason(StrEnum):
    NONE = "none"
    RETRYING = "retrying"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    QUOTA = "quota"
    BUILDING = "building"

    __hash__ = str.__hash__


class JobCondition(StrEnum):
    """The one word by which users are shown how a job is, everywhere. The worst comes first.

    FAILED: it waits for somebody to act. QUARANTINED: it keeps failing, and is tried rarely. RETRYING: it is tried
    again by itself. LATE: it may lie behind by more than its target lag, or by how much is not known. BUILDING: its
    target is not built yet. PAUSED: a person has stopped it. FRESH: all others.
    """

    FAILED = "failed"
    QUARANTINED = "quarantined"
    RETRYING = "retrying"
    LATE = "late"
    BUILDING = "building"
    PAUSED = "paused"
    FRESH = "fresh"

    __hash__ = str.__hash__


_AWAY = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT, ErrorCode.STORAGE})
"""Codes of errors that say that something cannot be reached for a while, as a source: nobody has to act at the job."""


def condition_of(
    state: JobState, reason: Reason, error_code: int, *, applied_version: int, lag_s: float, late: bool
) -> JobCondition:
    """Return the condition of a job by what its row says, and by its lag at most (-1: not known)."""
    nameless = error_code == ErrorCode.OK and reason is Reason.NONE
    if state is JobState.ERROR and (error_code >= PERMANENT_FROM or nameless):
        return JobCondition.FAILED
    if reason is Reason.PAUSED:
        return JobCondition.PAUSED
    if reason is Reason.QUARANTINED and error_code not in _AWAY:
        return JobCondition.QUARANTINED
    if state is JobState.ERROR or reason in (Reason.RETRYING, Reason.QUARANTINED):
        return JobCondition.RETRYING
    if applied_version < 0 or reason is Reason.BUILDING:
        return JobCondition.BUILDING
    return JobCondition.LATE if late or lag_s < 0 else JobCondition.FRESH


class Deletion(StrEnum):
    """A `Deletion` says how far the end of a job has come that is to delete its target before it goes."""

    NONE = ""
    WANTED = "wanted"
    DONE = "done"

    __hash__ = str.__hash__


def exact_deletion(value: object, name: str) -> Deletion:
    """Return how far a deletion has come. Raises ValueError."""
    return Deletion(exact_name(value, name))


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's last iteration over (`from_version`, `to_version`]; times are Unix seconds, 0 where not yet.

    `dead_letters` rows are left out of the target, as they share a key. `warning`: what is not as it should be. `step`
    and `steps` are those of the watermark that it came to. `source_id`: the id of the table that the target follows. A
    report leaves it empty where that was not seen, a row where it is the one of the registration. `doubted_at_s`: since
    when it is not known whether the target holds what was applied to it (0: it does). `failures`: how many iterations,
    or runs of its trigger, have failed in a row. `retry_at_s`: when the next retry is due, sooner where its source
    moves or a person resumes the job (0: none is, or it is not known). `sources`: of a job of several tables, how far
    it has come in each; a report leaves it empty where that was not seen. `due_at_s`: when it runs again though no
    table has changed, as its rows depend on the time (0: they do not). `waits_for`: it does not apply what is there
    until the tables that this names have come to it too, or until `waits_until_s` (empty: it waits for none). `build`:
    what it has requested, as long as its first snapshot is built by ranges. `deletion`: of a job that ends with its
    target, how far that has come.
    """

    from_version: int = -1
    to_version: int = -1
    start_at_s: float = 0.0
    end_at_s: float = 0.0
    error_code: int = ErrorCode.OK
    error_msg: str = ""
    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    warning: str = ""
    step: int = 0
    steps: int = 0
    source_id: str = ""
    doubted_at_s: float = 0.0
    failures: int = 0
    retry_at_s: float = 0.0
    due_at_s: float = 0.0
    waits_for: str = ""
    waits_until_s: float = 0.0
    sources: SourceMarks = field(default_factory=dict)
    build: BuildRequest | None = None
    deletion: Deletion = Deletion.NONE

    def to_json(self) -> str:
        return json.dumps(
            {
                "from": self.from_version,
                "to": self.to_version,
                "start_at": self.start_at_s,
                "end_at": self.end_at_s,
                "error_code": int(self.error_code),
                "error_msg": self.error_msg,
                "rows": self.rows,
                "bytes": self.bytes,
                **({"dead_letters": self.dead_letters} if self.dead_letters else {}),
                **({"warning": self.warning} if self.warning else {}),
                **({"step": self.step, "steps": self.steps} if self.steps else {}),
                **({"source_id": self.source_id} if self.source_id else {}),
                **({"doubted_at": self.doubted_at_s} if self.doubted_at_s else {}),
                **({"failures": self.failures} if self.failures else {}),
                **({"retry_at": self.retry_at_s} if self.retry_at_s else {}),
                **({"sources": sources_document(self.sources)} if self.sources else {}),
                **({"due_at": self.due_at_s} if self.due_at_s else {}),
                **({"waits_for": self.waits_for, "waits_until": self.waits_until_s} if self.waits_for else {}),
                **({"build": self.build.document()} if self.build else {}),
                **({"deletion": self.deletion} if self.deletion else {}),
            },
            separators=(",", ":"),
        )


_STATUS: Mapping[str, Check] = {
    "from_version": exact_version,
    "to_version": exact_version,
    "start_at_s": exact_float,
    "end_at_s": exact_float,
    "error_code": exact_code,
    "error_msg": exact_message,
    "rows": exact_int,
    "bytes": exact_int,
    "dead_letters": exact_int,
    "warning": exact_message,
    "step": exact_int,
    "steps": exact_int,
    "source_id": exact_name,
    "doubted_at_s": exact_float,
    "failures": exact_int,
    "retry_at_s": exact_float,
    "due_at_s": exact_float,
    "waits_for": exact_message,
    "waits_until_s": exact_float,
    "sources": exact_sources,
    "build": exact_build,
    "deletion": exact_deletion,
}
exact_status = exact_fields(JobStatus, _STATUS)
"""Return a status that may be stored. Raises ValueError where a number or a name in it cannot be."""


def parse_status(text: str) -> JobStatus:
    """Read a `job_status` (JSON) of the job log; an empty text is a job that has not run.

    A status that cannot be read says so in its warning, and no more: the job's next iteration writes another.
    """
    try:
        return exact_status(_status_of(json.loads(text))) if text else JobStatus()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return JobStatus(warning=f"the status in the job log cannot be read: {error_text(error)}")


def _status_of(root: Mapping[str, Any]) -> JobStatus:
    # In the job log names of times have no unit.
    given = {name: name.removesuffix("_version").removesuffix("_s") for name in _STATUS}
    found = {name: root[key] for name, key in given.items() if key in root}
    if "sources" in root:
        found["sources"] = parse_sources(root["sources"])
    if "build" in root:
        found["build"] = parse_build(root["build"])
    return JobStatus(**found)


class JobRow(NamedTuple):
    """One row of the job log.

    Invariants: `job_id` is unique for each row that ever began; `drop_at_s` is None while the job is wanted; `seq` is
    the last iteration's number; times are Unix seconds. Specs and statuses stay JSON until somebody reads them, so that
    a hundred thousand rows are cheap. `origin` is, for a row that a split, a merge or a registration on a split table
    made, the registration that it goes on with (empty: it is one itself).
    """

    key: JobKey
    job_id: str
    spec_json: str
    table_name: str
    table_uri: str
    state: JobState = JobState.COMPLETED
    reason: Reason = Reason.NONE
    watermark: Watermark = Watermark()
    seq: int = 0
    status_json: str = ""
    create_at_s: float = 0.0
    drop_at_s: float | None = None
    origin: str = ""

    @property
    def registration(self) -> str:
        """Return the id that its users know the registration by, however the table was split since."""
        return self.origin or self.job_id

    @property
    def spec(self) -> JobSpec:
        return parse_spec(self.spec_json)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return the conditions, in Spark's SQL, by which rows of the source are the job's.

        They are never put into one text: a comment that a user has begun would reach the others.
        """
        spec = self.spec.consumer
        return tuple(each for each in (spec.where, condition_sql(spec.key, self.key.range_id)) if each)

    @property
    def status(self) -> JobStatus:
        return parse_status(self.status_json)

    @property
    def source_id(self) -> str:
        """Return the id of the table that the target follows; not the key's where that was replaced since."""
        return (self.status.source_id if '"source_id"' in self.status_json else "") or self.key.table_id

    @property
    def sources(self) -> SourceMarks:
        """Return how far each of several tables was read; empty for a job of one table, and before anything was
        applied.
        """
        return self.status.sources if '"sources"' in self.status_json else {}

    @property
    def build(self) -> BuildRequest | None:
        """Return the build that the job has requested, as long as its first snapshot is built by ranges."""
        return self.status.build if '"build"' in self.status_json else None

    @property
    def paused(self) -> bool:
        return self.reason is Reason.PAUSED

    @property
    def deletion(self) -> Deletion:
        """Return how far a job that ends with its target has come with that.

        The job is paused meanwhile, so that a node of the release before leaves it alone; there a person may resume it,
        which takes back that it ends.
        """
        return self.status.deletion if self.paused and '"deletion"' in self.status_json else Deletion.NONE

    @property
    def failed_for_good(self) -> bool:
        return self.state is JobState.ERROR and self.status.error_code >= 10_000


class LogEntry(NamedTuple):
    """A row as it is appended to the job log. `request_id` is the request that it answers; empty: it answers none."""

    row: JobRow
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class JobReport:
    """A report on a job by the node that runs it; a batch of them travels in a Checkpoint.

    `state` and `reason` are None where only the watermark moved, which need not be written to the log at once.
    """

    key: JobKey
    job_id: str
    watermark: Watermark
    seq: int
    state: JobState | None = None
    reason: Reason | None = None
    status: JobStatus | None = None


def apply_report(row: JobRow, report: JobReport) -> JobRow | None:
    """Return the row after a report, or None if the report changes nothing.

    A report of another registration (`job_id`) or of a dropped job is ignored, and so is one whose seq, or with the
    same seq whose watermark, lies behind the row's: reports may come late, doubled or out of order. Only a later seq
    may have a lower watermark, if the job follows a recreated source. A pause that was requested is not undone by an
    iteration which ends after it.
    """
    if row.job_id != report.job_id or row.drop_at_s is not None:
        return None
    if (report.seq, report.watermark.version) < (row.seq, row.watermark.version):
        return None
    state, reason = report.state or row.state, report.reason or row.reason
    if row.paused:
        reason = Reason.PAUSED
    status = report.status
    if status is not None and report.state is JobState.RUNNING:
        status = _while_it_runs(status, row.status, retried=report.reason in (Reason.RETRYING, Reason.QUARANTINED))
    if status is not None:
        # Versions without rows move marks within a seq, so that of a seq too a report may be from before.
        known = row.sources if report.seq == row.seq else {}
        deletion = row.deletion and (status.deletion or row.deletion)
        followed, sources = status.source_id or row.source_id, later_marks(known, status.sources) or row.sources
        source_id = "" if followed == row.key.table_id else followed
        status = replace(status, source_id=source_id, sources=sources, deletion=deletion)
    changed = row._replace(
        watermark=report.watermark,
        seq=report.seq,
        state=state,
        reason=reason,
        status_json=status.to_json() if status else row.status_json,
    )
    return None if changed == row else changed


def _while_it_runs(status: JobStatus, last: JobStatus, *, retried: bool) -> JobStatus:
    """Return the `status` of an iteration that runs, with what is true of the `last` one until this one has ended."""
    status = replace(status, dead_letters=last.dead_letters, warning=last.warning, build=status.build or last.build)
    if not retried:
        return replace(status, error_code=ErrorCode.OK, error_msg="")
    return replace(status, error_code=last.error_code, error_msg=last.error_msg, failures=last.failures)


# --- tables of a job besides its own ----------------------------------------------------------------------------------
# A spec names all tables that a job reads, as options of its consumer.

_NAMING = '"tables"'


def tables_of(row: JobRow) -> Mapping[str, str]:
    """Return the URIs of all tables that the job reads, its own among them, by the names in its spec; empty for one
    table.

    Consumers of others may mean something else by such an option: theirs does not have the job's own table. Specs
    without the option are not parsed, and where a spec cannot be read the job's iterations say so.
    """
    if _NAMING not in row.spec_json:
        return {}
    try:
        found = row.spec.consumer.options.get("tables")
    except IscpError:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for pair in found.items() for each in pair):
        return {}
    return dict(found) if row.table_uri in found.values() else {}


def further_tables(row: JobRow) -> tuple[str, ...]:
    """Return the URIs of the tables besides its own, each once."""
    return tuple(dict.fromkeys(uri for uri in tables_of(row).values() if uri != row.table_uri))


# --- jobs on tables that are cut into ranges --------------------------------------------------------------------------
# The job log has a row for each range; users see one job.


def combined(rows: Sequence[JobRow]) -> JobRow:
    """Return a job's rows, one for each range of its table, as the one job that its users see.

    It has come as far as the range that lags most, and its state is the worst of theirs, whose status it has, with the
    rows and bytes of all.
    """
    worst = max(rows, key=lambda row: (_BADNESS.index(row.state), _REASONS.index(row.reason)))
    if len(rows) == 1 and worst.key.range_id == 1:
        return worst._replace(job_id=worst.origin) if worst.origin else worst
    lowest = min(rows, key=lambda row: (row.watermark.version, row.watermark.step))
    return worst._replace(
        key=worst.key.job,
        job_id=worst.registration,
        watermark=lowest.watermark,
        seq=max(row.seq for row in rows),
        status_json=_status_of_all(worst, rows),
    )


def _status_of_all(worst: JobRow, rows: Sequence[JobRow]) -> str:
    statuses = [row.status for row in rows]
    given = {name: sum(getattr(each, name) for each in statuses) for name in ("rows", "bytes", "dead_letters")}
    return replace(worst.status, **given).to_json() if any(row.status_json for row in rows) else ""


_BADNESS = (JobState.COMPLETED, JobState.PENDING, JobState.RUNNING, JobState.CANCELED, JobState.ERROR)
_REASONS = (Reason.NONE, Reason.BUILDING, Reason.RETRYING, Reason.QUOTA, Reason.QUARANTINED, Reason.PAUSED)


# --- jobs to be registered --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registration:
    """A job to be: `row` has a new job_id and a spec whose target is spelled in the catalog's one way.

    `shared_target`: its consumer lets other jobs of its kind keep the same target; `sharded`: its sink has a watermark
    for each range. `warning` goes into the answer.
    """

    row: JobRow
    request_id: str = ""
    shared_target: bool = False
    sharded: bool = False
    warning: str = ""


def with_own_table_id(
    row: JobRow, find: Callable[[JobKey], JobRow | None], uri_of: Callable[[str], str | None]
) -> JobRow:
    """Return a job to be registered, under the id of its table among those of the copies.

    `find` gives the row of a key, `uri_of` where the jobs of a table id lie (None: there are none).
    """
    ids = (row.key.table_id, copy_id(row.source_id, row.table_uri))
    for table_id in ids:
        there = find(row.key._replace(table_id=table_id))
        if there is not None and there.table_uri == row.table_uri:
            return of_table(row, table_id)
    return of_table(row, next((each for each in ids if uri_of(each) in (None, row.table_uri)), ids[1]))


def of_table(row: JobRow, table_id: str) -> JobRow:
    """Return a new job known by `table_id`, though the id in its table's metadata is the one that it had so far."""
    if table_id == row.key.table_id:
        return row
    followed = row.source_id
    status = JobStatus(source_id="" if followed == table_id else followed)
    return row._replace(
        key=row.key._replace(table_id=table_id), status_json=status.to_json() if status.source_id else ""
    )


_COPY_DIGITS = 16


def copy_id(table_id: str, uri: str) -> str:
    """Return the id by which the table at `uri` is known while `table_id` belongs to the jobs of another copy of it."""
    return f"{table_id}@{sha256(uri.encode()).hexdigest()[:_COPY_DIGITS]}"


# --- notifications to receivers of webhooks ---------------------------------------------------------------------------
# A condition of a job has begun or ended, or the owner has changed.

FORMAT_VERSION = 1


class NotificationKind(StrEnum):
    LATE = "late"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    RECOVERED = "recovered"
    OWNER_CHANGED = "owner_changed"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender: the cluster, the owner's node id, and its term."""

    cluster: str
    owner: str
    owner_rev: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message to receivers; docs/webhooks.md says what each field means.

    `id` is the same for every repetition. `alert_id` is the id of the notification that opened the condition, and
    `recovered_from` its kind where this one closes it. Times are Unix seconds; `lag_s` is -1 while it is not known.
    """

    kind: NotificationKind
    id: str
    at_s: float
    cluster: str
    owner: str
    owner_rev: int
    alert_id: str = ""
    recovered_from: str = ""
    account: str = ""
    table: str = ""
    table_id: str = ""
    job: str = ""
    job_id: str = ""
    state: str = ""
    reason: str = ""
    error_code: int = 0
    error_message: str = ""
    lag_s: float = -1.0
    applied_version: int = -1
    source_version: int = -1

    def to_json(self) -> bytes:
        """Return the body as it is signed and sent."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()
