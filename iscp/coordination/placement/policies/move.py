"""Move a shard where an operator has requested it. The shard is not pinned there."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Cause
from iscp.coordination.membership.term import Move, Term


def move(term: Term) -> Iterator[Move | None]:
    """Return the moves requested and not yet begun, in that order."""
    for shard, to in list(term.requested.items()):
        yield Move(shard, to, Cause.REQUESTED)
