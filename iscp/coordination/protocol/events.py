"""The events that can happen to the machines. Their loops turn the world into these, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.coordination.protocol.messages import NodeMessage, OwnerMessage, SourceSeen
from iscp.coordination.protocol.overrides import Overrides
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport, JobRow
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Leader, NodeRecord
from iscp.core.values.ring import Ring


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due no later than the machine's `next_due_s`."""


# --- of a node -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromOwner:
    """A message came in from a node that says it is the owner."""

    message: OwnerMessage


@dataclass(frozen=True, slots=True)
class ElectionChecked:
    """The answer to CheckElection, by a linearizable read; None where nobody leads or etcd did not answer."""

    leader: Leader | None


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """The engine has taken the shard in."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class ShardStopped:
    """Nothing of the shard runs any more, and all its reports were handed in before this."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Reports:
    """News of a shard's jobs."""

    shard: ShardId
    reports: tuple[JobReport, ...] = ()
    history: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """News of a shard's source."""

    seen: SourceSeen


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease can no longer be confirmed: the time to write is over."""


@dataclass(frozen=True, slots=True)
class LeaseRegained:
    """The node is confirmed again, under `epoch` (a new one if it had to register again)."""

    epoch: int


WorkerEvent = (
    FromOwner | ElectionChecked | ShardStarted | ShardStopped | Reports | Seen | LeaseEnded | LeaseRegained | Tick
)


# --- of the owner ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elected:
    """A term begins; forgets everything of terms before.

    `members` were read after the election was won, `wanted` from the log after the term was claimed: the jobs of
    every shard that has any. `hold_s`: how long nothing may be placed yet, because a node whose lease was revoked
    before this term may still write.
    """

    owner_rev: int
    election_revision: int
    members: tuple[NodeRecord, ...]
    wanted: Mapping[ShardId, tuple[JobRow, ...]] = field(default_factory=dict)
    hold_s: float = 0.0
    overrides: Overrides = field(default_factory=Overrides)


@dataclass(frozen=True, slots=True)
class Deposed:
    """The term is over, or may be."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """All nodes that are registered now.

    `hold_s`: how long nothing may be placed, because etcd was restored from a backup: it knows nothing of leases since
    then, whose nodes may still write.
    """

    members: tuple[NodeRecord, ...]
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FromNode:
    node_id: str
    message: NodeMessage


@dataclass(frozen=True, slots=True)
class ShardWanted:
    """These are the jobs of the shard now: they are sent to its node. Committed in the log before."""

    shard: ShardId
    jobs: tuple[JobRow, ...]


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Statuses or watermarks changed in the rows: they are stored for the next dispatch, and sent to nobody now."""

    shard: ShardId
    jobs: tuple[JobRow, ...]


@dataclass(frozen=True, slots=True)
class ShardUnwanted:
    """The shard has lost its last job."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Recorded:
    """A RecordCheckpoint is done: what it carried survives this process."""

    node_id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class OverridesChanged:
    """Operators changed what they want of nodes and shards; it is in etcd already."""

    overrides: Overrides


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """Bring the shard to this node, if it may take it."""

    shard: ShardId
    node_id: str


@dataclass(frozen=True, slots=True)
class RebalanceRequested:
    """Move shards to their preferred nodes now."""


@dataclass(frozen=True, slots=True)
class RingBuilt:
    """A BuildRing is done."""

    ring: Ring


OwnerEvent = (
    Elected
    | Deposed
    | MembersChanged
    | FromNode
    | ShardWanted
    | RowsMoved
    | ShardUnwanted
    | Recorded
    | OverridesChanged
    | MoveRequested
    | RebalanceRequested
    | RingBuilt
    | Tick
)
