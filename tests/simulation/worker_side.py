"""A node's own part. Stands for `iscp/cluster/worker_loop.py`; the machine is the real one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from iscp.cluster.invariants import check_worker
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.protocol.events import (
    CheckElection,
    ElectionChecked,
    FromOwner,
    HoldIterations,
    LeaseEnded,
    LeaseRegained,
    SendToOwner,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    UpdateShard,
    WorkerEffect,
    WorkerEvent,
)
from iscp.model.protocol.messages import OwnerMessage
from tests.simulation.election import leader_of

if TYPE_CHECKING:
    from tests.simulation.process import Process


class WorkerSide:
    """`machine` is None until the node is registered for the first time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self.machine: WorkerMachine | None = None
        self._waiting: deque[WorkerEvent] = deque()
        self._stepping = False
        self._tick_at_s = float("inf")

    @property
    def idle(self) -> bool:
        """Whether nothing runs here and nothing is left to be reported."""
        machine = self.machine
        return machine is None or not (machine.shards or machine.outbox.gathered or machine.outbox.chunks)

    def registered(self, epoch: int) -> None:
        if self.machine is None:
            parts = self._world.parts
            self.machine = parts.worker(self._process.node_id, epoch, "1", self._world.times)
        else:
            self.put(LeaseRegained(epoch))

    def on_lease_lost(self) -> None:
        self.put(LeaseEnded())

    def heard(self, message: OwnerMessage) -> None:
        self.put(FromOwner(message))

    def put(self, event: WorkerEvent) -> None:
        """Events are taken in the order in which they come, also those that a step leads to."""
        if self.machine is None:
            return
        self._waiting.append(event)
        if self._stepping:
            return
        self._stepping = True
        while self._waiting:
            self._step(self.machine, self._waiting.popleft())
        self._stepping = False
        self._arrange_tick(self.machine)

    def _step(self, machine: WorkerMachine, event: WorkerEvent) -> None:
        effects = machine.step(event, self._process.now_s)
        check_worker(machine)
        if effects or not isinstance(event, Tick):
            self._world.stepped(self._process.node_id, event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _arrange_tick(self, machine: WorkerMachine) -> None:
        due_s = machine.next_due_s()
        if due_s is not None and due_s < self._tick_at_s:
            self._tick_at_s = due_s
            self._process.after(max(0.0, due_s - self._process.now_s) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._tick_at_s = float("inf")
        if self.machine is None:
            return
        due_s = self.machine.next_due_s()
        if due_s is not None and due_s <= self._process.now_s:
            self.put(Tick())
        else:
            self._arrange_tick(self.machine)

    def _carry_out(self, effect: WorkerEffect) -> None:
        process, world = self._process, self._world
        match effect:
            case SendToOwner(owner_id, message):
                process.streams.tell_owner(owner_id, message)
            case CheckElection():
                process.etcd.call(
                    leader_of,
                    lambda leader: self.put(ElectionChecked(leader)),
                    lambda: self.put(ElectionChecked(None)),
                )
            case StartShard(shard, table_epoch, _, epoch):
                world.checks.started(process, shard, table_epoch, epoch)
                process.engine.order(effect)
            case UpdateShard() | StopShard() | StopAllShards() | HoldIterations():
                process.engine.order(effect)
            case _:
                assert_never(effect)
