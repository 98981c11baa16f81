"""A shard that nobody holds goes where it was sent, else where it is pinned, else where the ring says."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Cause
from iscp.coordination.membership.term import Move, Term

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
