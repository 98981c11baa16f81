"""Shards leave a node that stops in order, at once, and one that is drained by its operator, some at a time."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.coordination.membership.assignments import Cause
from iscp.coordination.membership.term import Move, Term


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
