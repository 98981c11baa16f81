"""The effects that the machines give. Effects of one step are carried out in their order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iscp.coordination.protocol.messages import NodeMessage, OwnerMessage, SourceSeen
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport, JobRow
from iscp.core.values.ids import ShardId, TableEpoch
from iscp.core.values.members import NodeRecord

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
