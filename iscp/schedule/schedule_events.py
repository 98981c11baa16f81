"""The events and effects of the schedule.

The schedule is behind the worker machine: the worker's effects on shards are its events as they are, and what it has to
report to the worker (ShardStarted, ShardStopped, Reports, Seen) are the worker's events.

A probe and its answer are named tuples, which are made in C: a hundred thousand idle tables cost little else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.job.start_rule import ProbeState, TargetQuery, TargetSeen, VerifyReport, VerifyRequest
from iscp.model.protocol.events import (
    HoldIterations,
    Reports,
    Seen,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
)
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import ShardId
from iscp.schedule.lag import FurtherAnswer, FurtherQuery

# --- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notified:
    """The shard's source has just changed, somebody says; or, if `targets`, perhaps a target of its jobs."""

    shard: ShardId
    targets: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """End now what runs of this job by another spec than `spec_json`; that spec may still be on its way."""

    shard: ShardId
    job_id: str
    spec_json: str


@dataclass(frozen=True, slots=True)
class VerifyRequested:
    """VerifyAnswered follows, whatever becomes of it; but not after VerifyWithdrawn."""

    request: VerifyRequest


@dataclass(frozen=True, slots=True)
class VerifyWithdrawn:
    """Nobody waits for this answer any more."""

    shard: ShardId
    verify_id: str


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """An answer of a probe to a job's target. If `error` is set, the target does not hold what was applied, or nobody
    can say.
    """

    job_id: str
    seen: TargetSeen | None
    error: IscpError | None = None


class ProbeAnswered(NamedTuple):
    """The answer to Probe, always: `state` is the very object that the probe had where nothing moved."""

    shard: ShardId
    uri: str
    state: ProbeState | None
    error: IscpError | None = None
    targets: tuple[TargetAnswer, ...] = ()
    further: tuple[FurtherAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeLate:
    """No answer to Probe came for long, as `why` says; ProbeAnswered may yet follow, and until then no other Probe."""

    shard: ShardId
    uri: str
    why: str


@dataclass(frozen=True, slots=True)
class IterationStarted:
    """The iteration has left the queue."""

    number: int


@dataclass(frozen=True, slots=True)
class JobCommitted:
    """A job's part of an iteration is in its sink, while the rest of the iteration may go on."""

    outcome: JobOutcome


@dataclass(frozen=True, slots=True)
class IterationEnded:
    """Nothing of the iteration runs any more. If `error` is set, it failed as a whole, and `outcomes` lacks jobs."""

    number: int
    outcomes: tuple[JobOutcome, ...] = ()
    error: IscpError | None = None


@dataclass(frozen=True, slots=True)
class IterationRejected:
    """The iteration was turned away, for the queue is full or closed; it has not run."""

    number: int


ScheduleEvent = (
    StartShard
    | UpdateShard
    | StopShard
    | StopAllShards
    | HoldIterations
    | Notified
    | Interrupted
    | VerifyRequested
    | VerifyWithdrawn
    | ProbeAnswered
    | ProbeLate
    | IterationStarted
    | JobCommitted
    | IterationEnded
    | IterationRejected
    | Tick
)


# --- effects ---------------------------------------------------------------------------------------------------


class Probe(NamedTuple):
    """Probe whether the source moved since `seen` (None: for the first time), and the targets, and give ProbeAnswered.

    The answer has only the targets and `further` tables that have moved, or cannot be reached. `account` is the one for
    whose jobs the probe is made.
    """

    shard: ShardId
    uri: str
    seen: ProbeState | None
    account: str
    targets: tuple[TargetQuery, ...] = ()
    further: tuple[FurtherQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue it; then IterationStarted and IterationEnded, or IterationRejected."""

    iteration: Iteration


@dataclass(frozen=True, slots=True)
class CancelIteration:
    """Make it end soon; IterationEnded follows when it has."""

    number: int


@dataclass(frozen=True, slots=True)
class VerifyAnswered:
    """Answer the caller that waits under `verify_id`."""

    verify_id: str
    answer: VerifyReport | IscpError


WorkerNews = ShardStarted | ShardStopped | Reports | Seen
ScheduleEffect = Probe | Submit | CancelIteration | VerifyAnswered | WorkerNews
