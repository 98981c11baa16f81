"""The requests of users, and what each makes of a job's row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iscp.coordination.jobs.reshard import Reshard
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.job_row import Deletion, JobRow, JobState, JobStatus, Reason
from iscp.core.spec.spec_patch import changed_spec
from iscp.core.values.ids import JobKey


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


@dataclass(frozen=True, slots=True)
class Register:
    """All or none. Answered with one RegisterResult for each item, in order."""

    items: tuple[Registration, ...]


@dataclass(frozen=True, slots=True)
class Unregister:
    """Drop a job. The answer is False if there is no such job.

    `delete_target`: a node deletes the job's target first. The job is there until that is done, and paused.
    """

    key: JobKey
    request_id: str = ""
    delete_target: bool = False


@dataclass(frozen=True, slots=True)
class EndDeleted:
    """Drop a job whose target is deleted. The answer is False if there is no such job any more."""

    key: JobKey
    job_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause a job. The answer is False if it was paused already."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a job. The answer is False if it is neither paused nor failing."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resync:
    """Rebuild the job of `seen` as `item`, under a new job_id and perhaps on another table. Answered with a
    RegisterResult.

    `seen` is the job's row as it was when `item` was checked; one that was decided about since is a Conflict.
    """

    seen: JobRow
    item: Registration


@dataclass(frozen=True, slots=True)
class Update:
    """Change the fields of a job's spec that `changes_json` has. Answered with False where they are so already."""

    key: JobKey
    changes_json: str
    request_id: str = ""


Request = Register | Unregister | EndDeleted | Pause | Resume | Update | Resync | Reshard
Answer = tuple[RegisterResult, ...] | RegisterResult | bool | int


def paused(row: JobRow) -> JobRow | None:
    if row.paused:
        return None
    # A release before has resumed a job that was to end with its target; that was taken back by it.
    kept = replace(row.status, deletion=Deletion.NONE).to_json() if '"deletion"' in row.status_json else row.status_json
    return row._replace(reason=Reason.PAUSED, status_json=kept)


def ending(row: JobRow) -> JobRow:
    """Return the row of a job that is to end with its target: at once if it has failed to, or waits to try again."""
    before = row.status
    status = JobStatus(
        from_version=before.from_version,
        to_version=before.to_version,
        source_id=before.source_id,
        sources=before.sources,
        step=before.step,
        steps=before.steps,
        deletion=Deletion.WANTED,
    )
    return row._replace(state=JobState.COMPLETED, reason=Reason.PAUSED, status_json=status.to_json())


def resumed(row: JobRow) -> JobRow | None:
    if not (row.paused or row.reason in (Reason.QUARANTINED, Reason.RETRYING) or row.failed_for_good):
        return None
    stopped = row.state in (JobState.ERROR, JobState.CANCELED)
    return row._replace(reason=Reason.NONE, state=JobState.COMPLETED if stopped else row.state)


def updated(row: JobRow, changes_json: str) -> JobRow | None:
    """Return the updated row, or None if nothing differs: a failed or quarantined job is tried by its new spec, a
    paused one stays so.
    """
    spec = changed_spec(row.spec_json, changes_json)
    if spec == row.spec:
        return None
    changed = row._replace(spec_json=spec.to_json())
    return changed if row.paused or row.reason is Reason.RETRYING else resumed(changed) or changed
