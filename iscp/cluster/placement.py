"""Decide where shards are to be: what moves, and how much of it at a time.

A policy has the signature `policy(term) -> Iterator[Move | None]` and only reads. None stands for "nothing yet": the
caller may do something else before it goes on. The planner carries out what the policies want (after TiCDC's
schedulers). A move is a drain, a wait for the node's answer, and a dispatch. Policies are evaluated again only when the
members, or what operators have requested, have changed.

A shard that nobody holds goes where it was sent, else where it is pinned, else where the ring says. Shards leave a node
that stops in order at once, and one that is drained by its operator some at a time. A shard that an operator has moved
is not pinned there. Once the members have settled, shards go to their preferred nodes: where they are pinned, else
where the ring says. The ring is consistent and even, so that a node that joins gets its share and no shard moves
between the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from iscp.cluster.membership import membership
from iscp.cluster.membership.assignments import HELD, Cause, ShardEvent
from iscp.cluster.membership.term import Move, Term, wake
from iscp.model.protocol.events import BuildRing, Decided, Decision
from iscp.model.values.ring import Ring

PLACED_AT_ONCE = 2_000
"""Shards placed in one step; the owner goes on with the others after what has come in."""


def basic(term: Term) -> Iterator[Move | None]:
    """Return every unplaced shard; the placement says what to do with those that no node may take."""
    unplaced = term.assignments.unplaced
    for number, shard in enumerate(list(unplaced), start=1):
        if shard in unplaced:
            assignment = term.assignments[shard]
            to = assignment.to if assignment.to in term.placement.eligible else term.placement.target(shard)
            yield Move(shard, to, assignment.why or Cause.NEW)
        if number % PLACED_AT_ONCE == 0:
            yield None


def drain(term: Term) -> Iterator[Move | None]:
    """Yield moves of what draining and leaving nodes have; from a drained one only if another node may take it."""
    for peer in list(term.peers.values()):
        if peer.record.leaving:
            for shard in list(term.assignments.assigned_to(peer.holder)):
                yield Move(shard, "", Cause.LEAVING, urgent=True)
    for node_id in sorted(term.placement.overrides.draining):
        drained = term.peers.get(node_id)
        if drained is not None and node_id not in term.placement.eligible:
            for shard in list(term.assignments.assigned_to(drained.holder)):
                yield Move(shard, "", Cause.DRAINED)


def move(term: Term) -> Iterator[Move | None]:
    """Return the moves requested and not yet begun, in that order."""
    for shard, to in list(term.requested.items()):
        yield Move(shard, to, Cause.REQUESTED)


LOOKED_AT_ONCE = 2_000
"""Shards that a rebalance considers in one step; the owner goes on with the others after what has come in."""


def rebalance(term: Term) -> Iterator[Move | None]:
    """Yield a move for every shard that is assigned elsewhere than it should be."""
    for number, assignment in enumerate(list(term.assignments), start=1):
        if assignment.holder is not None and assignment.wanted:
            to = term.placement.target(assignment.shard)
            if to and to != assignment.holder.node_id:
                yield Move(assignment.shard, to, Cause.REBALANCED)
        if number % LOOKED_AT_ONCE == 0:
            yield None


MOVES_MAX = 16
"""Shards that move between nodes at a time; the others wait. A node that leaves gives up all of its own at once."""


def reconsider(term: Term) -> None:
    """Members, or what is wanted of them, have changed: evaluate the policies again."""
    before = term.placement
    term.placement = replace(before, eligible=eligible(term))
    if term.placement.eligible != before.eligible:
        term.placement, term.ring_requested = replace(term.placement, ring=None), None
        rebalance_at(term, term.now_s + term.timeouts.rebalance_after_s)
    term.plan = _policies(term)


def take_ring(term: Term, ring: Ring) -> None:
    """Unless the nodes have changed since it was requested."""
    if ring.node_ids == tuple(sorted(term.placement.eligible)):
        term.placement = replace(term.placement, ring=ring)


def _knows_where(term: Term) -> bool:
    """Return whether there is a ring to place by, which is requested when it is needed: nodes are heard one after the
    other.
    """
    placement = term.placement
    if placement.ring is None and term.ring_requested != placement.eligible:
        term.ring_requested = placement.eligible
        term.out.append(BuildRing(placement.eligible))
    return placement.ring is not None


def rebalance_at(term: Term, at_s: float) -> None:
    """Move shards to their preferred nodes from `at_s` on; replaces an earlier time."""
    term.rebalance_at_s, term.rebalancing = at_s, False
    term.timers.at(at_s, partial(_rebalance, term, at_s))


def _rebalance(term: Term, at_s: float) -> None:
    if term.rebalance_at_s == at_s:
        term.rebalance_at_s, term.rebalancing = None, True
        term.plan = _policies(term)


def eligible(term: Term) -> frozenset[str]:
    """Return the nodes that may take shards. If all others are gone, they include the nodes that were to have none
    (tiflow#6112).
    """
    records = [each.record for each in term.peers.values() if each.synced]
    staying = {each.node_id for each in records if not each.leaving}
    return frozenset(staying - term.placement.overrides.closed or staying)


def place(term: Term) -> None:
    """Dispatch what nobody holds, if it is safe to; of very much some, and then the owner does something else."""
    if not term.assignments.unplaced or not term.placement.eligible or not term.placing or not _knows_where(term):
        return
    term.unplaced = term.unplaced or basic(term)
    for each in term.unplaced:
        if each is None:
            term.timers.at(term.now_s, wake)
            return
        if term.in_the_way(each.shard) is not None:
            term.assignments.block(each.shard)
        else:
            assignment, peer = term.assignments[each.shard], term.peers[each.to]
            term.assignments.take(assignment, peer.holder, ShardEvent.DISPATCH)
            term.out.append(Decided(Decision.DISPATCH, each.to, each.shard, each.why))
            membership.order(term, peer, each.shard, is_delete=False)
    term.unplaced = None


def carry_on(term: Term) -> None:
    """Begin the next moves, as many as there may be."""
    while term.plan is not None and term.placing and (not term.placement.eligible or _knows_where(term)):
        if term.next_move is None:
            try:
                term.next_move = next(term.plan)
            except StopIteration:
                term.plan, term.rebalancing = None, False
                return
            if term.next_move is None:
                term.timers.at(term.now_s, wake)
                return
        if len(term.moving) >= MOVES_MAX and not term.next_move.urgent:
            return
        each, term.next_move = term.next_move, None
        _begin(term, each)


def _policies(term: Term) -> Iterator[Move | None]:
    term.next_move = None
    return chain(drain(term), move(term), rebalance(term) if term.rebalancing else ())


def _begin(term: Term, each: Move) -> None:
    """Have the shard stopped, unless things have changed since the policy decided."""
    term.requested.pop(each.shard, None)
    assignment = term.assignments.get(each.shard)
    if assignment is None or not assignment.wanted:
        return
    if assignment.holder is None or assignment.state not in HELD:
        if each.why is Cause.REQUESTED:  # it is being stopped already, or waits: it goes there once it may
            assignment.to, assignment.why = each.to, each.why
        return
    if each.to == assignment.holder.node_id or (each.to and each.to not in term.placement.eligible):
        return
    assignment.to, assignment.why = each.to, each.why
    if not each.urgent:
        term.moving[each.shard] = None
    term.out.append(Decided(Decision.DRAIN, assignment.holder.node_id, each.shard, each.why))
    membership.drain(term, assignment)
