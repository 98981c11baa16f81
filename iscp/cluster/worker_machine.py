"""A node's side of the protocol: which owner to obey, what to run, what to report.

Decides which shards the engine takes in and gives up, and when a report may be forgotten. Knows nothing of clocks,
channels, Spark or etcd. Rules:

- An owner is obeyed only after the election key has confirmed its Announce; from then on no lower owner_rev is.
- For each shard the newest table_epoch wins, also over operations that are delayed until after a removal.
- A shard counts as removed only when its work has stopped and its last reports are recorded at the owner.
- What ends without an order of the owner is reported by a new Sync.
- Without a confirmed lease nothing is started.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import assert_never

from iscp.model.protocol.events import (
    CheckElection,
    CoordinationTimes,
    ElectionChecked,
    FromOwner,
    HoldIterations,
    LeaseEnded,
    LeaseRegained,
    Reports,
    Seen,
    SendToOwner,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
    WorkerEffect,
    WorkerEvent,
)
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShard,
    NodeShardState,
    OwnerMessage,
    Sync,
)
from iscp.model.values.ids import WIRE_FORMAT, Leader, ShardId, TableEpoch, understands
from iscp.model.values.state_table import StateTable
from iscp.schedule.reports import HISTORY_MAX, CheckpointPace, Outbox, SyncRepeater

# --- shards that a node has, and the fences of those that it had ------------------------------------------------------
# A node has shards by the owner's orders and the engine's word.

FENCES_MAX = 10_000
"""Removed shards whose last table_epoch a node remembers one by one; beyond them one floor stands for the oldest."""

NEVER = TableEpoch(0, 0)

ABSENT, ADDING, RUNNING, REMOVING = NodeShardState


class NodeShardEvent(StrEnum):
    """A `NodeShardEvent` is what happens to a shard of a node."""

    DISPATCH = "dispatch"
    START = "engine started it"
    DELETE = "delete"
    LEASE_END = "lease ended"
    STOP = "engine stopped it"
    RECORD = "last reports recorded"


# state diagram of NODE_SHARD_STATES
#
#   absent                       ── dispatch ──────────────▶  adding
#   adding                       ── engine started it ─────▶  running
#   adding | running             ── delete ────────────────▶  removing
#   adding | running | removing  ── lease ended ───────────▶  removing
#   adding | running | removing  ── engine stopped it ─────▶  removing
#   removing                     ── last reports recorded ─▶  absent

NODE_SHARD_STATES: StateTable[NodeShardState, NodeShardEvent] = StateTable(
    {
        NodeShardEvent.DISPATCH: {ABSENT: ADDING},
        NodeShardEvent.START: {ADDING: RUNNING},
        NodeShardEvent.DELETE: {ADDING: REMOVING, RUNNING: REMOVING},
        NodeShardEvent.LEASE_END: {ADDING: REMOVING, RUNNING: REMOVING, REMOVING: REMOVING},
        NodeShardEvent.STOP: {ADDING: REMOVING, RUNNING: REMOVING, REMOVING: REMOVING},
        NodeShardEvent.RECORD: {REMOVING: ABSENT},
    }
)


@dataclass(slots=True)
class HostedShard:
    """A shard that a node has. `table_epoch` is that of the newest dispatch that was accepted."""

    table_epoch: TableEpoch
    state: NodeShardState = ABSENT

    def take(self, event: NodeShardEvent) -> None:
        """Raises InvariantBroken where the table does not have it."""
        self.state = NODE_SHARD_STATES.after(self.state, event, "the node's shard")


class ShardFences(OrderedDict[ShardId, TableEpoch]):
    """Removed shards, by the table_epoch of their removal: what was sent before it must not start them again.

    `floor`: the greatest of those that are not remembered one by one any more.
    """

    floor = NEVER

    def add(self, shard: ShardId, table_epoch: TableEpoch) -> None:
        """Note that `shard` was removed under `table_epoch`."""
        self[shard] = max(table_epoch, self.pop(shard, NEVER))
        if len(self) > FENCES_MAX:
            self.floor = max(self.floor, self.popitem(last=False)[1])

    def refuses(self, shard: ShardId, table_epoch: TableEpoch) -> bool:
        """Return whether a dispatch is from before the shard's removal."""
        return table_epoch <= max(self.floor, self.get(shard, NEVER))


# --- the machine ------------------------------------------------------------------------------------------------------


class WorkerMachine:
    """Feed it events in order with a clock that does not step back; carry out the effects in order.

    `shards` are those that are not absent, `fences` those that were removed. `owner_rev` is the highest term obeyed so
    far, 0 for none.
    """

    def __init__(
        self, node_id: str, epoch: int, version: str, timeouts: CoordinationTimes, wire_format: int = WIRE_FORMAT
    ) -> None:
        self.node_id, self.epoch, self.version, self.wire_format = node_id, epoch, version, wire_format
        self.owner_id, self.owner_rev = "", 0
        self.shards: dict[ShardId, HostedShard] = {}
        self.outbox = Outbox()
        self.lease_held, self.holding = True, False
        self._timeouts = timeouts
        self._checking: Announce | None = None
        self.fences = ShardFences()
        self._stopped: dict[ShardId, None] = {}
        self._sync = SyncRepeater(timeouts)
        self._pace = CheckpointPace(timeouts)
        self._checking_until_s = self._alive_due_s = self._now_s = 0.0
        self._out: list[WorkerEffect] = []

    @property
    def synced(self) -> bool:
        """Return whether the owner knows what this node runs."""
        return bool(self.owner_rev) and self._sync.acknowledged

    def next_due_s(self) -> float | None:
        """Return when a Tick is due if nothing happens before, or None if none is."""
        due: list[float] = []
        if self._sync.parts and self.lease_held:
            due.append(self._sync.due_s)
        if self.synced:
            due += self._pace.due_times_s(self.outbox)
            if self._timeouts.alive_s < inf:
                due.append(self._alive_due_s)
        return min(due, default=None)

    def step(self, event: WorkerEvent, now_s: float) -> list[WorkerEffect]:
        """Take one event in; the effects it has."""
        self._now_s, self._out = now_s, []
        match event:
            case FromOwner(message):
                self._from_owner(message)
            case ElectionChecked(leader):
                self._accept_election(leader)
            case ShardStarted(shard):
                self._confirm_start(shard)
            case ShardStopped(shard):
                self._record_stop(shard)
            case Reports(shard, reports, history):
                self.outbox.gather(shard, reports, history)
            case Seen(seen):
                self.outbox.see(seen, self._now_s)
            case LeaseEnded():
                self._lose_lease()
            case LeaseRegained(epoch):
                self._regain_lease(epoch)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._speak()
        return self._out

    # --- whom to obey ------------------------------------------------------------------------------------------

    def _from_owner(self, message: OwnerMessage) -> None:
        if isinstance(message, Announce):
            self._heed_announce(message)
            return
        if message.owner_rev != self.owner_rev or message.epoch != self.epoch:
            return
        match message:
            case DispatchTable():
                if self.lease_held:
                    self._accept_dispatch(message)
            case Acknowledge():
                self._apply_acknowledgement(message)
            case _:
                assert_never(message)

    def _heed_announce(self, message: Announce) -> None:
        if not understands(message.wire_format, self.wire_format):
            return  # it will revoke this node's lease, as it gets no Sync
        if message.owner_rev == self.owner_rev:
            # It is waiting for a Sync, which came too early or was lost; or it has lost sight of this node.
            if self._sync.parts:
                self._sync.due_s = self._now_s
            else:
                self._begin_sync(requested=True)
        if message.owner_rev <= self.owner_rev:
            return
        claim = self._checking
        if claim is not None and self._now_s < self._checking_until_s and message.owner_rev <= claim.owner_rev:
            return
        self._checking, self._checking_until_s = message, self._now_s + self._timeouts.resend_s
        self._out.append(CheckElection())

    def _accept_election(self, leader: Leader | None) -> None:
        claim, self._checking = self._checking, None
        if claim is None or leader is None or claim.owner_rev <= self.owner_rev:
            return
        if leader.node_id != claim.owner_id or leader.revision != claim.election_revision:
            return
        self.owner_id, self.owner_rev = claim.owner_id, claim.owner_rev
        # Dispatches of earlier terms are refused by their term from now on.
        self.fences.clear()
        self._begin_sync(requested=True)

    # --- what to run -------------------------------------------------------------------------------------------

    def _accept_dispatch(self, message: DispatchTable) -> None:
        shard, table_epoch = message.shard, message.table_epoch
        hosted = self.shards.get(shard)
        if hosted is None:
            self._accept_dispatch_of_absent(message)
            return
        if table_epoch < hosted.table_epoch:
            return
        removing = hosted.state is NodeShardState.REMOVING
        if table_epoch > hosted.table_epoch and message.is_delete:
            hosted.table_epoch = table_epoch
            if not removing:
                hosted.take(NodeShardEvent.DELETE)
                self._out.append(StopShard(shard))
        elif table_epoch > hosted.table_epoch and not removing:
            hosted.table_epoch = table_epoch
            self._out.append(UpdateShard(shard, table_epoch, message.jobs))
        # To be started while it is still stopping: not yet; the owner sends it again.
        self._respond(shard, table_epoch, hosted.state)

    def _accept_dispatch_of_absent(self, message: DispatchTable) -> None:
        shard, table_epoch = message.shard, message.table_epoch
        if message.is_delete:
            self.fences.add(shard, table_epoch)
            self._respond(shard, table_epoch, NodeShardState.ABSENT)
        elif self.fences.refuses(shard, table_epoch):
            self._respond(shard, table_epoch, NodeShardState.ABSENT)
        else:
            self.shards[shard] = hosted = HostedShard(table_epoch)
            hosted.take(NodeShardEvent.DISPATCH)
            self._out.append(StartShard(shard, table_epoch, message.jobs, self.epoch))
            self._respond(shard, table_epoch, NodeShardState.ADDING)

    def _confirm_start(self, shard: ShardId) -> None:
        hosted = self.shards.get(shard)
        if hosted is not None and hosted.state is NodeShardState.ADDING:
            hosted.take(NodeShardEvent.START)
            self._respond(shard, hosted.table_epoch, hosted.state)

    def _record_stop(self, shard: ShardId) -> None:
        hosted = self.shards.get(shard)
        if hosted is None:
            return
        unasked = hosted.state is not NodeShardState.REMOVING
        hosted.take(NodeShardEvent.STOP)
        self._stopped[shard] = None
        self._pace.hasten(self._now_s)  # its last reports must not wait
        self._release(shard)
        if unasked:
            self._begin_sync()

    def _release(self, shard: ShardId) -> None:
        """Forget a stopped shard once all it reported is recorded."""
        if not self.outbox.flushed(shard):
            return
        hosted = self.shards.pop(shard)
        del self._stopped[shard]
        hosted.take(NodeShardEvent.RECORD)
        self.fences.add(shard, hosted.table_epoch)
        self._respond(shard, hosted.table_epoch, hosted.state)

    # --- the lease ---------------------------------------------------------------------------------------------

    def _lose_lease(self) -> None:
        if not self.lease_held:
            return
        self.lease_held = False
        for hosted in self.shards.values():
            hosted.take(NodeShardEvent.LEASE_END)
        if self.shards:
            self._out.append(StopAllShards())

    def _regain_lease(self, epoch: int) -> None:
        if self.lease_held and epoch == self.epoch:
            return
        if epoch != self.epoch:
            self._lose_lease()
            self.epoch = epoch
            self.outbox.renumber()
        self.lease_held = True
        self._begin_sync()

    # --- what to report ------------------------------------------------------------------------------------------

    def _send(self, message: NodeMessage) -> None:
        self._out.append(SendToOwner(self.owner_id, message))

    def _respond(self, shard: ShardId, table_epoch: TableEpoch, state: NodeShardState) -> None:
        if self.owner_rev and self.lease_held:
            self._send(DispatchTableResponse(self.owner_rev, self.epoch, table_epoch, shard, state))

    def _begin_sync(self, requested: bool = False) -> None:
        """Report to the owner what this node runs, until it is acknowledged; one that `requested` it repeats that."""
        number = self._sync.renew()
        if not self.owner_rev or not self.lease_held:
            return  # on the next owner, or when the lease is back
        shards = tuple(NodeShard(shard, hosted.table_epoch, hosted.state) for shard, hosted in self.shards.items())
        recorded, wire_format = self.outbox.recorded, self.wire_format
        whole = Sync(self.owner_rev, self.epoch, self.version, number, 0, 1, recorded, shards, wire_format)
        self._sync.begin(whole, self._now_s, requested=requested)

    def _apply_acknowledgement(self, message: Acknowledge) -> None:
        if self._sync.acknowledge(message.sync_number):
            # An owner that is new knows nothing of what was sent before.
            self._pace.repeat_at_once(self._now_s)
        if self.outbox.record(message.recorded):
            self._pace.note_progress(self._now_s)
            for shard in list(self._stopped):
                self._release(shard)

    def _speak(self) -> None:
        """Send what is due: a Sync, checkpoints, repetitions."""
        if self.lease_held:
            for part in self._sync.take_due(self._now_s):
                self._send(part)
        if self.synced:
            for chunk in self._pace.take_due(self.outbox, self._now_s):
                self._send(Checkpoint(self.owner_rev, self.epoch, chunk.number, chunk.as_sent(self._now_s)))
            if self._now_s >= self._alive_due_s and self._timeouts.alive_s < inf:
                self._send(Alive(self.owner_rev, self.epoch))
                self._alive_due_s = self._now_s + self._timeouts.alive_s
        hold = self.outbox.history_waiting > (HISTORY_MAX // 2 if self.holding else HISTORY_MAX)
        if hold != self.holding:
            self.holding = hold
            self._out.append(HoldIterations(hold))
