"""The events that can happen to the machines of a node and of the owner, the effects that the machines give, and the
times that the protocol waits.

The machines' loops turn the world into events, one at a time. The effects of one step are carried out in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.protocol.messages import NodeMessage, OwnerMessage, SourceSeen
from iscp.model.values.ids import Leader, NodeRecord, ShardId, TableEpoch
from iscp.model.values.ring import Overrides, Ring


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
    """The jobs that a shard has now, to be sent to its node, are committed in the log."""

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


# --- of a node -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToOwner:
    """May get lost."""

    owner_id: str
    message: NodeMessage


@dataclass(frozen=True, slots=True)
class CheckElection:
    """Read the election key (linearizable) and answer with ElectionChecked, always."""


@dataclass(frozen=True, slots=True)
class StartShard:
    """Take the shard in, then give ShardStarted. `epoch`: the node's life under which it runs, and under no other."""

    shard: ShardId
    table_epoch: TableEpoch
    jobs: tuple[JobRow, ...]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class UpdateShard:
    """Run these jobs of the shard from now on; the effect follows a StartShard."""

    shard: ShardId
    table_epoch: TableEpoch
    jobs: tuple[JobRow, ...]


@dataclass(frozen=True, slots=True)
class StopShard:
    """Really stop the shard's work, send its last reports, then give ShardStopped."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class StopAllShards:
    """Stop each shard as StopShard does; what was begun must never commit, not even if the lease comes back."""


@dataclass(frozen=True, slots=True)
class HoldIterations:
    """Start no new iteration (`hold`) because too many reports wait for the owner; or go on."""

    hold: bool


ShardOrder = StartShard | UpdateShard | StopShard | StopAllShards | HoldIterations
WorkerEffect = SendToOwner | CheckElection | ShardOrder


# --- of the owner ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTo:
    """May get lost. `record` says where the node is."""

    record: NodeRecord
    message: OwnerMessage


@dataclass(frozen=True, slots=True)
class RevokeLease:
    """End this node's lease; repeated until the node is gone from the members.

    Only while the election key still has `election_revision`: a deposed owner that does not know it hears from
    nobody and would revoke everybody. And leave a trace in etcd that lasts for TTL + margin, from which the next
    owner knows how long to hold (`Elected.hold_s`).
    """

    record: NodeRecord
    election_revision: int


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """Write these to the log and give Recorded; `seen` is for views only."""

    node_id: str
    epoch: int
    number: int
    reports: tuple[JobReport, ...]
    history: tuple[HistoryEntry, ...]
    seen: tuple[SourceSeen, ...]


@dataclass(frozen=True, slots=True)
class Resign:
    """Give way to whoever else wants to lead, and stand again behind them; without effect where that term is over."""

    election_revision: int


class Decision(StrEnum):
    TERM = "term"
    JOIN = "join"
    SYNC = "sync"
    GONE = "gone"
    REVOKE = "revoke"
    DISPATCH = "dispatch"
    DRAIN = "drain"
    CLOCK = "clock"
    RESIGN = "resign"


@dataclass(frozen=True, slots=True)
class Decided:
    """A `Decided` is what the owner has seen or decided, of which node or shard, and why; it is for views."""

    what: Decision
    node_id: str
    shard: ShardId | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class BuildRing:
    """Build the ring of these nodes, which takes a while where they are many, and give RingBuilt.

    One that is requested later makes those before it needless.
    """

    nodes: frozenset[str]


OwnerEffect = SendTo | RevokeLease | RecordCheckpoint | BuildRing | Resign | Decided


# --- times ------------------------------------------------------------------------------------------------------------
# All times that the protocol waits are configuration.


@dataclass(frozen=True, slots=True)
class CoordinationTimes:
    """Durations in seconds."""

    lease_ttl_s: float = 10.0
    """Seconds that a node's lease lasts without renewal; `etcd.lease_ttl_s` sets it."""

    margin_s: float = 2.0
    """A node writes until TTL - margin after it sent the last confirmed renewal; `etcd.margin_s` sets it."""

    sync_deadline_s: float = 10.0
    """Seconds that a node may leave an Announce or a dispatch unanswered, or stay silent; then its lease is revoked."""

    operation_deadline_s: float = 120.0
    """Seconds that a shard may take to start or to stop; then its node's lease is revoked."""

    settle_s: float = 0.5
    """Seconds for which changes of membership are gathered before shards are placed."""

    rebalance_after_s: float = 5.0
    """Seconds that the nodes have to stay the same before shards are rebalanced to their preferred nodes."""

    resend_s: float = 1.0
    """Pause before what was not confirmed is sent again; it doubles up to `resend_max_s`, four times as long."""

    checkpoint_s: float = 0.02
    """Seconds for which reports are gathered before they travel together."""

    alive_s: float = 2.0
    """Seconds between a node's reports that it is there (inf: never)."""

    @property
    def alone_s(self) -> float:
        """Return for how many seconds an owner may hear of none of several nodes before it resigns: less than it waits
        for each.
        """
        return 0.8 * self.sync_deadline_s

    @property
    def resend_max_s(self) -> float:
        """Return the most seconds between two repetitions, which become ever rarer up to this."""
        return 4 * self.resend_s

    def next_resend_s(self, waited_s: float) -> float:
        """Return how many seconds to wait before the next repetition, after one that was waited for so long.

        A receiver with much to take in would only get more of it from repetitions at a fixed pace.
        """
        return min(2 * waited_s, self.resend_max_s)

    def __post_init__(self) -> None:
        if not 0 < self.margin_s < self.lease_ttl_s:
            raise ValueError("margin_s must lie between 0 and lease_ttl_s")
        if not 0 < self.resend_s < self.sync_deadline_s <= self.operation_deadline_s:
            raise ValueError("0 < resend_s < sync_deadline_s <= operation_deadline_s must hold")
        if 2 * self.alive_s > self.sync_deadline_s and self.alive_s < inf:
            raise ValueError("alive_s must be at most half of sync_deadline_s, or inf")
        if self.settle_s < 0 or self.rebalance_after_s < 0 or self.checkpoint_s < 0:
            raise ValueError("settle_s, rebalance_after_s and checkpoint_s must not be negative")
