"""The state of one owner's term, which the owner's modules share. A new term begins with a new one.

The parts of that state are what the owner knows of each node, the window of dispatches, and timers.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from iscp.cluster.membership.assignments import Assignment, Assignments, Cause, Holder, SecondCopies
from iscp.model.protocol.events import CoordinationTimes, OwnerEffect
from iscp.model.protocol.messages import Checkpoint, NodeShard, Sync
from iscp.model.values.ids import WIRE_FORMAT, NodeRecord, ShardId, TableEpoch
from iscp.model.values.ring import Placement
from iscp.model.values.state_table import StateTable

# --- nodes in the owner's eyes ----------------------------------------------------------------------------------------

OPERATIONS_IN_FLIGHT_MAX = 500
"""Dispatches sent to one node and not yet confirmed; the others queue at the owner."""

OPERATIONS_OF_ALL_MAX = 10_000
"""Dispatches not yet confirmed that all nodes share evenly, as each is repeated until it is; the others queue at the
owner.
"""

OPERATIONS_IN_FLIGHT_MIN = 10
"""Dispatches that a node may have unconfirmed however many nodes share OPERATIONS_OF_ALL_MAX."""


def operations_max(nodes: int) -> int:
    """Return how many dispatches each of so many nodes may have in flight."""
    return max(OPERATIONS_IN_FLIGHT_MIN, min(OPERATIONS_IN_FLIGHT_MAX, OPERATIONS_OF_ALL_MAX // max(1, nodes)))


# state diagram of PEER_PHASES
#
#   announced | synced  ── Sync ────────▶  synced
#   announced | synced  ── given up on ─▶  revoked


class PeerPhase(StrEnum):
    """`announced`: its Sync is awaited. `revoked`: it is condemned, nothing it says counts any more."""

    ANNOUNCED = "announced"
    SYNCED = "synced"
    REVOKED = "revoked"


class PeerEvent(StrEnum):
    """A `PeerEvent` changes a node's phase. The end of its lease ends the life, in any phase."""

    SYNC = "Sync"
    REVOKE = "given up on"


PEER_PHASES: StateTable[PeerPhase, PeerEvent] = StateTable(
    {
        PeerEvent.SYNC: {PeerPhase.ANNOUNCED: PeerPhase.SYNCED, PeerPhase.SYNCED: PeerPhase.SYNCED},
        PeerEvent.REVOKE: {PeerPhase.ANNOUNCED: PeerPhase.REVOKED, PeerPhase.SYNCED: PeerPhase.REVOKED},
    }
)


@dataclass(slots=True)
class Operation:
    """A dispatch that was sent, until it is confirmed; times are the machine's: first sent (in the node's
    own time), last heard of.

    `repeat_s`: how long it is waited before it is sent again. `awaited`: whether it counts in the window.
    """

    table_epoch: TableEpoch
    is_delete: bool
    sent_s: float
    heard_s: float
    repeat_s: float
    awaited: bool = True


@dataclass(slots=True)
class Peer:
    """One node in the owner's eyes: how far they know each other, and what is on its way to the node.

    `queue` says of the shards that wait for their dispatch whether it is a delete; it is taken from its front (which in
    a plain dict costs ever more).

    Invariants: a shard has at most one operation, queued or in flight; recorded <= accepted. `heard_s`: when it was
    last heard of, once it has synced. `founding`: it was registered when the term began, so that it may run anything
    until it has synced. `doubted`: its life before was given up on in this term. `succeeded`: its lease ended, and
    others may have been given what it ran. `waited_s`: how long it has waited, in all, for its reports to be recorded
    where that took long.
    """

    record: NodeRecord
    founding: bool
    announced_s: float
    doubted: bool = False
    succeeded: bool = False
    phase: PeerPhase = PeerPhase.ANNOUNCED
    queue: OrderedDict[ShardId, bool] = field(default_factory=OrderedDict)
    in_flight: dict[ShardId, Operation] = field(default_factory=dict)
    heard_s: float = 0.0
    version: str = ""
    sync_number: int = 0
    accepted: int = 0
    recorded: int = 0
    waited_s: float = 0.0
    _unrecorded_s: float = 0.0
    _parts: dict[int, Sync] = field(default_factory=dict)

    def take(self, event: PeerEvent) -> None:
        """Raises InvariantBroken where it must not come in this phase."""
        self.phase = PEER_PHASES.after(self.phase, event, self.record.node_id)

    @property
    def holder(self) -> Holder:
        return Holder(self.record.node_id, self.record.epoch)

    def is_life_of(self, record: NodeRecord) -> bool:
        """Return whether the record is of this very life: a restored etcd can give an epoch twice, never a lease."""
        return (self.record.epoch, self.record.lease_id) == (record.epoch, record.lease_id)

    @property
    def synced(self) -> bool:
        return self.phase is PeerPhase.SYNCED

    @property
    def unknown(self) -> bool:
        """Return whether the node may run shards that the owner has not heard of."""
        return self.sync_number == 0 and (self.phase is PeerPhase.ANNOUNCED or self.founding)

    @property
    def awaited(self) -> bool:
        """Return whether nothing may be placed before its Sync.

        Nodes that nobody can reach register again and again: two alternating ones would delay all others for ever. A
        life that began in this term runs only what this owner has dispatched to it.
        """
        return self.unknown and not self.doubted

    def ordered(self, shard: ShardId) -> bool | None:
        """Return whether the operation on the shard, on its way or waiting, is a delete; None if there is none."""
        operation = self.in_flight.get(shard)
        return self.queue.get(shard) if operation is None else operation.is_delete

    def collect(self, message: Sync) -> tuple[NodeShard, ...] | None:
        """Return all shards of a Sync once its last part is there; None before."""
        parts = self._parts
        if parts and next(iter(parts.values())).number != message.number:
            if next(iter(parts.values())).number > message.number:
                return None
            parts.clear()
        parts[message.part] = message
        if len(parts) < message.parts:
            return None
        shards = tuple(shard for part in sorted(parts) for shard in parts[part].shards)
        parts.clear()
        if self.sync_number == 0:
            self.accepted = max(self.accepted, message.recorded)
            self.recorded = max(self.recorded, message.recorded)
        self.sync_number, self.version = message.number, message.version
        return shards

    def accept(self, message: Checkpoint, came_s: float) -> bool:
        """Return whether this is the next checkpoint; any other is a duplicate, or too early and will be sent again."""
        if message.number != self.accepted + 1:
            return False
        if self.accepted == self.recorded:
            self._unrecorded_s = came_s
        self.accepted = message.number
        return True

    def note_recorded(self, number: int, now_s: float, long_s: float) -> bool:
        """Note that all up to `number` is recorded, and return whether that is news. `long_s` as in `own_time_s`."""
        if not self.recorded < number <= self.accepted:
            return False
        self.waited_s += self._waits_s(now_s, long_s)
        self.recorded, self._unrecorded_s = number, now_s
        return True

    def own_time_s(self, at_s: float, long_s: float) -> float:
        """Return the time `at_s` on a clock that stands still while the node waits for its reports to be recorded.

        Until they are it cannot say that it has stopped. Waits of up to `long_s` are its own, as every commit takes
        some time: a node that always reports something has to stop in time too.
        """
        return at_s - self.waited_s - self._waits_s(at_s, long_s)

    def _waits_s(self, at_s: float, long_s: float) -> float:
        waits_s = at_s - self._unrecorded_s if self.recorded < self.accepted else 0.0
        return waits_s if waits_s > long_s else 0.0


# --- the window of dispatches -----------------------------------------------------------------------------------------
# The window limits how many dispatches the owner has outstanding at a time, over all nodes. The answers come to one
# thread. Requests beyond what the thread can take in wait unread, seem unanswered, are sent again, and make the backlog
# longer: congestion. So what may be outstanding follows from what was taken in lately, so that the time from a dispatch
# to its answer stays near one span however fast the owner is (Little's law, after TCP Vegas).

AWAITED_MIN = 256
"""Dispatches that may await their first answer even where none were answered lately; others wait."""

AWAITED_MAX = 8_192
"""Dispatches over all nodes that may await their first answer, however many were answered lately; others wait."""

REFILL = 4
"""Dispatches are sent when one in so many places of the window is free: what goes to one node then travels together."""


@dataclass(slots=True)
class Window:
    """The window of dispatches. `awaited` counts those that were sent once and not answered yet. `size` is how many
    there may be: as many as were answered in the last span of `span_s`, within the two limits.

    A dispatch that a node leaves unanswered until it is sent again is `lost`, and does not count any more: a silent
    node must not delay the others' dispatches.
    """

    span_s: float
    size: int = AWAITED_MIN
    awaited: int = 0
    _answered: int = 0
    _since_s: float = 0.0

    @property
    def room(self) -> int:
        """Return how many may be sent now; 0 until there is room for several."""
        free = self.size - self.awaited
        return free if free * REFILL >= self.size else 0

    def note_sent(self) -> None:
        self.awaited += 1

    def note_lost(self) -> None:
        self.awaited -= 1

    def note_answered(self, now_s: float) -> None:
        self.awaited -= 1
        self._answered += 1
        passed_s = now_s - self._since_s
        if passed_s >= self.span_s:
            self.size = min(max(int(self._answered * self.span_s / passed_s), AWAITED_MIN), AWAITED_MAX)
            self._answered, self._since_s = 0, now_s


# --- timers -----------------------------------------------------------------------------------------------------------


def wake() -> None:
    """Do nothing, for a time at which the machine only has to step."""


class Timers:
    """The things that a machine has to check again, and when: actions by due time, then in the order they were set.

    They are in a heap, so that what is idle costs nothing. None can be cancelled: each checks whether it still counts.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (due_s, self._serial, action))

    def next_due_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> Iterator[Callable[[], None]]:
        """Take out what is due, one by one; what is set meanwhile for now is among it."""
        while self._heap and self._heap[0][0] <= now_s:
            yield heapq.heappop(self._heap)[2]


# --- the term ---------------------------------------------------------------------------------------------------------

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
