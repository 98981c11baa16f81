"""The owner's dispatches: ordered, sent again until confirmed, bounded in number, given up with their node.

Each is sent again ever more rarely, and the first time counts in a window over all nodes that follows what the owner
can take in (`Window`): what it has to read never grows by its own impatience.
"""

from __future__ import annotations

from functools import partial

from iscp.coordination.membership import membership
from iscp.coordination.membership.assignments import HELD, Assignment, Cause, ShardEvent, ShardState
from iscp.coordination.membership.node_session import Operation, Peer, operations_max
from iscp.coordination.membership.term import Term
from iscp.coordination.protocol.effects import SendTo
from iscp.coordination.protocol.messages import DispatchTable, DispatchTableResponse, NodeShard, NodeShardState
from iscp.core.values.errors import InvariantBroken
from iscp.core.values.ids import ShardId

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
        membership.revoke(term, peer, f"{'did not answer' if silent else 'took too long'} about shard {shard}")
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
