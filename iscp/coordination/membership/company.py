"""Whether the owner hears of anybody: one that reaches etcd and none of several nodes is cut off itself, and resigns.

Its place in the queue for the election is then behind theirs, so that one of them leads. It does so before it gives up
on the nodes, as what they run need not stop. Where no node reaches another each of them is elected in its turn, and the
first that is for the second time within RESIGN_AGAIN_S stays, and runs everything.
"""

from __future__ import annotations

from functools import partial
from math import inf

from iscp.coordination.membership.term import Term
from iscp.coordination.protocol.effects import Decided, Decision, Resign
from iscp.core.values.members import NodeRecord

OTHERS_MIN = 2
"""Of so many other nodes at least one is heard by an owner that is not cut off; of a single one it may be the fault."""

RESIGN_AGAIN_S = 600.0
"""How long after a node has resigned as it heard of nobody it does not do so again."""


def listen_to_any(term: Term, due_s: float = inf) -> None:
    """From now on some other node has to be heard of, where there are several."""
    if term.times.alive_s == inf or term.now_s < term.resigned_s + RESIGN_AGAIN_S:
        return
    if len(term.peers) <= OTHERS_MIN:
        term.heard_s = term.read_s
    deadline_s = term.heard_s + term.times.alone_s
    if term.late_s(due_s):
        again_s = term.now_s + term.times.resend_s
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
    """A node that this owner has not known may not have been heard of yet."""
    if record.node_id not in term.gone:
        note_heard(term, record.node_id)
