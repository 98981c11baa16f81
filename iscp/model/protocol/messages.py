"""The messages between owner and nodes (after TiCDC's distributed scheduling).

The channel may lose, double and reorder messages: the sender repeats whatever was not confirmed, and the receiver drops
what it has seen or what is stale. Every message names the owner's term and the node's epoch that it belongs to, so that
it can be judged by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from iscp.model.job.iteration import HistoryEntry, exact_shard
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.values.ids import WIRE_FORMAT, ShardId, TableEpoch
from iscp.model.values.untrusted_values import exact_float, exact_int, exact_message

SYNC_SHARDS_MAX = 5_000
"""Shards in one part of a Sync; the others travel in further parts."""

VERSIONS_MAX = 16
"""Versions of a table that a node remembers while a job is behind them; beyond them one is dropped where they are
densest, and jobs between its neighbours are reported to lag by more than they may.
"""

CHECKPOINT_BYTES_MAX = 1024 * 1024
"""Estimated bytes in one Checkpoint, unless a single report has more; the others travel in further ones."""


class NodeShardState(StrEnum):
    """A shard as its node sees it. Removing lasts until the work has ended *and* its last reports are recorded."""

    ABSENT = "absent"
    ADDING = "adding"
    RUNNING = "running"
    REMOVING = "removing"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Announce:
    """Owner → node, until the node's Sync has arrived. `election_revision` is what the election key must say."""

    owner_id: str
    owner_rev: int
    election_revision: int
    version: str
    wire_format: int = WIRE_FORMAT


class NodeShard(NamedTuple):
    """One shard of a Sync. The operation in flight follows from `state`; `table_epoch` is the last one obeyed."""

    shard: ShardId
    table_epoch: TableEpoch
    state: NodeShardState


@dataclass(frozen=True, slots=True)
class Sync:
    """Node → owner, until acknowledged: all that the node runs, starts and stops, in `parts` messages.

    `number` counts the node's Syncs, +1 each. `recorded` is the last checkpoint number that the node knows to be
    recorded.
    """

    owner_rev: int
    epoch: int
    version: str
    number: int
    part: int
    parts: int
    recorded: int
    shards: tuple[NodeShard, ...]
    wire_format: int = WIRE_FORMAT


@dataclass(frozen=True, slots=True)
class DispatchTable:
    """Owner → node, until confirmed: run `shard` with exactly these jobs, or (`is_delete`) stop it.

    Idempotent. The newest `table_epoch` wins. The rows' watermarks are a hint: the sinks know better.
    """

    owner_rev: int
    epoch: int
    table_epoch: TableEpoch
    shard: ShardId
    is_delete: bool
    jobs: tuple[JobRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DispatchTableResponse:
    """Node → owner: the state that `shard` has reached under `table_epoch`."""

    owner_rev: int
    epoch: int
    table_epoch: TableEpoch
    shard: ShardId
    state: NodeShardState


@dataclass(frozen=True, slots=True)
class VersionAge:
    """The most that a job lags by which is at `version`, or beyond it and below the next of these: the oldest commit
    that it has not applied was `age_s` seconds old at most when its table was probed. At `version` it was just so old.
    """

    version: int
    age_s: float


@dataclass(frozen=True, slots=True)
class FurtherSeen:
    """The newest version of a table that jobs read besides their own; `lag_s` and `ages` as SourceSeen has them.

    `unseen_s`: for how long it had not been probed when the job's own table was: the last probes of it have failed.
    """

    uri: str
    version: int
    lag_s: float
    unseen_s: float = 0.0
    ages: tuple[VersionAge, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A `SourceSeen` is what a node last saw of a shard's source: its newest version at `checked_at_s` (Unix seconds).

    `lag_s`: the age of the oldest commit not yet applied by some job, 0 if there is none; of `further` tables too.
    `ages`: what was known of the versions that some job is at, in order; empty where none is behind.
    `reported_at_s`: when that was reported, by the same clock as `checked_at_s` (0: a node before wire's ages).
    `repair_version`: the newest repair (iscp.model.job.source_holds) that some job has not applied, 0 if there is none.
    `unreached`: the source cannot be probed any more, and nobody knows what was committed after `checked_at_s`, which
    is 0 if this node never could.
    """

    shard: ShardId
    source_version: int
    checked_at_s: float
    lag_s: float
    further: tuple[FurtherSeen, ...] = ()
    repair_version: int = 0
    unreached: bool = False
    ages: tuple[VersionAge, ...] = ()
    reported_at_s: float = 0.0

    def moved_since(self, before: SourceSeen) -> bool:
        """Return whether a table's version, repair or reachability has changed, or a lag has begun or ended."""
        return self._marks() != before._marks()

    def later(self, wait_s: float) -> SourceSeen:
        """Return the report as it is `wait_s` later."""
        return replace(self, reported_at_s=self.reported_at_s + wait_s) if self.reported_at_s else self

    def _marks(self) -> tuple[object, ...]:
        further = [(each.uri, each.version) for each in self.further]
        return self.source_version, self.repair_version, self.lag_s > 0, self.unreached, further


def exact_seen(seen: SourceSeen) -> SourceSeen:
    """Return `seen` as it may be stored. Raises ValueError."""
    version = exact_int(seen.source_version, "source_version", -1)
    lag_s = exact_float(seen.lag_s, "lag_s", 0.0)
    further = tuple(
        FurtherSeen(
            exact_message(each.uri, "further.uri"),
            exact_int(each.version, "further.version", -1),
            exact_float(each.lag_s, "further.lag_s", 0.0),
            exact_float(each.unseen_s, "further.unseen_s", 0.0),
            _exact_ages(each.ages),
        )
        for each in seen.further
    )
    checked_at_s = exact_float(seen.checked_at_s, "checked_at_s")
    repair = exact_int(seen.repair_version, "repair_version")
    unreached, ages = seen.unreached is True, _exact_ages(seen.ages)
    reported_at_s = exact_float(seen.reported_at_s, "reported_at_s")
    shard = exact_shard(seen.shard)
    return SourceSeen(shard, version, checked_at_s, lag_s, further, repair, unreached, ages, reported_at_s)


def _exact_ages(ages: tuple[VersionAge, ...]) -> tuple[VersionAge, ...]:
    if len(ages) > VERSIONS_MAX or any(one.version >= other.version for one, other in pairwise(ages)):
        raise ValueError(f"ages of {len(ages)} versions, of at most {VERSIONS_MAX} that are in order")
    return tuple(
        VersionAge(exact_int(each.version, "ages.version", -1), exact_float(each.age_s, "ages.age_s", 0.0))
        for each in ages
    )


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """A node's report of one shard: the jobs' newest state, their new history, the source."""

    shard: ShardId
    reports: tuple[JobReport, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    seen: SourceSeen | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Node → owner, until acknowledged: reports in order, `number` +1 each within an epoch."""

    owner_rev: int
    epoch: int
    number: int
    shards: tuple[ShardCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Owner → node: the last Sync taken, and the last checkpoint that is recorded in the log."""

    owner_rev: int
    epoch: int
    sync_number: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Alive:
    """Node → owner, again and again: it is there, and can say so. A node that is not heard of is not relied on."""

    owner_rev: int
    epoch: int


OwnerMessage = Announce | DispatchTable | Acknowledge
NodeMessage = Sync | DispatchTableResponse | Checkpoint | Alive
