"""The owner and its nodes' lives: having each report what it runs, giving up on one, waiting until it cannot write."""

from __future__ import annotations

from functools import partial
from math import inf

from iscp.coordination.membership.assignments import Cause, Holder, ShardEvent, ShardState
from iscp.coordination.membership.isolation import note_new
from iscp.coordination.membership.node_session import Peer, PeerEvent, PeerPhase
from iscp.coordination.membership.term import Term
from iscp.coordination.protocol.effects import Decided, Decision, RevokeLease, SendTo
from iscp.coordination.protocol.messages import Announce
from iscp.core.values.members import NodeRecord, ttls_fit, understands


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
