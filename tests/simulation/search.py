"""Every order of events in a small cluster: breadth first over the real machines, to the end of its states.

What is bounded: `nodes` nodes and `shards` shards that are placed and run when it begins; so many crashes (the process
is gone), lapses of a lease (the process goes on, and comes back under another epoch), moves that are requested, and
changes of the owner, whose former one hears of it at any later time or never; splits of the first shard, and merges
of it, by turns; so many messages that are lost, and so many ticks in which a machine repeats itself. Messages arrive in
any order, and a repeated one that is still under way is one. Engines stop at any later time; checkpoints are left out.

Time: each machine's clock stands still but for its ticks, which lead it to its next due time. What leases promise is a
rule here: a key expires, and an owner's grace or hold is over, only when the process cannot write any more. Moments
without a choice of their own are taken at once: a read of the election, an Acknowledge, the Sync of a node that runs
nothing, an engine's start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from iscp.cluster.invariants import check_no_double_run, check_owner, check_worker
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import (
    CheckElection,
    CoordinationTimes,
    Deposed,
    Elected,
    ElectionChecked,
    FromNode,
    FromOwner,
    LeaseEnded,
    LeaseRegained,
    MembersChanged,
    MoveRequested,
    OwnerEvent,
    RevokeLease,
    SendTo,
    SendToOwner,
    ShardStarted,
    ShardStopped,
    ShardUnwanted,
    ShardWanted,
    StartShard,
    StopAllShards,
    StopShard,
    Tick,
    WorkerEvent,
)
from iscp.model.protocol.messages import Acknowledge, Sync
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import JobKey, Leader, NodeRecord, ShardId
from tests.fakes.rings import step_with_rings
from tests.simulation.search_state import Life, Message, State, copied, copied_owner, fingerprint, owned
from tests.simulation.violation import ViolationError

# A tick leads to the first repetition (after twice `resend_s`) and not to a deadline, whose revoked nodes come back
# under new epochs without end.
TIMES = CoordinationTimes(
    lease_ttl_s=4.0,
    margin_s=1.0,
    sync_deadline_s=3.0,
    operation_deadline_s=3.0,
    settle_s=0.0,
    rebalance_after_s=100_000.0,
    resend_s=1.0,
    alive_s=inf,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    nodes: int = 3
    shards: int = 1
    crashes: int = 2
    lapses: int = 0
    elections: int = 1
    moves: int = 0
    splits: int = 0
    losses: int = 0
    ticks: int = 0
    states_max: int = 1_000_000


Action = Callable[[State], None]


class Search:
    """`states` counts what was found; raises Violation with the way that leads there."""

    def __init__(
        self,
        bounds: Bounds,
        worker: type[WorkerMachine] = WorkerMachine,
        owner: type[OwnerMachine] = OwnerMachine,
    ) -> None:
        self.bounds, self._worker, self._owner = bounds, worker, owner
        self.states = 0
        self.ends = 0
        self._rows = {
            ShardId(f"t{n}"): (JobRow(JobKey("default", f"t{n}", "j"), f"{n:012x}", "{}", f"t{n}", f"/t{n}"),)
            for n in range(1, bounds.shards + 1)
        }

    def run(self) -> int:
        """All states; raises Violation."""
        first = self._first()
        seen = {fingerprint(first)}
        frontier: deque[tuple[State, tuple[str, ...]]] = deque([(first, ())])
        while frontier:
            before, way = frontier.popleft()
            actions = list(self._actions(before))
            if not actions:
                self.ends += 1
            for name, action in actions:
                state = copied(before)
                try:
                    action(state)
                    self._check(state)
                except InvariantBroken as broken:
                    raise ViolationError(f"{broken}, after {', '.join((*way, name))}") from broken
                mark = fingerprint(state)
                if mark not in seen:
                    seen.add(mark)
                    frontier.append((state, (*way, name)))
            if len(seen) > self.bounds.states_max:
                raise ViolationError(f"more than {self.bounds.states_max} states")
        self.states = len(seen)
        return self.states

    # --- where it begins ---------------------------------------------------------------------------------------

    def _first(self) -> State:
        """All nodes are known to n1, the owner, and every shard runs."""
        records = [NodeRecord(f"n{n}", 1, f"n{n}", lease_id=n) for n in range(1, self.bounds.nodes + 1)]
        lives = {r.node_id: Life(r, self._worker(r.node_id, 1, "1", TIMES)) for r in records}
        members = {r.node_id: r for r in records}
        state = State({}, {}, lives, members, {}, Leader("n1", 101))
        self._elect(state, "n1")
        state.elections = 0
        while state.wire:
            self._deliver(state, next(iter(state.wire)))
        self._owner_step(state, "n1", Tick())
        while state.wire:
            self._deliver(state, next(iter(state.wire)))
        return state

    def _elect(self, state: State, node_id: str) -> None:
        state.elections += 1
        rev = len(state.owners) + 1
        state.leader = Leader(node_id, 100 + rev)
        state.owners[node_id] = self._owner(node_id, "1", TIMES)
        state.clocks[node_id] = 0.0
        state.told[node_id] = members = tuple(state.members.values())
        writing = any(life.writes and name not in state.members for name, life in state.lives.items())
        hold_s = TIMES.lease_ttl_s + TIMES.margin_s if writing else 0.0
        self._owner_step(state, node_id, Elected(rev, 100 + rev, members, self._wanted(state), hold_s))

    def _wanted(self, state: State) -> dict[ShardId, tuple[JobRow, ...]]:
        """As the job log has it."""
        wanted: dict[ShardId, tuple[JobRow, ...]] = dict(self._rows)
        if state.splits % 2:
            rows = wanted.pop(ShardId("t1"))
            wanted |= dict.fromkeys((ShardId("t1", 2), ShardId("t1", 3)), rows)
        return wanted

    # --- what can happen ---------------------------------------------------------------------------------------

    def _actions(self, state: State) -> Iterator[tuple[str, Action]]:
        bounds = self.bounds
        for message in state.wire:
            source, target, what = message
            name = f"{type(what).__name__} {source}>{target}"
            yield name, partial(self._deliver, message=message)
            if state.losses < bounds.losses:
                yield f"lose {name}", partial(self._lose, message=message)
        for node_id, life in state.lives.items():
            yield from self._life_actions(state, node_id, life)
        for node_id in state.owners:
            yield from self._owner_actions(state, node_id)
        for node_id in state.members:
            if node_id not in state.lives or not state.lives[node_id].writes:
                yield f"expire {node_id}", partial(_expire, node_id=node_id)
        if state.elections < bounds.elections:
            for node_id in state.lives:
                if node_id in state.members and node_id not in state.owners:
                    yield f"elect {node_id}", partial(self._elect, node_id=node_id)

    def _life_actions(self, state: State, node_id: str, life: Life) -> Iterator[tuple[str, Action]]:
        for shard in sorted(life.stopping):
            yield f"{node_id} stops {shard}", partial(self._stopped, node_id=node_id, shard=shard)
        if state.crashes < self.bounds.crashes:
            yield f"kill {node_id}", partial(self._kill, node_id=node_id)
        if state.lapses < self.bounds.lapses and life.writes:
            yield f"lapse {node_id}", partial(self._lapse, node_id=node_id, counted=True)
        if life.writes and node_id not in state.members:
            yield f"{node_id} notices", partial(self._lapse, node_id=node_id, counted=False)
        if not life.writes and node_id not in state.members:
            yield f"return {node_id}", partial(self._return, node_id=node_id)

    def _owner_actions(self, state: State, node_id: str) -> Iterator[tuple[str, Action]]:
        owner = state.owners[node_id]
        if owner.term is None:
            return
        if state.told[node_id] != tuple(state.members.values()):
            yield f"tell {node_id}", partial(self._tell, node_id=node_id)
        if state.leader.node_id != node_id:
            yield f"depose {node_id}", partial(self._owner_step, node_id=node_id, event=Deposed())
        if state.moves < self.bounds.moves:
            asked = (MoveRequested(shard, to) for shard in self._rows for to in state.lives)
            yield from (
                (f"move {e.shard} to {e.node_id}", partial(self._move, node_id=node_id, event=e)) for e in asked
            )
        if state.splits < self.bounds.splits and state.leader.node_id == node_id:
            yield "merge" if state.splits % 2 else "split", partial(self._split, node_id=node_id)
        due_s = owner.next_due_s()
        if due_s is None or (state.ticks >= self.bounds.ticks and due_s > state.clocks[node_id]):
            return
        if not (self._ends_a_wait(owner, due_s) and self._lost_one_writes(state)):
            yield f"tick {node_id}", partial(self._tick, node_id=node_id)

    def _ends_a_wait(self, owner: OwnerMachine, due_s: float) -> bool:
        term = owner.term
        if term is None:
            return False
        return term.now_s < term.hold_until_s <= due_s or any(over_s <= due_s for over_s in term.departed.values())

    def _lost_one_writes(self, state: State) -> bool:
        return any(life.writes and state.members.get(name) != life.record for name, life in state.lives.items())

    # --- carried out -------------------------------------------------------------------------------------------

    def _deliver(self, state: State, message: Message) -> None:
        del state.wire[message]
        source, target, what = message
        if source.endswith("/owner"):
            if target in state.lives:
                self._worker_step(state, target, FromOwner(what))  # type: ignore[arg-type]
        elif target in state.owners:
            self._owner_step(state, target, FromNode(source, what))  # type: ignore[arg-type]

    def _lose(self, state: State, message: Message) -> None:
        state.losses += 1
        del state.wire[message]

    def _stopped(self, state: State, node_id: str, shard: ShardId) -> None:
        life = owned(state, node_id)
        for shards in (life.running, life.stopping, life.condemned):
            shards.discard(shard)
        self._worker_step(state, node_id, ShardStopped(shard))

    def _kill(self, state: State, node_id: str) -> None:
        state.crashes += 1
        del state.lives[node_id]
        state.owners.pop(node_id, None)

    def _lapse(self, state: State, node_id: str, counted: bool) -> None:
        state.lapses += counted
        owned(state, node_id).writes = False
        self._worker_step(state, node_id, LeaseEnded())

    def _return(self, state: State, node_id: str) -> None:
        life = owned(state, node_id)
        life.record = replace(life.record, epoch=life.record.epoch + 1, lease_id=life.record.lease_id + 10)
        life.writes = True
        state.members[node_id] = life.record
        self._worker_step(state, node_id, LeaseRegained(life.record.epoch))

    def _tell(self, state: State, node_id: str) -> None:
        state.told[node_id] = tuple(state.members.values())
        self._owner_step(state, node_id, MembersChanged(state.told[node_id]))

    def _move(self, state: State, node_id: str, event: MoveRequested) -> None:
        state.moves += 1
        self._owner_step(state, node_id, event)

    def _split(self, state: State, node_id: str) -> None:
        before = self._wanted(state)
        state.splits += 1
        after = self._wanted(state)
        for shard in before.keys() - after.keys():
            self._owner_step(state, node_id, ShardUnwanted(shard))
        for shard in sorted(after.keys() - before.keys()):
            self._owner_step(state, node_id, ShardWanted(shard, after[shard]))

    def _tick(self, state: State, node_id: str) -> None:
        due_s = state.owners[node_id].next_due_s()
        if due_s is not None and due_s > state.clocks[node_id]:
            state.clocks[node_id] = due_s
            state.ticks += 1
        self._owner_step(state, node_id, Tick())

    def _owner_step(self, state: State, node_id: str, event: OwnerEvent) -> None:
        state.owners[node_id] = owner = copied_owner(state.owners[node_id])
        effects = step_with_rings(owner, event, state.clocks[node_id])
        check_owner(owner)
        for effect in effects:
            match effect:
                case SendTo(record, Acknowledge() as message):
                    if record.node_id in state.lives:
                        self._worker_step(state, record.node_id, FromOwner(message))
                case SendTo(record, message):
                    state.wire[f"{node_id}/owner", record.node_id, message] = None
                case RevokeLease(record, revision):
                    if state.leader.revision == revision and state.members.get(record.node_id) == record:
                        del state.members[record.node_id]
                case _:
                    pass

    def _worker_step(self, state: State, node_id: str, event: WorkerEvent) -> None:
        life, empty = owned(state, node_id), []
        waiting: deque[WorkerEvent] = deque([event])
        while waiting:
            for effect in life.worker.step(waiting.popleft(), 0.0):
                match effect:
                    case SendToOwner(owner_id, Sync(shards=()) as message):
                        empty.append((owner_id, message))
                    case SendToOwner(owner_id, message):
                        state.wire[node_id, owner_id, message] = None
                    case CheckElection():
                        waiting.append(ElectionChecked(state.leader))
                    case StartShard(shard):
                        life.running.add(shard)
                        waiting.append(ShardStarted(shard))
                    case StopShard(shard):
                        life.stopping.add(shard)
                    case StopAllShards():
                        life.stopping |= life.running
                        life.condemned |= life.running
                    case _:
                        pass
        check_worker(life.worker)
        for owner_id, message in empty:
            if owner_id in state.owners:
                self._owner_step(state, owner_id, FromNode(node_id, message))

    def _check(self, state: State) -> None:
        writing = ((name, life) for name, life in state.lives.items() if life.writes)
        check_no_double_run((name, life.running - life.condemned) for name, life in writing)


def _expire(state: State, node_id: str) -> None:
    del state.members[node_id]
