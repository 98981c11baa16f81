"""What moves, and how much of it at a time: carries out what the policies want.

A move is a drain, a wait for the node's word, and a dispatch. Policies are asked anew when the members, or what
operators have said, have changed, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from iscp.coordination import operations
from iscp.coordination.assignment import HELD, Cause, ShardState
from iscp.coordination.effects import Decided, Decision
from iscp.coordination.policies.basic import basic
from iscp.coordination.policies.drain import drain
from iscp.coordination.policies.move import move
from iscp.coordination.policies.rebalance import rebalance
from iscp.coordination.term import Move, Term
from iscp.coordination.timers import wake
from iscp.core.cluster import RANGES_WIRE_FORMAT

MOVES_MAX = 16
"""Shards on their way from one node to another at a time; a node that leaves gives up all of its own at once."""


def reconsider(term: Term) -> None:
    """Members, or what is wanted of them, have changed: ask the policies anew."""
    term.look_round()
    for peer in term.peers.values():
        operations.send_queued(term, peer)  # what waited until all were heard
    before = term.placement
    term.placement = replace(before, eligible=eligible(term))
    if term.placement.eligible != before.eligible:
        rebalance_at(term, term.now_s + term.times.rebalance_after_s)
    term.plan = _policies(term)


def rebalance_at(term: Term, at_s: float) -> None:
    """Bring home what is elsewhere, from `at_s` on; puts off what was to be done so before."""
    term.rebalance_at_s, term.rebalancing = at_s, False
    term.timers.at(at_s, partial(_rebalance, term, at_s))


def _rebalance(term: Term, at_s: float) -> None:
    if term.rebalance_at_s == at_s:
        term.rebalance_at_s, term.rebalancing = None, True
        term.plan = _policies(term)


def eligible(term: Term) -> frozenset[str]:
    """Who may take shards. Where all others are gone, also the nodes that were to have none (tiflow#6112)."""
    oldest = RANGES_WIRE_FORMAT if term.assignments.split_tables else 0
    peers = [each for each in term.peers.values() if each.synced and each.record.wire_format >= oldest]
    staying = {each.record.node_id for each in peers if not each.record.leaving}
    return frozenset(staying - term.placement.overrides.closed or staying)


def place(term: Term) -> None:
    """Dispatch what nobody holds, if it is safe to."""
    if not term.assignments.unplaced or not term.placement.eligible or not term.placing:
        return
    for each in basic(term):
        if each is not None and term.in_the_way(each.shard) is None:
            assignment, peer = term.assignments[each.shard], term.peers[each.to]
            term.assignments.take(assignment, peer.holder, ShardState.DISPATCHING)
            term.out.append(Decided(Decision.DISPATCH, each.to, each.shard, each.why))
            operations.order(term, peer, each.shard, is_delete=False)


def carry_on(term: Term) -> None:
    """Begin the next moves, as many as there may be."""
    while term.plan is not None and term.placing:
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
    """Have the shard stopped, unless things have changed since the policy looked."""
    term.asked.pop(each.shard, None)
    assignment = term.assignments.get(each.shard)
    if assignment is None or not assignment.wanted:
        return
    if assignment.holder is None or assignment.state not in HELD:
        if each.why is Cause.ASKED:  # it is being stopped already, or waits: it goes there once it may
            assignment.to, assignment.why = each.to, each.why
        return
    if each.to == assignment.holder.node_id or (each.to and each.to not in term.placement.eligible):
        return
    assignment.to, assignment.why = each.to, each.why
    if not each.urgent:
        term.moving[each.shard] = None
    term.out.append(Decided(Decision.DRAIN, assignment.holder.node_id, each.shard, each.why))
    operations.drain(term, assignment)
