"""The owner's global checkpoint: the real Checkpointer on the simulated etcd, and held to what is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp.coordination.messages import SourceSeen
from iscp.core.cluster import Leader
from iscp.core.ids import ShardId
from iscp.core.job import JobRow
from iscp.runtime.checkpointer import Checkpointer
from tests.simulation.election import leader_of
from tests.simulation.etcd import Etcd, Link

if TYPE_CHECKING:
    from tests.simulation.process import Process

CHECKPOINT = "checkpoint"


def checkpoint_of(etcd: Etcd) -> float:
    there = etcd.get(CHECKPOINT)
    return there.value if there and isinstance(there.value, float) else 0.0


class CheckpointSide:
    """What `iscp/runtime/owner_loop.py` does of it; it is the store itself that the Checkpointer loads from."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._loaded_s = 0.0
        self.seen: dict[ShardId, SourceSeen] = {}
        self.checkpoint: Checkpointer = Checkpointer(self, process.world.parts.checkpoint)
        self._due_s = float("inf")

    def load(self) -> float:
        return self._loaded_s

    def save(self, leader: Leader, at_s: float) -> None:
        def put(etcd: Etcd) -> None:
            if leader_of(etcd) == leader:
                etcd.put(CHECKPOINT, at_s)

        if self._world.links[self._process.node_id] is Link.OPEN and self._world.etcd.up:
            put(self._world.etcd)

    def begin(self, loaded_s: float, wanted: Mapping[ShardId, tuple[JobRow, ...]]) -> None:
        self._loaded_s, self.seen = loaded_s, {}
        self.checkpoint.begin(wanted)
        self._check()

    def take(self, shard: ShardId, jobs: tuple[JobRow, ...]) -> None:
        if not jobs:
            self.seen.pop(shard, None)
        self.checkpoint.take(shard, jobs, self.seen.get(shard), self._process.now_s)
        self._arrange()
        self._check()

    def _arrange(self) -> None:
        due_s = self.checkpoint.due_s
        if due_s is not None and due_s != self._due_s:
            self._due_s = due_s
            self._process.after(max(0.0, due_s - self._process.now_s) + 1e-6, self._advance)

    def _advance(self) -> None:
        owner, due_s = self._process.owner, self.checkpoint.due_s
        self._due_s = float("inf")
        if owner.leader is None or owner.writer is None or due_s is None:
            return
        if due_s <= self._process.now_s and self.checkpoint.advance(self._process.now_s, owner.machine.running):
            self.checkpoint.save(owner.leader)
            self._check()
        self._arrange()

    def _check(self) -> None:
        owner = self._process.owner
        if owner.writer is not None and owner.writer.term == self._world.log.term:
            rows = (row for each in owner.machine.assignments if each.wanted for row in each.jobs)
            self._world.checks.checkpoint(self.checkpoint, rows)
