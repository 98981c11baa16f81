"""The worker's fences, each dropped."""

from __future__ import annotations

from dataclasses import replace

from iscp.cluster.worker_machine import NEVER, ShardFences, WorkerMachine
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.protocol.messages import Announce, DispatchTable, NodeShardState, OwnerMessage
from iscp.model.values.ids import WIRE_FORMAT, Leader, ShardId, TableEpoch
from tests.simulation.engine import Engine
from tests.simulation.process import Process


class ObeysAnyTerm(WorkerMachine):
    """Dispatches of other terms count."""

    def _from_owner(self, message: OwnerMessage) -> None:
        if not isinstance(message, Announce):
            message = replace(message, owner_rev=self.owner_rev)
        super()._from_owner(message)


class ObeysAnyEpoch(WorkerMachine):
    """What was meant for a former life of the node counts."""

    def _from_owner(self, message: OwnerMessage) -> None:
        if not isinstance(message, Announce):
            message = replace(message, epoch=self.epoch)
        super()._from_owner(message)


class ObeysAnyTableEpoch(WorkerMachine):
    """The last dispatch to arrive wins, not the newest."""

    def _accept_dispatch(self, message: DispatchTable) -> None:
        held = self.shards.get(message.shard)
        if held is not None and message.table_epoch < held.table_epoch:
            held.table_epoch = NEVER
        super()._accept_dispatch(message)


class ForgetsRemovals(WorkerMachine):
    """A doubled dispatch starts a shard again that was removed."""

    def __init__(
        self, node_id: str, epoch: int, version: str, times: CoordinationTimes, wire_format: int = WIRE_FORMAT
    ) -> None:
        super().__init__(node_id, epoch, version, times, wire_format)
        self.fences = NoFences()


class NoFences(ShardFences):
    def add(self, shard: ShardId, table_epoch: TableEpoch) -> None:
        pass


class BelievesAnyOwner(WorkerMachine):
    """No read of the election key on an owner's first message."""

    def _accept_election(self, leader: Leader | None) -> None:
        claim = self._checking
        super()._accept_election(Leader(claim.owner_id, claim.election_revision) if claim else leader)


class StartsWithoutLease(WorkerMachine):
    """Dispatches are obeyed while the lease is lost."""

    def _from_owner(self, message: OwnerMessage) -> None:
        held, self.lease_held = self.lease_held, True
        super()._from_owner(message)
        self.lease_held = held


class KeepsRunningWithoutLease(WorkerMachine):
    """A lost lease stops nothing, and what runs goes on under the next epoch."""

    def _lose_lease(self) -> None:
        self.lease_held = False


class SaysAbsentWhenStopping(WorkerMachine):
    """Stopping is taken for stopped, by the node."""

    def _respond(self, shard: ShardId, table_epoch: TableEpoch, state: NodeShardState) -> None:
        if state is NodeShardState.REMOVING:
            state = NodeShardState.ABSENT
        super()._respond(shard, table_epoch, state)


class BelievesNotices(Engine):
    """Takes a table for unchanged that nobody has announced a commit of."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._heard: set[str] = set()

    def notify(self, table: str) -> None:
        self._heard.add(table)
        super().notify(table)

    def _look(self, table: str, seen: ProbeState | None) -> ProbeState:
        if seen is not None and table not in self._heard:
            return seen
        self._heard.discard(table)
        return super()._look(table, seen)
