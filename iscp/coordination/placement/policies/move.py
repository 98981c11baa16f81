"""A shard goes where an operator has requested it. It is not pinned there."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Cause
from iscp.coordination.membership.term import Move, Term


def move(term: Term) -> Iterator[Move | None]:
    """The moves requested and not yet begun, in that order."""
    for shard, to in list(term.requested.items()):
        yield Move(shard, to, Cause.REQUESTED)
