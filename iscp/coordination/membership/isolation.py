"""Decide whether the owner hears of any node: one that reaches etcd and none of several nodes is cut off itself, and
resigns.

Its place in the queue for the election is then behind theirs, so that one of them leads. The owner resigns before it
gives up on the nodes, as what they run need not stop. If no node reaches another, each of them is elected in its turn,
and the first one to be elected twice within RESIGN_AGAIN_S stays, and runs everything.
"""

from __future__ import annotations

from functools import partial
from math import inf

from iscp.coordination.membership.term import Term
from iscp.coordination.protocol.effects import Decided, Decision, Resign
from iscp.core.values.members import NodeRecord

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
