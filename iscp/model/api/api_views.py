"""The values behind the answers of `Admin` and `Operator`, which users and operators are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance
from iscp.model.job.job_row import JobCondition, JobState, JobStatus, Reason, condition_of
from iscp.model.values.errors import PermanentError
from iscp.model.values.progress import RunProgress

RISK_SHARE = 0.5
"""Part of the retention of its sources from which on a job's lag puts its history at risk."""


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """The answer to a registration. `created` is False where the job was there already (then nothing was changed).

    `warning` says what of the source the job will not retain, and why, or in which fields the job that was there
    differs; it is empty if there is nothing.
    """

    created: bool
    job_id: str
    table_id: str
    warning: str = ""


class Action(StrEnum):
    """The action that makes a job what it is wanted to be."""

    CREATE = "create"
    UPDATE = "update"
    RESYNC = "resync"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """The action that a RegisterRequest would need, checked as a registration is; nothing was written.

    `spec_json` is as it would be stored. `job_id`, `there_id` and `there_json` are of the job that is there: its
    registration, the table that it is on, and its spec (empty: there is none). `error` says why the job cannot be had
    so.
    """

    action: Action = Action.CREATE
    table_id: str = ""
    spec_json: str = ""
    job_id: str = ""
    there_id: str = ""
    there_json: str = ""
    error: PermanentError | None = None


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that a job leaves out of its target. `columns` are as JSON has them, of an index those of the row's key;
    long values are cut. `reason` says why the row is left out.
    """

    columns: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOutRows:
    """Some of the rows that a job leaves out of its target. `place` is the table or index that holds all of them; it is
    empty for a job that leaves out none.
    """

    rows: tuple[LeftOutRow, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as users see it; times are Unix seconds.

    `applied_version` is the job's watermark, `source_version` the newest source version that the node has seen, as of
    `checked_at_s`. `lag_s` is how much it lags at most: the time since `checked_at_s` where it has applied all that was
    seen, as nobody knows what was committed since; otherwise the age of the oldest commit not yet applied, and while it
    is not built the time since it was registered. `lag_least_s` is how much it lags for certain; both are -1 while not
    known. `late` is set if `lag_s` is more than its target lag. `ranges` says into how many its table is split; the job
    is then shown as the range that lags most, and in the worst state of all. `upkeep`, `progress` and `figures` are
    there where one job is requested, and not in lists; `progress` is None while no iteration of it is reported to run,
    and no comparison requested. `figures` of an index are by the names that docs/cli.md lists; if they could not be
    read, `figures_fault` says why. `retained_s`: for so many seconds its sources retain what was removed from them; it
    is known of jobs that lag for long, and 0 of others. `condition` is the word for all of it (a
    JobCondition; an empty one is found by the other fields).
    """

    account: str
    table_id: str
    table: str
    name: str
    job_id: str
    spec_json: str
    state: JobState
    reason: Reason
    applied_version: int
    applied_at_s: float
    source_version: int
    checked_at_s: float
    lag_s: float
    seq: int
    status: JobStatus
    create_at_s: float
    node_id: str = ""
    late: bool = False
    ranges: int = 1
    upkeep: JobMaintenance = NO_MAINTENANCE
    progress: RunProgress | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    figures_fault: str = ""
    retained_s: float = 0.0
    lag_least_s: float = 0.0
    condition: JobCondition | Literal[""] = ""

    def __post_init__(self) -> None:
        if not self.condition:
            object.__setattr__(self, "condition", self.condition_if(late=self.late))

    def condition_if(self, *, late: bool) -> JobCondition:
        """Return the condition if the job lay behind by too much, or if it did not."""
        code, at = int(self.status.error_code), self.applied_version
        return condition_of(self.state, self.reason, code, applied_version=at, lag_s=self.lag_s, late=late)

    @property
    def may_lose_history(self) -> bool:
        """Return whether its sources may soon drop what it has yet to read."""
        return self.retained_s > 0.0 and self.lag_s > RISK_SHARE * self.retained_s


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `state` is `joining`, `ready`, `cordoned`, `draining`, `leaving` or `revoked`.

    `lease_age_s` is the time since its lease was renewed (-1: not known); `in_flight` counts what it was ordered to
    start or to stop and has not confirmed. The queue is -1 where the node did not answer.
    """

    node_id: str
    pid: int
    address: str
    epoch: int
    version: str
    state: str
    shards: int
    queue_waiting: int
    queue_running: int
    lease_age_s: float = -1.0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class ShardView:
    table_id: str
    table: str
    node_id: str
    state: str
    jobs: int
    range_id: int = 1


@dataclass(frozen=True, slots=True)
class LeftOutJob:
    """A job that the global checkpoint does not speak for; `why` is `building`, `paused`, `failed`, or `catching up`.

    A job that was resumed, or rebuilt, is catching up until it has reached the checkpoint.
    """

    table: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A shard, the node that has it (`node_id`), and the node that should: the ring's choice, the operator's, and the
    result.

    `why` says why it is not at its target; it is empty where it is.
    """

    table_id: str
    range_id: int
    table: str
    state: str
    node_id: str
    preferred: str
    pinned: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class EventView:
    """An event that the owner of the term `owner_rev` has seen or decided at `at_s` (Unix seconds).

    `number` counts from 1 in each term. `what` is `term`, `join`, `sync`, `gone`, `revoke`, `dispatch` or `drain`.
    `node_id` and `shard` are empty where it concerns none; `table` is the shard's, as it was registered.
    """

    owner_rev: int
    number: int
    at_s: float
    what: str
    node_id: str
    shard: str
    why: str
    table: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the whole cluster.

    `owner` is the owner's node id, empty while there is none. `counters` are the executors', summed. `lag_max_s` is the
    greatest of all jobs, stopped ones too, at most, and `lag_max_least_s` for certain; -1 while unknown.
    `checkpoint_at_s` (Unix seconds, 0: not known yet) is the time up to which everything that was committed is applied
    by all jobs but those left out, of which `left_out` has some. `moving` counts shards on their way to another node.
    """

    owner: str
    owner_rev: int
    nodes: tuple[NodeView, ...]
    shards: tuple[ShardView, ...]
    jobs: int
    lag_max_s: float
    counters: dict[str, int]
    checkpoint_at_s: float = 0.0
    left_out: tuple[LeftOutJob, ...] = ()
    left_out_count: int = 0
    moving: int = 0
    lag_max_least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A kind of consumer that jobs may name: what it does in one line, and which package brings it.

    `own`: it is one of iscp's. `fault`: why it cannot be used though it is allowed; empty if it can.
    """

    name: str
    about: str = ""
    package: str = ""
    own: bool = False
    fault: str = ""
