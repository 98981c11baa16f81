"""The values behind the requests of `Admin` and `Operator`, which users and operators make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iscp.core.job.job_row import JobState, Reason
from iscp.core.values.errors import PermanentError
from iscp.core.values.ids import DEFAULT_ACCOUNT


@dataclass(frozen=True, slots=True)
class JobName:
    """The name of a job as users give it: `table` is a path or URI of a Delta table, `db.table` of a catalog, or a
    table id.
    """

    table: str
    name: str
    account: str = DEFAULT_ACCOUNT


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """A registration. `spec_json` is a job_spec (see iscp.core.job.job_row); `request_id` makes a retry get the first
    answer.
    """

    job: JobName
    spec_json: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """Rebuild a job's target from its source; the job goes on under a new job_id.

    `table` is where its source is now (empty: where it was, whichever table is there). `spec_json` is what its spec
    becomes (empty: it stays).
    """

    job: JobName
    table: str = ""
    spec_json: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """Change the fields of a job's spec that `changes_json` has, which is a job_spec without what stays as it is.

    null takes a field back to its default. With `interrupt` everything that runs or waits by the former spec is
    cancelled and starts over. `request_id` makes a retry get the first answer.
    """

    job: JobName
    changes_json: str
    interrupt: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Explain how a job maintains the result of its query; with `spec_json`, how a consumer of this job_spec would."""

    job: JobName
    spec_json: str = ""


class ChangeVerb(StrEnum):
    """A change of a job that is there. DELETE_TARGET deletes the job's target, and unregisters the job once that is
    done.
    """

    UNREGISTER = "unregister"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    DELETE_TARGET = "delete_target"


@dataclass(frozen=True, slots=True)
class JobChange:
    """One of several changes. `request_id` makes a retry get the first answer."""

    verb: ChangeVerb
    job: JobName
    request_id: str = ""


ChangeOutcome = bool | PermanentError
"""True if it was changed, False if it was so already (UNREGISTER and DELETE_TARGET: there is no such job), or the
error by which it was refused.
"""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs, in which empty fields do not filter. `limit` bounds what one answer carries.

    Patterns are those of iscp.core.job.name_patterns. `late` selects only jobs that lag by more than their target lag.
    """

    account: str = ""
    table: str = ""
    state: JobState | None = None
    reason: Reason | None = None
    limit: int = 10_000
    table_pattern: str = ""
    name_pattern: str = ""
    late: bool = False


class NodeVerb(StrEnum):
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"


class ShardVerb(StrEnum):
    MOVE = "move"
    PIN = "pin"
    UNPIN = "unpin"
