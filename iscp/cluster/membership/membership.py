"""The owner and its nodes' lives: having each report what it runs, giving up on one, waiting until it cannot write.

The module also has the snapshots of the registered nodes, and the dispatches to nodes.
"""

from __future__ import annotations

from functools import partial
from math import inf

from iscp.cluster.membership.assignments import HELD, Assignment, Cause, Holder, ShardEvent, ShardState
from iscp.cluster.membership.term import Operation, Peer, PeerEvent, PeerPhase, Term, operations_max
from iscp.model.protocol.events import Decided, Decision, Resign, RevokeLease, SendTo
from iscp.model.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    NodeShard,
    NodeShardState,
)
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import Moment, NodeRecord, ShardId, ttls_fit, understands

# --- an owner that hears of no node -----------------------------------------------------------------------------------
# An owner that reaches etcd and none of several nodes is cut off itself, and resigns. Its place in the queue for the
# election is then behind theirs, so that one of them leads. The owner resigns before it gives up on the nodes, as what
# they run need not stop. If no node reaches another, each of them is elected in its turn, and the first one to be
# elected twice within RESIGN_AGAIN_S stays, and runs everything.

OTHERS_MIN = 2
"""Other nodes from which on an owner that hears of none resigns; a single silent node may itself be the fault."""

RESIGN_AGAIN_S = 600.0
"""Seconds after a node has resigned because it heard of no other, in which it does not do so again."""


def listen_to_any(term: Term, due_s: float = inf) -> None:
    """Require from now on that some other node is heard of, if there are several."""
    if term.timeouts.alive_s == inf or term.now_s < term.resigned_s + RESIGN_AGAIN_S:
        return
    if len(term.peers) <= OTHERS_MIN:
        term.heard_s = term.read_s
    deadline_s = term.heard_s + term.timeouts.alone_s
    if term.late_s(due_s):
        again_s = term.now_s + term.timeouts.resend_s
    elif term.read_s >= deadline_s:
        term.resigned_s = term.now_s
        why = f"hears of none of {len(term.peers) - 1} other nodes for {term.read_s - term.heard_s:.1f} s"
        term.out += [Decided(Decision.RESIGN, term.identity.node_id, why=why), Resign(term.election_revision)]
        return
    else:
        again_s = deadline_s
    term.timers.at(again_s, partial(listen_to_any, term, again_s))


def note_heard(term: Term, node_id: str) -> None:
    if node_id != term.identity.node_id:
        term.heard_s = term.read_s


def note_new(term: Term, record: NodeRecord) -> None:
    """Count a node that is new to this owner as heard: it may have had no time to send anything."""
    if record.node_id not in term.gone:
        note_heard(term, record.node_id)


# --- lives of nodes ---------------------------------------------------------------------------------------------------


def apply_members(term: Term, members: tuple[NodeRecord, ...], hold_s: float) -> None:
    """Apply that these are all the nodes that are registered now; nothing is to be placed for `hold_s`."""
    if hold_s > 0:
        term.hold(term.now_s + hold_s)
    there = {record.node_id: record for record in members}
    for node_id, peer in list(term.peers.items()):
        record = there.get(node_id)
        if record is None or record.epoch != peer.record.epoch:
            _remove_member(term, peer)
        elif peer.record != record:
            reused = peer.record.lease_id != record.lease_id
            peer.record, term.changed = record, True
            if reused:
                _refuse_reused(term, peer)
    for record in members:
        if record.node_id not in term.peers:
            join(term, record, founding=False)


def join(term: Term, record: NodeRecord, *, founding: bool) -> None:
    before = term.gone.get(record.node_id)
    doubted = before is not None and before.phase is PeerPhase.REVOKED
    back = before is not None and before.is_life_of(record) and not before.succeeded
    note_new(term, record)
    reused = not term.is_new_epoch(record) and not back
    if not reused:
        term.gone.pop(record.node_id, None)
    peer = Peer(record, founding, announced_s=term.now_s, doubted=doubted)
    if not founding and not doubted:
        term.settle()
    if before is not None and back:
        # Its key was gone for a while. Its checkpoints go on from where they were, and it reports what it still has.
        peer.accepted, peer.recorded = before.accepted, before.recorded
    term.departed.pop(peer.holder, None)  # also where a restored etcd brings back a life before the last one
    term.peers[record.node_id] = peer
    term.to_await.append(record.node_id)
    if founding:
        term.to_hear.append(record.node_id)
    term.look_round()
    term.out.append(Decided(Decision.JOIN, record.node_id, why=f"epoch {record.epoch} at {record.address}"))
    if not refuse_stranger(term, peer, record.wire_format) and not ttls_fit(record.ttl_s, term.timeouts.lease_ttl_s):
        revoke(term, peer, f"has a lease of {record.ttl_s:g} s, which does not go with {term.timeouts.lease_ttl_s:g} s")
    if reused:
        _refuse_reused(term, peer)
    _urge(term, peer)


def _refuse_reused(term: Term, peer: Peer) -> None:
    """Refuse a node with an epoch of its former life: messages of the two look alike, and dispatches to the former life
    may still arrive. The node registers again, under a higher epoch.
    """
    revoke(term, peer, f"has epoch {peer.record.epoch} of a former life, as etcd was restored from a backup")


def refuse_stranger(term: Term, peer: Peer, wire_format: int) -> bool:
    """Give up on the node if this owner does not understand it, and return whether it was given up."""
    if understands(wire_format, term.identity.wire_format):
        return False
    revoke(term, peer, f"speaks wire format {wire_format}, not {term.identity.wire_format}")
    return True


def revoke(term: Term, peer: Peer, why: str) -> None:
    """Revoke the node's lease, as it cannot be relied on: what it runs must end with its lease."""
    if peer.phase is not PeerPhase.REVOKED:
        peer.take(PeerEvent.REVOKE)
        term.changed = True
        term.out.append(Decided(Decision.REVOKE, peer.record.node_id, why=why))
        _abandon(term, peer)
        _urge(term, peer)


def listen(term: Term, peer: Peer, due_s: float = inf) -> None:
    """Require from now on that the node is heard of: one that is cut off from the owner goes on by itself, and nobody
    knows how.

    Its lease says only that it reaches etcd.
    """
    if not term.current(peer) or peer.phase is PeerPhase.REVOKED or term.timeouts.alive_s == inf:
        return
    # One sum for both, or rounding could have it check again at once, for ever.
    deadline_s = peer.heard_s + term.timeouts.sync_deadline_s
    if term.late_s(due_s):
        again_s = term.now_s + term.timeouts.resend_s
    elif term.read_s >= deadline_s:
        revoke(term, peer, f"was not heard of for {term.read_s - peer.heard_s:.1f} s")
        return
    else:
        again_s = deadline_s
    term.timers.at(again_s, partial(listen, term, peer, again_s))


def _urge(term: Term, peer: Peer, wait_s: float = 0.0, due_s: float = inf) -> None:
    """Request the Sync until it is there or the node's time is up; then have the lease revoked until it is.

    Ever more rarely: each Announce has all of the Sync sent again. `wait_s`: how long it was waited before this one.
    """
    if not term.current(peer) or peer.synced:
        return
    peer.announced_s += (late_s := term.late_s(due_s))
    deadline_s = peer.announced_s + term.timeouts.sync_deadline_s
    if peer.phase is PeerPhase.ANNOUNCED and term.read_s >= deadline_s:
        revoke(term, peer, f"sent no Sync within {term.timeouts.sync_deadline_s:g} s")
        return
    if peer.phase is PeerPhase.ANNOUNCED:
        if late_s:  # the Sync may be there, and only has to be heard
            wait_s = term.timeouts.resend_s
        else:
            of = term.identity
            announce = Announce(of.node_id, term.owner_rev, term.election_revision, of.version, of.wire_format)
            term.out.append(SendTo(peer.record, announce))
            wait_s = term.timeouts.next_resend_s(wait_s or term.timeouts.resend_s)
        again_s = min(term.now_s + wait_s, deadline_s)
    else:
        term.out.append(RevokeLease(peer.record, term.election_revision))
        again_s = term.now_s + term.timeouts.resend_s
    term.timers.at(again_s, partial(_urge, term, peer, wait_s, again_s))


def _abandon(term: Term, peer: Peer) -> None:
    """Expect no answer any more: what the node holds has to drain by itself."""
    term.forget_operations(peer)
    for shard in term.assignments.assigned_to(peer.holder):
        assignment = term.assignments[shard]
        if assignment.state is not ShardState.DRAINING:
            assignment.why = Cause.NODE_GONE
        term.assignments.turn(assignment, ShardEvent.ABANDON)


def _remove_member(term: Term, peer: Peer) -> None:
    """Remove a node whose lease has ended; its shards are free after the grace.

    A lease that ran out was not used for writing since margin before its end. One that was revoked may be, until the
    node notices: for TTL - margin since its last renewal, by the TTL that the node's own lease has.
    """
    grace_s = term.timeouts.margin_s
    if peer.phase is PeerPhase.REVOKED:
        grace_s = term.grace_s(peer.record)
    if peer.founding and peer.sync_number == 0:
        term.hold(term.now_s + grace_s)
    _abandon(term, peer)
    term.changed = True
    term.out.append(Decided(Decision.GONE, peer.record.node_id, why=f"epoch {peer.record.epoch} is over"))
    del term.peers[peer.record.node_id]
    term.gone.setdefault(peer.record.node_id, peer)  # there is one where this life was refused
    if term.assignments.assigned_to(peer.holder) or term.copies.at(peer.holder):
        term.settle()
        term.departed[peer.holder] = term.now_s + grace_s
        term.timers.at(term.now_s + grace_s, partial(_bury, term, peer.holder))


def _bury(term: Term, holder: Holder) -> None:
    # It may have come back meanwhile, or have gone again.
    if term.departed.get(holder, term.now_s + 1) > term.now_s:
        return
    del term.departed[holder]
    if (peer := term.gone.get(holder.node_id)) is not None and peer.holder == holder:
        peer.succeeded = True
    for shard in term.copies.at(holder):
        term.end_copy(shard, holder)
    for shard in list(term.assignments.assigned_to(holder)):
        term.free(term.assignments[shard])


# --- the registered nodes ---------------------------------------------------------------------------------------------


class Roll:
    """The registered nodes, as an owner knows them: the latest of the snapshots that it gets, by whatever way.

    The roll has the `members` as of `moment`.
    """

    def __init__(self) -> None:
        self.members: tuple[NodeRecord, ...] = ()
        self.moment = Moment()
        self._hold_until_s = -inf
        self._gone_at_s = -inf

    def overtaken(self, moment: Moment) -> bool:
        """Return whether a snapshot is older than what is known: nodes that have come since would seem to be gone."""
        return moment < self.moment

    def take(
        self,
        members: tuple[NodeRecord, ...],
        moment: Moment,
        now_s: float,
        margin_s: float,
        ttl_s: float,
        begins: bool = False,
    ) -> float:
        """Take the members, and return for how many seconds nothing may be placed.

        A store that was restored from a backup knows nothing of leases since then, whose nodes may still write: for as
        long as the longest lease of anybody who was or is a member, `ttl_s` at the least, and `margin_s`.

        An owner that `begins` after another waits for `margin_s` since a lease has ended, as one would have that was
        there: it cannot know what that node ran. Nor does it know whose lease had ended right before it first read
        them, or before it read them again after it had lost sight of the store.
        """
        if moment.restores > self.moment.restores:
            ttls_s = (record.ttl_s for record in (*self.members, *members))
            self._hold_until_s = now_s + max(ttl_s, max(ttls_s, default=0.0)) + margin_s
        unseen = self.moment == Moment() or moment.breaks > self.moment.breaks
        if unseen or self._misses_somebody(members):
            self._gone_at_s = now_s
        self.members, self.moment = members, moment
        hold_until_s = max(self._hold_until_s, self._gone_at_s + margin_s if begins else -inf)
        return max(0.0, hold_until_s - now_s)

    def _misses_somebody(self, members: tuple[NodeRecord, ...]) -> bool:
        """Return whether somebody is gone who did not leave in order; a node that left in order has handed over its
        shards.
        """
        there = {(record.node_id, record.epoch) for record in members}
        return any((each.node_id, each.epoch) not in there and not each.leaving for each in self.members)


# --- dispatches -------------------------------------------------------------------------------------------------------
# Dispatches are ordered, sent again until confirmed, bounded in number, and given up with their node. Each is sent
# again ever more rarely, and the first time counts in a window over all nodes that follows what the owner can take in
# (`Window`): what the owner has to read never grows by its own impatience.

TURN_MAX = 32
"""Dispatches sent to a node before those to other nodes are; they travel together."""

FOUND = {
    NodeShardState.ADDING: ShardEvent.FIND_STARTING,
    NodeShardState.RUNNING: ShardEvent.FIND_RUNNING,
    NodeShardState.REMOVING: ShardEvent.FIND_STOPPING,
}


def peer_of(term: Term, assignment: Assignment) -> Peer:
    """Return the node that holds a shard; raises InvariantBroken where it is not there."""
    peer = term.peers.get(assignment.holder.node_id) if assignment.holder else None
    if peer is None or peer.holder != assignment.holder:
        raise InvariantBroken(
            f"shard {assignment.shard} is {assignment.state} at {assignment.holder}, who is not there"
        )
    return peer


def order(term: Term, peer: Peer, shard: ShardId, *, is_delete: bool) -> None:
    """Have `peer` run or stop `shard`, under a new table_epoch; replaces what was on its way."""
    replaced = peer.in_flight.get(shard)
    if replaced is None:
        peer.queue[shard] = is_delete
        term.turns[peer.record.node_id] = None
        return
    # Patience with a node does not start over with each change of a job.
    sent_s = replaced.sent_s if replaced.is_delete == is_delete else term.own_time_s(peer, term.now_s)
    term.expect_no_answer(replaced)
    _begin(term, peer, shard, is_delete, sent_s, replaced.heard_s)


def drain(term: Term, assignment: Assignment) -> None:
    """Have the shard stopped where it is."""
    peer = peer_of(term, assignment)
    term.assignments.turn(assignment, ShardEvent.DRAIN)
    order(term, peer, assignment.shard, is_delete=True)


def send_queued(term: Term) -> None:
    """Send queued dispatches to node after node, as many as may be in flight; none while `listening`: a new owner has
    enough to read.
    """
    if term.listening or not term.turns:
        return
    room, at_node_max = term.window.room, operations_max(len(term.peers))
    while room > 0 and term.turns:
        node_id, _ = term.turns.popitem(last=False)
        peer = term.peers.get(node_id)
        if peer is None:
            continue
        count = min(room, TURN_MAX, at_node_max - len(peer.in_flight), len(peer.queue))
        sent_s = term.own_time_s(peer, term.now_s)
        for _ in range(count):
            shard, is_delete = peer.queue.popitem(last=False)
            _begin(term, peer, shard, is_delete, sent_s, term.now_s)
        room -= max(0, count)
        if peer.queue and len(peer.in_flight) < at_node_max:
            term.turns[node_id] = None


def _begin(term: Term, peer: Peer, shard: ShardId, is_delete: bool, sent_s: float, heard_s: float) -> None:
    operation = Operation(term.next_table_epoch(), is_delete, sent_s, heard_s, term.timeouts.resend_s)
    peer.in_flight[shard] = operation
    term.window.note_sent()
    _send(term, peer, shard, operation)


def _send(term: Term, peer: Peer, shard: ShardId, operation: Operation) -> None:
    jobs = () if operation.is_delete else term.assignments[shard].jobs
    message = DispatchTable(term.owner_rev, peer.record.epoch, operation.table_epoch, shard, operation.is_delete, jobs)
    term.out.append(SendTo(peer.record, message))
    silent_s = operation.heard_s + term.timeouts.sync_deadline_s
    due_s = min(term.now_s + operation.repeat_s, max(silent_s, term.now_s + term.timeouts.resend_s))
    term.timers.at(due_s, partial(_repeat, term, peer, shard, operation, due_s))


def _repeat(term: Term, peer: Peer, shard: ShardId, operation: Operation, due_s: float) -> None:
    if not term.current(peer) or peer.in_flight.get(shard) is not operation:
        return
    term.expect_no_answer(operation)
    late_s = term.late_s(due_s)
    operation.heard_s += late_s
    operation.sent_s += late_s
    silent = term.read_s - operation.heard_s >= term.timeouts.sync_deadline_s
    # A node that waits for its reports to be recorded is not slow: the log is.
    slow = term.own_time_s(peer, term.read_s) - operation.sent_s >= term.timeouts.operation_deadline_s
    if silent or slow:
        revoke(term, peer, f"{'did not answer' if silent else 'took too long'} about shard {shard}")
    else:
        operation.repeat_s = term.timeouts.next_resend_s(operation.repeat_s)
        _send(term, peer, shard, operation)


def accept_response(term: Term, peer: Peer, message: DispatchTableResponse) -> None:
    """Accept the node's response to the operation that is in flight; on any other it is stale."""
    shard, operation = message.shard, peer.in_flight.get(message.shard)
    if operation is None or operation.table_epoch != message.table_epoch:
        return
    operation.heard_s = term.read_s
    if operation.awaited:
        operation.awaited = False
        term.window.note_answered(term.now_s)
    reached = NodeShardState.ABSENT if operation.is_delete else NodeShardState.RUNNING
    if message.state not in (reached, NodeShardState.ABSENT):
        return
    del peer.in_flight[shard]
    if message.state is NodeShardState.ABSENT:
        term.end_copy(shard, peer.holder)
    assignment = term.assignments.get(shard)
    if assignment is not None and assignment.holder == peer.holder:
        if message.state is NodeShardState.ABSENT:
            if not operation.is_delete:
                assignment.why = Cause.STOPPED
            term.free(assignment)
        else:
            term.assignments.turn(assignment, ShardEvent.CONFIRM)
            term.moving.pop(shard, None)
    if peer.queue:
        term.turns[peer.record.node_id] = None


def reconcile(term: Term, peer: Peer, shards: tuple[NodeShard, ...]) -> None:
    """Take over what the node runs, as its earlier owner would have gone on with it.

    The Sync may be older than what the node has answered since. So nothing is freed by it: what it lacks is
    dispatched again to the same node, what is to end is stopped there, and the answer counts. A dispatch that is on its
    way gets a new table_epoch: an answer from before the Sync may still come, and would be taken for one to it.
    """
    before = list(term.assignments.assigned_to(peer.holder))
    for reported in shards:
        _take_over(term, peer, reported)
    there = {reported.shard for reported in shards} if before else set()
    for shard in before:
        assignment = term.assignments[shard]
        if shard not in there and assignment.state in HELD:
            term.assignments.turn(assignment, ShardEvent.MISS)
            order(term, peer, shard, is_delete=False)
            if (operation := peer.in_flight.get(shard)) is not None:
                operation.heard_s = term.read_s
        elif assignment.state is ShardState.DRAINING and peer.ordered(shard) is None:
            order(term, peer, shard, is_delete=True)
    for shard in term.copies.at(peer.holder):
        if peer.ordered(shard) is None:
            order(term, peer, shard, is_delete=True)


def _take_over(term: Term, peer: Peer, reported: NodeShard) -> None:
    assignment = term.assignments.get(reported.shard) or term.assignments.stray(reported.shard)
    if assignment.holder is None:
        event = FOUND[reported.state] if assignment.wanted else ShardEvent.FIND_STOPPING
        term.assignments.take(assignment, peer.holder, event)
        # Also what runs is dispatched again: its rows may have changed while there was no owner.
        order(term, peer, reported.shard, is_delete=assignment.state is ShardState.DRAINING)
    elif assignment.holder != peer.holder:
        term.copies.add(reported.shard, peer.holder)
        order(term, peer, reported.shard, is_delete=True)
    elif reported.state is NodeShardState.REMOVING and assignment.state in HELD:
        drain(term, assignment)
