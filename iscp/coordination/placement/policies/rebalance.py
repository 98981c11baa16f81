"""Shards go to their preferred nodes: where they are pinned, else where the ring says, once the members have settled.

The ring is consistent and even, so that a node that joins gets its share and no shard moves between the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Cause
from iscp.coordination.membership.term import Move, Term

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
