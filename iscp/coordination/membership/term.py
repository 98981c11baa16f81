"""The state of one owner's term, which the owner's modules share. A new term begins with a new one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from iscp.coordination.membership.assignments import Assignment, Assignments, Cause, Holder
from iscp.coordination.membership.dispatch_window import Window
from iscp.coordination.membership.node_session import Operation, Peer
from iscp.coordination.membership.preferred_nodes import Placement
from iscp.coordination.membership.second_copies import SecondCopies
from iscp.coordination.membership.timers import Timers, wake
from iscp.coordination.protocol.effects import OwnerEffect
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.core.values.ids import ShardId, TableEpoch
from iscp.core.values.members import WIRE_FORMAT, NodeRecord

EPOCHS_MAX = 1_000
"""Epochs of one node that are remembered, so that one which a restored etcd gives again is noticed; the oldest are
forgotten.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A shard that should be elsewhere: at `to`, or (empty) wherever it belongs once it is free.

    `urgent`: it does not wait until others have moved.
    """

    shard: ShardId
    to: str
    why: Cause
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class OwnerIdentity:
    """The identity of the owner, and the wire format that it understands."""

    node_id: str
    version: str
    wire_format: int = WIRE_FORMAT


@dataclass(slots=True)
class Term:
    """The owner's term. `out` gathers the effects of the step at `now_s`; all that came in before `read_s` has been
    read.

    `departed`: nodes that are gone and still hold shards, until their grace is over (at that time). `gone`: the last
    life that counted of each node that has none now. `epochs`: those that nodes have had in this term.

    Nothing is placed before `hold_until_s` (a lost node may still write) and `settled_at_s` (members are changing).
    `awaiting`: nothing is placed, as some node has yet to say what it runs. `listening`: so has one that was there when
    the term began; nothing is sent to any node until all of those are heard. `to_await`, `to_hear`: the nodes that may
    be the reason for either, in the order in which they came. `ring_requested`: the nodes whose ring is being built;
    nor is anything placed before it is. `unplaced`: what is left of a pass over all that nobody holds.

    `heard_s`: when any other node was heard of; `resigned_s`: when this node last resigned as none was.

    `turns`: the nodes with queued dispatches that may be sent, in the order in which they are served. `requested`:
    moves that operators requested, and where to. `plan`: what is to move, as the policies yield it, with `next_move`
    taken from it already; `moving`: what has been begun of it and does not run elsewhere yet.
    """

    identity: OwnerIdentity
    timeouts: CoordinationTimes
    owner_rev: int
    election_revision: int
    now_s: float
    read_s: float
    window: Window
    out: list[OwnerEffect] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    assignments: Assignments = field(default_factory=Assignments)
    departed: dict[Holder, float] = field(default_factory=dict)
    copies: SecondCopies = field(default_factory=SecondCopies)
    gone: dict[str, Peer] = field(default_factory=dict)
    epochs: dict[str, dict[int, None]] = field(default_factory=dict)
    turns: OrderedDict[str, None] = field(default_factory=OrderedDict)
    timers: Timers = field(default_factory=Timers)
    placement: Placement = field(default_factory=Placement)
    requested: OrderedDict[ShardId, str] = field(default_factory=OrderedDict)
    ring_requested: frozenset[str] | None = None
    unplaced: Iterator[Move | None] | None = None
    plan: Iterator[Move | None] | None = None
    next_move: Move | None = None
    moving: dict[ShardId, None] = field(default_factory=dict)
    changed: bool = False
    awaiting: bool = False
    listening: bool = False
    to_await: deque[str] = field(default_factory=deque)
    to_hear: deque[str] = field(default_factory=deque)
    rebalancing: bool = False
    rebalance_at_s: float | None = None
    counter: int = 0
    hold_until_s: float = 0.0
    settled_at_s: float = 0.0
    heard_s: float = 0.0
    resigned_s: float = -inf

    def is_new_epoch(self, record: NodeRecord) -> bool:
        """Return whether the node has not had this epoch in this term before, as far as that is remembered."""
        epochs = self.epochs.setdefault(record.node_id, {})
        if record.epoch in epochs:
            return False
        epochs[record.epoch] = None
        if len(epochs) > EPOCHS_MAX:
            del epochs[next(iter(epochs))]
        return True

    def lives(self, node_id: str) -> Iterator[Peer]:
        """Return what is known of the node's lives: the present one and the last that is gone."""
        return (peer for lives in (self.peers, self.gone) if (peer := lives.get(node_id)) is not None)

    def current(self, peer: Peer) -> bool:
        """Return whether this is still the node's life that the members know."""
        return self.peers.get(peer.record.node_id) is peer

    def look_round(self) -> None:
        """Find out whether a Sync is missing, after a node has come, has gone or has been heard.

        A node that is no longer awaited never is again in that life: each is passed over once, however many there are.
        """
        while self.to_await and not self._is_awaited(self.to_await[0]):
            self.to_await.popleft()
        while self.to_hear and not self._is_unheard_founder(self.to_hear[0]):
            self.to_hear.popleft()
        self.awaiting, self.listening = bool(self.to_await), bool(self.to_hear)

    def _is_awaited(self, node_id: str) -> bool:
        return (peer := self.peers.get(node_id)) is not None and peer.awaited

    def _is_unheard_founder(self, node_id: str) -> bool:
        return (peer := self.peers.get(node_id)) is not None and peer.unknown and peer.founding

    def late_s(self, due_s: float) -> float:
        """Return how long the owner itself stood still when something was due, in seconds; 0 if that is not much.

        Messages of that time may not have come in yet, so that no node is to be blamed for it. If the owner only has
        much to read, `read_s` stands still instead, and nothing is due.
        """
        late_s = self.read_s - due_s
        return late_s if late_s > self.timeouts.resend_s else 0.0

    def forget_operations(self, peer: Peer) -> None:
        """Expect no answer of the node any more."""
        for operation in peer.in_flight.values():
            self.expect_no_answer(operation)
        peer.queue.clear()
        peer.in_flight.clear()

    def expect_no_answer(self, operation: Operation) -> None:
        """Expect no answer to the operation: it was answered long ago, or is not waited for any more, or will be sent
        again.
        """
        if operation.awaited:
            operation.awaited = False
            self.window.note_lost()

    def own_time_s(self, peer: Peer, at_s: float) -> float:
        """Return the time that the node has to answer for."""
        return peer.own_time_s(at_s, self.timeouts.resend_s)

    def grace_s(self, record: NodeRecord) -> float:
        """Return for how long a node may still write whose lease another has ended: by the TTL of its own lease."""
        return (record.ttl_s or self.timeouts.lease_ttl_s) + self.timeouts.margin_s

    def next_table_epoch(self) -> TableEpoch:
        self.counter += 1
        return TableEpoch(self.owner_rev, self.counter)

    def hold(self, until_s: float) -> None:
        """Place nothing before `until_s`."""
        if until_s > self.hold_until_s:
            self.hold_until_s = until_s
            self.timers.at(until_s, wake)

    def free(self, assignment: Assignment) -> None:
        """Free the assignment from its holder: the shard may be placed again, or is forgotten."""
        self.assignments.free(assignment)
        if not assignment.wanted:
            self.moving.pop(assignment.shard, None)

    def in_the_way(self, shard: ShardId) -> ShardId | None:
        """Return what some node still has of the shard's keys (a second copy, or what a split or a merge has made of
        it), or None.
        """
        return self.copies.in_the_way(shard) or self.assignments.in_the_way(shard)

    def end_copy(self, shard: ShardId, holder: Holder) -> None:
        if self.copies.end(shard, holder):
            self.assignments.unblock(shard.table_id)

    def settle(self) -> None:
        """Take further changes of the members together with this one. They do not prolong the window."""
        if self.now_s >= self.settled_at_s:
            self.settled_at_s = self.now_s + self.timeouts.settle_s
            self.timers.at(self.settled_at_s, wake)

    @property
    def placing(self) -> bool:
        """Return whether shards without a holder may be dispatched now, if it is known where to."""
        return not self.awaiting and self.now_s >= max(self.hold_until_s, self.settled_at_s)
