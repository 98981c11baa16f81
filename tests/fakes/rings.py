"""Rings for owners' machines, as soon as they are requested."""

from __future__ import annotations

from iscp.cluster.membership.assignments import ring_of
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import BuildRing, OwnerEffect, OwnerEvent, RingBuilt


def step_with_rings(
    owner: OwnerMachine, event: OwnerEvent, now_s: float, read_s: float | None = None
) -> list[OwnerEffect]:
    """What the event leads to, and the ring that it makes needed."""
    effects = owner.step(event, now_s, read_s)
    built = [effect for effect in effects if isinstance(effect, BuildRing)]
    others: list[OwnerEffect] = [effect for effect in effects if not isinstance(effect, BuildRing)]
    for each in built:
        others += step_with_rings(owner, RingBuilt(ring_of(each.nodes)), now_s, read_s)
    return others
