"""One node in the owner's eyes: how far they know each other, and what is on its way to the node."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from iscp.coordination.membership.assignments import Holder
from iscp.coordination.protocol.messages import Checkpoint, NodeShard, Sync
from iscp.core.values.ids import ShardId, TableEpoch
from iscp.core.values.members import NodeRecord
from iscp.core.values.state_table import StateTable

OPERATIONS_IN_FLIGHT_MAX = 500
"""Dispatches sent to one node and not yet confirmed; the others queue at the owner."""

OPERATIONS_OF_ALL_MAX = 10_000
"""Dispatches not yet confirmed that all nodes share evenly, as each is repeated until it is; the others queue at the
owner.
"""

OPERATIONS_IN_FLIGHT_MIN = 10
"""Dispatches that a node may have unconfirmed however many nodes share OPERATIONS_OF_ALL_MAX."""


def operations_max(nodes: int) -> int:
    """Return how many dispatches each of so many nodes may have in flight."""
    return max(OPERATIONS_IN_FLIGHT_MIN, min(OPERATIONS_IN_FLIGHT_MAX, OPERATIONS_OF_ALL_MAX // max(1, nodes)))


# state diagram of PEER_PHASES
#
#   announced | synced  ── Sync ────────▶  synced
#   announced | synced  ── given up on ─▶  revoked


class PeerPhase(StrEnum):
    """`announced`: its Sync is awaited. `revoked`: it is condemned, nothing it says counts any more."""

    ANNOUNCED = "announced"
    SYNCED = "synced"
    REVOKED = "revoked"


class PeerEvent(StrEnum):
    """A `PeerEvent` changes a node's phase. The end of its lease ends the life, in any phase."""

    SYNC = "Sync"
    REVOKE = "given up on"


PEER_PHASES: StateTable[PeerPhase, PeerEvent] = StateTable(
    {
        PeerEvent.SYNC: {PeerPhase.ANNOUNCED: PeerPhase.SYNCED, PeerPhase.SYNCED: PeerPhase.SYNCED},
        PeerEvent.REVOKE: {PeerPhase.ANNOUNCED: PeerPhase.REVOKED, PeerPhase.SYNCED: PeerPhase.REVOKED},
    }
)


@dataclass(slots=True)
class Operation:
    """A dispatch that was sent, until it is confirmed; times are the machine's: first sent (in the node's
    own time), last heard of.

    `repeat_s`: how long it is waited before it is sent again. `awaited`: whether it counts in the window.
    """

    table_epoch: TableEpoch
    is_delete: bool
    sent_s: float
    heard_s: float
    repeat_s: float
    awaited: bool = True


@dataclass(slots=True)
class Peer:
    """`queue` says of the shards that wait for their dispatch whether it is a delete; it is taken from its front (which
    in a plain dict costs ever more).

    Invariants: a shard has at most one operation, queued or in flight; recorded <= accepted.
    `heard_s`: when it was last heard of, once it has synced. `founding`: it was registered when the term began, so that
    it may run anything until it has synced. `doubted`: its life before was given up on in this term. `succeeded`: its
    lease ended, and others may have been given what it ran. `waited_s`: how long it has waited, in all, for its reports
    to be recorded where that took long.
    """

    record: NodeRecord
    founding: bool
    announced_s: float
    doubted: bool = False
    succeeded: bool = False
    phase: PeerPhase = PeerPhase.ANNOUNCED
    queue: OrderedDict[ShardId, bool] = field(default_factory=OrderedDict)
    in_flight: dict[ShardId, Operation] = field(default_factory=dict)
    heard_s: float = 0.0
    version: str = ""
    sync_number: int = 0
    accepted: int = 0
    recorded: int = 0
    waited_s: float = 0.0
    _unrecorded_s: float = 0.0
    _parts: dict[int, Sync] = field(default_factory=dict)

    def take(self, event: PeerEvent) -> None:
        """Raises InvariantBroken where it must not come in this phase."""
        self.phase = PEER_PHASES.after(self.phase, event, self.record.node_id)

    @property
    def holder(self) -> Holder:
        return Holder(self.record.node_id, self.record.epoch)

    def is_life_of(self, record: NodeRecord) -> bool:
        """Return whether the record is of this very life: a restored etcd can give an epoch twice, never a lease."""
        return (self.record.epoch, self.record.lease_id) == (record.epoch, record.lease_id)

    @property
    def synced(self) -> bool:
        return self.phase is PeerPhase.SYNCED

    @property
    def unknown(self) -> bool:
        """Return whether the node may run shards that the owner has not heard of."""
        return self.sync_number == 0 and (self.phase is PeerPhase.ANNOUNCED or self.founding)

    @property
    def awaited(self) -> bool:
        """Return whether nothing may be placed before its Sync.

        Nodes that nobody can reach register again and again: two alternating ones would delay all others for ever. A
        life that began in this term runs only what this owner has dispatched to it.
        """
        return self.unknown and not self.doubted

    def ordered(self, shard: ShardId) -> bool | None:
        """Return whether the operation on the shard, on its way or waiting, is a delete; None if there is none."""
        operation = self.in_flight.get(shard)
        return self.queue.get(shard) if operation is None else operation.is_delete

    def collect(self, message: Sync) -> tuple[NodeShard, ...] | None:
        """Return all shards of a Sync once its last part is there; None before."""
        parts = self._parts
        if parts and next(iter(parts.values())).number != message.number:
            if next(iter(parts.values())).number > message.number:
                return None
            parts.clear()
        parts[message.part] = message
        if len(parts) < message.parts:
            return None
        shards = tuple(shard for part in sorted(parts) for shard in parts[part].shards)
        parts.clear()
        if self.sync_number == 0:
            self.accepted = max(self.accepted, message.recorded)
            self.recorded = max(self.recorded, message.recorded)
        self.sync_number, self.version = message.number, message.version
        return shards

    def accept(self, message: Checkpoint, came_s: float) -> bool:
        """Return whether this is the next checkpoint; any other is a duplicate, or too early and will be sent again."""
        if message.number != self.accepted + 1:
            return False
        if self.accepted == self.recorded:
            self._unrecorded_s = came_s
        self.accepted = message.number
        return True

    def note_recorded(self, number: int, now_s: float, long_s: float) -> bool:
        """Note that all up to `number` is recorded, and return whether that is news. `long_s` as in `own_time_s`."""
        if not self.recorded < number <= self.accepted:
            return False
        self.waited_s += self._waits_s(now_s, long_s)
        self.recorded, self._unrecorded_s = number, now_s
        return True

    def own_time_s(self, at_s: float, long_s: float) -> float:
        """Return the time `at_s` on a clock that stands still while the node waits for its reports to be recorded.

        Until they are it cannot say that it has stopped. Waits of up to `long_s` are its own, as every commit takes
        some time: a node that always reports something has to stop in time too.
        """
        return at_s - self.waited_s - self._waits_s(at_s, long_s)

    def _waits_s(self, at_s: float, long_s: float) -> float:
        waits_s = at_s - self._unrecorded_s if self.recorded < self.accepted else 0.0
        return waits_s if waits_s > long_s else 0.0
