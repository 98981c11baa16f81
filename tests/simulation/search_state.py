"""The searched cluster's states as values: what one consists of, copies of it, and its fingerprint."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from iscp.cluster import placement
from iscp.cluster.membership.assignments import Assignments, SecondCopies
from iscp.cluster.membership.term import Peer, Term, Timers
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.protocol.messages import NodeMessage, OwnerMessage
from iscp.model.values.ids import Leader, NodeRecord, ShardId
from iscp.schedule.reports import Outbox


@dataclass(slots=True)
class Life:
    """One process: `running` is what its engine has, `stopping` what it is to give up, of that `condemned` for good."""

    record: NodeRecord
    worker: WorkerMachine
    writes: bool = True
    running: set[ShardId] = field(default_factory=set)
    stopping: set[ShardId] = field(default_factory=set)
    condemned: set[ShardId] = field(default_factory=set)


Message = tuple[str, str, OwnerMessage | NodeMessage]


@dataclass(slots=True)
class State:
    """`wire`: who to whom, what. `members`: who is registered. `told`: what each owner last heard of that."""

    owners: dict[str, OwnerMachine]
    clocks: dict[str, float]
    lives: dict[str, Life]
    members: dict[str, NodeRecord]
    told: dict[str, tuple[NodeRecord, ...]]
    leader: Leader
    wire: dict[Message, None] = field(default_factory=dict)
    crashes: int = 0
    lapses: int = 0
    elections: int = 0
    moves: int = 0
    splits: int = 0
    losses: int = 0
    ticks: int = 0


def copied(state: State) -> State:
    """Machines are shared until they take a step."""
    return replace(
        state,
        owners=dict(state.owners),
        lives=dict(state.lives),
        clocks=dict(state.clocks),
        members=dict(state.members),
        told=dict(state.told),
        wire=dict(state.wire),
    )


def owned(state: State, node_id: str) -> Life:
    """The node's life, to be changed in this state and none other."""
    state.lives[node_id] = life = _copied_life(state.lives[node_id])
    return life


def _copied_life(life: Life) -> Life:
    worker = copy(life.worker)
    worker.shards = {shard: replace(held) for shard, held in worker.shards.items()}
    worker.outbox = Outbox()  # nothing is reported here
    worker.fences, worker._stopped = worker.fences.copy(), worker._stopped.copy()
    worker._sync, worker._pace = copy(worker._sync), copy(worker._pace)
    running, stopping, condemned = set(life.running), set(life.stopping), set(life.condemned)
    return replace(life, worker=worker, running=running, stopping=stopping, condemned=condemned)


def copied_owner(owner: OwnerMachine) -> OwnerMachine:
    other, term = copy(owner), owner.term
    if term is not None:
        other.term = _copied_term(term)
        if term.plan is not None:
            # Nothing is bounded here, so that a plan is either done or not begun: it is requested again.
            placement.reconsider(other.term)
    return other


def _copied_term(term: Term) -> Term:
    peers = {id(peer): _copied_peer(peer) for peer in (*term.peers.values(), *term.gone.values())}
    other = replace(
        term,
        out=[],
        plan=None,
        unplaced=None,
        window=replace(term.window),
        turns=term.turns.copy(),
        peers={name: peers[id(peer)] for name, peer in term.peers.items()},
        gone={name: peers[id(peer)] for name, peer in term.gone.items()},
        departed=dict(term.departed),
        epochs={name: dict(each) for name, each in term.epochs.items()},
        copies=SecondCopies(),
        requested=term.requested.copy(),
        to_await=term.to_await.copy(),
        to_hear=term.to_hear.copy(),
        moving=dict(term.moving),
        assignments=_copied_assignments(term.assignments),
        timers=Timers(),
    )
    for shard, holder in term.copies:
        other.copies.add(shard, holder)
    others: dict[int, object] = {id(term): other, **peers}
    for peer in (*term.peers.values(), *term.gone.values()):
        for shard, operation in peer.in_flight.items():
            others[id(operation)] = peers[id(peer)].in_flight[shard]
    other.timers._serial = term.timers._serial
    for due_s, serial, action in term.timers._heap:
        if isinstance(action, partial):
            action = partial(action.func, *(others.get(id(each), each) for each in action.args))
        other.timers._heap.append((due_s, serial, action))
    return other


def _copied_peer(peer: Peer) -> Peer:
    in_flight = {shard: replace(operation) for shard, operation in peer.in_flight.items()}
    return replace(peer, queue=peer.queue.copy(), in_flight=in_flight, _parts=dict(peer._parts))


def _copied_assignments(assignments: Assignments) -> Assignments:
    other = Assignments()
    other._shards = {shard: replace(assignment) for shard, assignment in assignments._shards.items()}
    other._assigned = {holder: dict(shards) for holder, shards in assignments._assigned.items()}
    other._parts = {table: dict(parts) for table, parts in assignments._parts.items()}
    other.blocked = {table: dict(blocked) for table, blocked in assignments.blocked.items()}
    other.unplaced, other.counts = dict(assignments.unplaced), dict(assignments.counts)
    return other


def fingerprint(state: State) -> int:
    """Equal for states that what follows cannot distinguish; times count from each machine's own now."""
    lives = tuple(
        (name, life.record, life.writes, frozenset(life.running), frozenset(life.stopping), _worker(life.worker))
        for name, life in sorted(state.lives.items())
    )
    owners = tuple((name, _owner(owner, state.clocks[name])) for name, owner in sorted(state.owners.items()))
    budget = (state.crashes, state.lapses, state.elections, state.moves, state.splits, state.losses, state.ticks)
    told = tuple(sorted(state.told.items()))
    members = tuple(sorted(state.members.values()))
    return hash((lives, owners, told, members, state.leader, frozenset(state.wire), budget))


def _worker(worker: WorkerMachine) -> tuple[Any, ...]:
    shards = tuple((shard, held.table_epoch, held.state) for shard, held in sorted(worker.shards.items()))
    fences = tuple(sorted(worker.fences.items()))
    return worker.owner_rev, worker.epoch, worker.lease_held, worker.synced, worker._sync.number, shards, fences


def _owner(owner: OwnerMachine, now_s: float) -> tuple[Any, ...]:
    term = owner.term
    if term is None:
        return ()
    peers = tuple(
        (
            peer.record,
            peer.phase,
            peer.founding,
            peer.doubted,
            peer.sync_number,
            tuple(
                (s, o.table_epoch, o.is_delete, now_s - o.heard_s, now_s - o.sent_s, o.repeat_s, o.awaited)
                for s, o in peer.in_flight.items()
            ),
            now_s - peer.announced_s if peer.unknown else 0.0,
        )
        for _, peer in sorted(term.peers.items())
    )
    shards = tuple((a.shard, a.state, a.holder, a.to) for a in sorted(term.assignments, key=lambda a: a.shard))
    departed = tuple(sorted((holder, over_s - now_s) for holder, over_s in term.departed.items()))
    copies = tuple(sorted(term.copies))
    gone = tuple((name, peer.record, peer.phase) for name, peer in sorted(term.gone.items()))
    waits = (max(0.0, term.hold_until_s - now_s), max(0.0, term.settled_at_s - now_s), term.plan is not None)
    due_s = owner.next_due_s()
    due_in_s = None if due_s is None else due_s - now_s
    return owner.owner_rev, term.counter, peers, shards, departed, copies, gone, waits, due_in_s
