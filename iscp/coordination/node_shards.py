"""The shards that a node has, by the owner's orders and the engine's word, and the fences of those that it had."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from iscp.coordination.protocol.messages import NodeShardState
from iscp.core.values.ids import ShardId, TableEpoch
from iscp.core.values.state_table import StateTable

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
