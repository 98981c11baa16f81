"""The nodes that may build, as the owner's machine knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.coordination.builds.builder_events import NodesPlaced
from iscp.coordination.membership.node_session import PeerPhase
from iscp.core.values.members import BUILDS_WIRE_FORMAT, NodeRecord
from iscp.runtime.owner.owner_loop import OwnerLoop


@dataclass(slots=True)
class BuildNodes:
    """The nodes of builds. `placed` is None until it is known."""

    records: Mapping[str, NodeRecord] = field(default_factory=dict)
    placed: NodesPlaced | None = None


@dataclass(frozen=True, slots=True)
class FoundNodes:
    records: Mapping[str, NodeRecord]
    placed: NodesPlaced


def read_nodes(loop: OwnerLoop) -> FoundNodes | None:
    """Return the nodes, on the owner's loop; None while nothing is placed, as members are changing or the ring is being
    made, or while there is a node of a release that builds no ranges.
    """
    term = loop.machine.term
    if term is None or term.placement.ring is None or not term.placing:
        return None
    if any(peer.record.wire_format < BUILDS_WIRE_FORMAT for peer in term.peers.values()):
        return None
    there = {node_id: peer.record for node_id, peer in term.peers.items() if peer.phase is not PeerPhase.REVOKED}
    draining = term.placement.overrides.draining
    staying = {node_id for node_id, record in there.items() if not record.leaving and node_id not in draining}
    return FoundNodes(there, NodesPlaced(term.placement, frozenset(staying) | term.placement.eligible))
