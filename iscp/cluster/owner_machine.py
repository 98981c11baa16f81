"""The owner's side of the protocol: which node is to run which shard, and what it has said of it.

Decides placements and when it is safe to place. Knows nothing of clocks, channels, the log or etcd. Rules:

- Nothing is placed before every registered node has sent Sync; one that does not in time has its lease revoked.
- A shard is free only by its node's word, or when the node's lease has ended and the grace is over.
- What is sent to a node is sent again until confirmed; a node that never answers is revoked, so that none can hold
  up the others. An owner that hears of none of several resigns.
- Messages of another term, of another epoch of the node, or under another table_epoch change nothing. Reports
  count only from the node that holds the shard; history counts always: it is what the sinks have seen.
- A checkpoint is acknowledged when it is recorded, and a node says Absent only after that: so a drained shard's
  final checkpoint is in the rows of the next dispatch.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import assert_never

from iscp.cluster import placement
from iscp.cluster.membership import membership
from iscp.cluster.membership.assignments import HELD, Assignments, ShardState
from iscp.cluster.membership.term import OwnerIdentity, Peer, PeerEvent, PeerPhase, Term, Window
from iscp.model.job.job_row import JobReport, JobRow
from iscp.model.protocol.events import (
    CoordinationTimes,
    Decided,
    Decision,
    Deposed,
    Elected,
    FromNode,
    MembersChanged,
    MoveRequested,
    OverridesChanged,
    OwnerEffect,
    OwnerEvent,
    RebalanceRequested,
    RecordCheckpoint,
    Recorded,
    RingBuilt,
    RowsMoved,
    SendTo,
    ShardUnwanted,
    ShardWanted,
    Tick,
)
from iscp.model.protocol.messages import Acknowledge, Alive, Checkpoint, DispatchTableResponse, NodeMessage, Sync
from iscp.model.values.ids import WIRE_FORMAT, ShardId
from iscp.model.values.ring import Placement


class OwnerMachine:
    """Feed it events in order with a clock that does not step back; carry out the effects in order.

    `term` is None while this node is not the owner; then every event but Elected is ignored.
    """

    def __init__(self, node_id: str, version: str, timeouts: CoordinationTimes, wire_format: int = WIRE_FORMAT) -> None:
        self.node_id, self.version, self.wire_format = node_id, version, wire_format
        self.term: Term | None = None
        self.timeouts = timeouts
        self._resigned_s = -inf

    @property
    def owner_rev(self) -> int:
        return self.term.owner_rev if self.term else 0

    @property
    def assignments(self) -> Assignments:
        """Return the assignments, for views; empty while this node is not the owner."""
        return self.term.assignments if self.term else Assignments()

    @property
    def running(self) -> bool:
        """Return whether every wanted shard runs, no other is known, and every node is."""
        term = self.term
        if term is None or any(peer.unknown for peer in term.peers.values()):
            return False
        return term.assignments.counts[ShardState.RUNNING] == len(term.assignments)

    @property
    def settled(self) -> bool:
        """Return whether all is `running`, nothing is to move, and nothing is to be sent to a node."""
        term = self.term
        if term is None or term.plan is not None:
            return False
        # The copy of a shard that runs elsewhere is stopped by an operation alone.
        return self.running and not any(peer.queue or peer.in_flight for peer in term.peers.values())

    def next_due_s(self) -> float | None:
        """Return when a Tick is due if nothing happens before, or None if none is."""
        return self.term.timers.next_due_s() if self.term else None

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        """Take one event in; the effects it has.

        `read_s`: all that came in before it has been taken in (None: before `now_s`). Nothing is due before it is that
        late: what a node is waited for may be there, and only has to be read.
        """
        read_s = now_s if read_s is None else min(read_s, now_s)
        if isinstance(event, Elected):
            if event.owner_rev <= self.owner_rev:
                return []
            self.term = term = _begin(self, self.timeouts, event, now_s, read_s)
            term.heard_s, term.resigned_s = read_s, self._resigned_s
            membership.listen_to_any(term)
        elif isinstance(event, Deposed) or self.term is None:
            self.term = None
            return []
        else:
            term = self.term
            term.now_s, term.read_s, term.out = now_s, read_s, []
            for action in term.timers.due(read_s):
                action()
            _place(term)
            _apply_event(term, event)
        _place(term)
        placement.carry_on(term)
        membership.send_queued(term)
        self._resigned_s = term.resigned_s
        return term.out


def _place(term: Term) -> None:
    """Place free shards on nodes that may take them by now: one that was just given up on may not.

    While a node is awaited nothing moves: all nodes are considered at once, when the last of them is heard.
    """
    if term.changed:
        term.look_round()
        if not term.awaiting:
            term.changed = False
            placement.reconsider(term)
    placement.place(term)


def _begin(owner: OwnerMachine, timeouts: CoordinationTimes, event: Elected, now_s: float, read_s: float) -> Term:
    identity = OwnerIdentity(owner.node_id, owner.version, owner.wire_format)
    revision, window = event.election_revision, Window(timeouts.resend_s / 2)
    term = Term(identity, timeouts, event.owner_rev, revision, now_s, read_s, window)
    term.placement = Placement(overrides=event.overrides)
    term.out.append(Decided(Decision.TERM, owner.node_id, why=f"elected as {event.election_revision}"))
    for shard, jobs in event.wanted.items():
        term.assignments.want(shard, jobs)
    term.hold(now_s + event.hold_s)
    term.settle()
    for record in event.members:
        membership.join(term, record, founding=True)
    return term


def _apply_event(term: Term, event: OwnerEvent) -> None:
    match event:
        case MembersChanged(now_there, hold_s):
            membership.apply_members(term, now_there, hold_s)
        case FromNode(node_id, message):
            _accept_message(term, node_id, message)
        case ShardWanted(shard, jobs):
            _want_shard(term, shard, jobs)
        case RowsMoved(shard, jobs):
            # Without a job: it has been dropped since, and that comes next.
            if jobs and (assignment := term.assignments.get(shard)) is not None and assignment.wanted:
                term.assignments.want(shard, jobs)
        case ShardUnwanted(shard):
            _unwant_shard(term, shard)
        case Recorded(node_id, epoch, number):
            _note_recorded(term, node_id, epoch, number)
        case OverridesChanged() | MoveRequested() | RebalanceRequested():
            _take_orders(term, event)
        case RingBuilt(ring):
            placement.take_ring(term, ring)
        case Tick() | Elected() | Deposed():
            pass
        case _:
            assert_never(event)


def _take_orders(term: Term, event: OverridesChanged | MoveRequested | RebalanceRequested) -> None:
    """Take what operators have requested."""
    match event:
        case OverridesChanged(overrides):
            pinned_before = term.placement.overrides.pins
            term.requested.update((s, n) for s, n in overrides.pins.items() if pinned_before.get(s) != n)
            term.placement = replace(term.placement, overrides=overrides)
            term.changed = True
        case MoveRequested(shard, node_id):
            term.requested[shard] = node_id
            term.changed = True
        case RebalanceRequested():
            placement.rebalance_at(term, term.now_s)


def _want_shard(term: Term, shard: ShardId, jobs: tuple[JobRow, ...]) -> None:
    assignment = term.assignments.want(shard, jobs)
    if assignment.state in HELD:
        membership.order(term, membership.peer_of(term, assignment), shard, is_delete=False)


def _unwant_shard(term: Term, shard: ShardId) -> None:
    assignment = term.assignments.get(shard)
    if assignment is None:
        return
    term.assignments.unwant(assignment)
    if assignment.holder is None:
        term.moving.pop(shard, None)
    if assignment.state in HELD:
        membership.drain(term, assignment)


def _accept_message(term: Term, node_id: str, message: NodeMessage) -> None:
    """The fence: the term, the node's life, and whether its word still counts."""
    peer = term.peers.get(node_id)
    if peer is None or message.owner_rev != term.owner_rev or message.epoch != peer.record.epoch:
        return
    membership.note_heard(term, node_id)
    if not peer.synced and (peer.phase is PeerPhase.REVOKED or not isinstance(message, Sync)):
        return
    peer.heard_s = term.read_s
    match message:
        case Sync():
            _apply_sync(term, peer, message)
        case DispatchTableResponse():
            membership.accept_response(term, peer, message)
        case Checkpoint():
            _accept_checkpoint(term, peer, message)
        case Alive():
            pass
        case _:
            assert_never(message)


def _apply_sync(term: Term, peer: Peer, message: Sync) -> None:
    if message.number > peer.sync_number:
        shards = peer.collect(message)
        if shards is None:
            return
        if membership.refuse_stranger(term, peer, message.wire_format):
            return
        if not peer.synced:
            membership.listen(term, peer)
            term.out.append(Decided(Decision.SYNC, peer.record.node_id, why=f"has {len(shards)} shards"))
            if shards and peer.founding:
                term.settled_at_s = term.now_s  # the cluster runs already: no start is waited for
        peer.take(PeerEvent.SYNC)
        term.changed = True
        membership.reconcile(term, peer, shards)
    _acknowledge(term, peer)


def _accept_checkpoint(term: Term, peer: Peer, message: Checkpoint) -> None:
    if not peer.accept(message, term.read_s):
        _acknowledge(term, peer)
        return
    reports: list[JobReport] = []
    for item in message.shards:
        assignment = term.assignments.get(item.shard)
        if assignment is not None and assignment.holder == peer.holder:
            reports.extend(item.reports)
    history = tuple(entry for item in message.shards for entry in item.history)
    seen = tuple(item.seen for item in message.shards if item.seen is not None)
    record = peer.record
    term.out.append(RecordCheckpoint(record.node_id, record.epoch, message.number, tuple(reports), history, seen))


def _note_recorded(term: Term, node_id: str, epoch: int, number: int) -> None:
    peer = next((life for life in term.lives(node_id) if life.record.epoch == epoch), None)
    if peer is not None and peer.note_recorded(number, term.now_s, term.timeouts.resend_s) and term.current(peer):
        _acknowledge(term, peer)


def _acknowledge(term: Term, peer: Peer) -> None:
    message = Acknowledge(term.owner_rev, peer.record.epoch, peer.sync_number, peer.recorded)
    term.out.append(SendTo(peer.record, message))
