"""State tables: their diagrams are current, every transition is taken by the real machine, and no other is possible."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from iscp.changefeed.model.lock_queue import (
    LOCK_PHASES,
    Acquired,
    Began,
    Counted,
    Incidents,
    LockPhase,
    LockTimedOut,
    QueueEvent,
    QueueLimits,
    Sampled,
    Waiting,
)
from iscp.cluster.membership.assignments import SHARD_STATES, ShardState
from iscp.cluster.membership.term import PEER_PHASES
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import NODE_SHARD_STATES, WorkerMachine
from iscp.model.protocol.events import (
    Elected,
    ElectionChecked,
    FromNode,
    FromOwner,
    LeaseEnded,
    LeaseRegained,
    MembersChanged,
    OwnerEffect,
    OwnerEvent,
    Reports,
    SendTo,
    ShardStarted,
    ShardStopped,
    ShardUnwanted,
    ShardWanted,
    Tick,
    WorkerEvent,
)
from iscp.model.protocol.messages import (
    Acknowledge,
    Announce,
    DispatchTable,
    DispatchTableResponse,
    NodeShard,
    NodeShardState,
    Sync,
)
from iscp.model.settings.config import BackoffConfig
from iscp.model.values.errors import InvariantBroken, QueueFull, TimedOut
from iscp.model.values.ids import Leader, NodeRecord, ShardId, TableEpoch
from iscp.model.values.state_table import StateTable
from iscp.schedule.maintenance_turns import MAINTENANCE_PHASES, MaintenanceHeap, Phase
from tests.diagrams import MACHINES, ROOT, comment, main
from tests.fakes.loopback import TIMES, job, report
from tests.fakes.rings import step_with_rings

A = ShardId("a")
Pairs = set[tuple[Hashable, Hashable]]


def worker_pairs(seed: int) -> Pairs:
    """What a node's shard went through, step by step."""
    draw, pairs = random.Random(seed), Pairs()
    worker, now_s, counter, epoch = WorkerMachine("n1", 3, "1", TIMES), 10.0, 0, 3
    worker.step(FromOwner(Announce("o", 1, 101, "1")), now_s)
    worker.step(ElectionChecked(Leader("o", 101)), now_s)
    for _ in range(40):
        now_s, counter, before = now_s + draw.random(), counter + 1, worker.shards.get(A)
        state = before.state if before else NodeShardState.ABSENT
        sync = next((part.number for part in worker._sync.parts), 0)
        delete = draw.random() < 0.4
        dispatch = DispatchTable(1, epoch, TableEpoch(1, counter), A, delete, () if delete else (job("a"),))
        event: WorkerEvent = draw.choice(
            (
                FromOwner(dispatch),
                ShardStarted(A),
                ShardStopped(A),
                Reports(A, (report(job("a"), counter),), ()) if state is not NodeShardState.ABSENT else Tick(),
                FromOwner(Acknowledge(1, epoch, sync, worker.outbox.recorded + len(worker.outbox.chunks))),
                LeaseEnded(),
                LeaseRegained(epoch := epoch + (draw.random() < 0.3)),
                Tick(),
            )
        )
        if not isinstance(event, LeaseRegained):
            epoch = worker.epoch
        worker.step(event, now_s)
        after = worker.shards.get(A)
        pairs.add((state, after.state if after else NodeShardState.ABSENT))
    return pairs


class OwnerWalk:
    """An owner of one shard and two nodes that say whatever they may."""

    def __init__(self, seed: int) -> None:
        self.draw, self.now_s, self.number = random.Random(seed), 10.0, 0
        self.epochs = {"n1": 1, "n2": 1}
        self.owner = OwnerMachine("n1", "1", TIMES)
        self.sent: dict[str, DispatchTable] = {}
        self.shards, self.phases = Pairs(), Pairs()
        self.step(Elected(1, 101, (self.record("n1"), self.record("n2")), {A: (job("a"),)}))

    def record(self, node_id: str) -> NodeRecord:
        return NodeRecord(node_id, self.epochs[node_id], "x:1")

    def step(self, event: OwnerEvent) -> None:
        self.now_s += self.draw.random() * TIMES.settle_s
        shard, phases = self.shard(), self.nodes()
        effects: list[OwnerEffect] = step_with_rings(self.owner, event, self.now_s)
        self.shards.add((shard, self.shard()))
        self.phases |= {(phases[node], phase) for node, phase in self.nodes().items() if node in phases}
        for effect in effects:
            if isinstance(effect, SendTo) and isinstance(effect.message, DispatchTable):
                self.sent[effect.record.node_id] = effect.message

    def shard(self) -> ShardState:
        found = self.owner.assignments.get(A)
        return found.state if found else ShardState.ABSENT

    def nodes(self) -> dict[tuple[str, int], Hashable]:
        term = self.owner.term
        return {} if term is None else {(name, peer.record.epoch): peer.phase for name, peer in term.peers.items()}

    def events(self) -> Iterator[OwnerEvent]:
        node_id = self.draw.choice(("n1", "n2"))
        state = self.draw.choice(tuple(NodeShardState)[1:])
        self.number += 1
        held = (NodeShard(A, TableEpoch(0, 7), state),) if self.draw.random() < 0.5 else ()
        if self.draw.random() < 0.3:
            yield FromNode(node_id, Sync(1, self.epochs[node_id], "1", self.number, 0, 1, 0, held))
        if (sent := self.sent.get(node_id)) is not None:
            done = NodeShardState.ABSENT if sent.is_delete or self.draw.random() < 0.2 else NodeShardState.RUNNING
            yield FromNode(node_id, DispatchTableResponse(1, sent.epoch, sent.table_epoch, A, done))
        yield Tick()
        match self.draw.randrange(12):
            case 0:
                yield ShardUnwanted(A)
            case 1 | 2:
                yield ShardWanted(A, (job("a"),))
            case 3:
                there = [each for each in self.epochs if self.draw.random() < 0.5]
                self.epochs = {each: epoch + (each not in there) for each, epoch in self.epochs.items()}
                yield MembersChanged(tuple(map(self.record, there)), 0.0)
            case 4:
                yield MembersChanged(tuple(map(self.record, self.epochs)), 0.0)

    def run(self) -> None:
        for _ in range(60):
            for event in self.events():
                self.step(event)


def upkeep_pairs(seed: int) -> Pairs:
    draw, pairs = random.Random(seed), Pairs()
    heap: MaintenanceHeap[str] = MaintenanceHeap(1.0, BackoffConfig(), draw.random)
    heap.add("a", 0.0)
    item = heap._items["a"]
    actions: dict[Phase, tuple[Callable[[float], object], ...]] = {
        Phase.WAITS: (heap.take_due,),
        Phase.DUE: (lambda _: heap.begin("a"), lambda now_s: heap.reject("a", QueueFull("full"), now_s)),
        Phase.RUNS: (
            lambda now_s: heap.complete("a", 1.0, now_s),
            lambda now_s: heap.fail("a", QueueFull("full"), now_s),
            lambda _: heap.give_up("a", TimedOut("late")),
        ),
        Phase.HANGS: (lambda now_s: heap.end_late("a", now_s),),
    }
    for turn in range(30):
        before = item.phase
        draw.choice(actions[before])(1e6 * turn)
        pairs.add((before, item.phase))
    return pairs


def lock_pairs(seed: int) -> Pairs:
    draw, pairs = random.Random(seed), Pairs()
    waiting, now_s = Waiting(QueueLimits()), 0.0
    while waiting.phase is not LockPhase.OVER:
        before, now_s = waiting.phase, now_s + draw.random()
        event: QueueEvent = draw.choice(
            (Began(), Counted(Incidents()), Acquired(), LockTimedOut(), Sampled(draw.choice("ab")))
        )
        try:
            waiting.step(event, now_s)
        except InvariantBroken:
            assert waiting.phase is before, "what is refused changes nothing"
        pairs.add((before, waiting.phase))
    return pairs


def owner_shard_pairs(seed: int) -> Pairs:
    walk = OwnerWalk(seed)
    walk.run()
    return walk.shards


def peer_pairs(seed: int) -> Pairs:
    walk = OwnerWalk(seed)
    walk.run()
    return walk.phases


@pytest.mark.parametrize(
    ("table", "walk"),
    [
        (NODE_SHARD_STATES, worker_pairs),
        (SHARD_STATES, owner_shard_pairs),
        (PEER_PHASES, peer_pairs),
        (MAINTENANCE_PHASES, upkeep_pairs),
        (LOCK_PHASES, lock_pairs),
    ],
    ids=["node's shard", "owner's shard", "node", "upkeep", "lock"],
)
def test_every_transition_of_a_table_is_taken(table: StateTable[Any, Any], walk: Callable[[int], Pairs]) -> None:
    """By the machine itself, under random events; another than those of the table raises and would end the walk."""
    taken = set[tuple[Hashable, Hashable]]().union(*map(walk, range(100)))
    assert {(before, after) for before, _, after in table if before is not after} - taken == set()


class Light(StrEnum):
    RED = "red"
    GREEN = "green"


class Press(StrEnum):
    BUTTON = "button"


def test_an_event_that_a_state_does_not_have_is_refused_by_name() -> None:
    table = StateTable({Press.BUTTON: {Light.RED: Light.GREEN}})
    assert table.after(Light.RED, Press.BUTTON, "light 7") is Light.GREEN
    with pytest.raises(InvariantBroken, match="light 7 is green, and cannot take the event 'button' in that state"):
        table.after(Light.GREEN, Press.BUTTON, "light 7")
    assert comment(table) == ["#   red  ── button ─▶  green"]


def test_the_diagrams_are_those_of_the_tables() -> None:
    assert main(["--check"]) == 0, "run scripts/generate-diagrams"


def test_every_table_has_a_diagram() -> None:
    assert {(each.path, each.table) for each in MACHINES} == set(tables())


def tables() -> Iterator[tuple[Path, str]]:
    """Where in the package a name is given a StateTable."""
    for path in (ROOT / "iscp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.AnnAssign(target=ast.Name(name)) if ast.unparse(node.annotation).startswith("StateTable["):
                    yield path, name
