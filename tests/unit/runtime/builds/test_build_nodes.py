"""Which nodes may build, by what the owner's machine knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from iscp.core.values.members import BUILDS_WIRE_FORMAT
from iscp.runtime.builds.build_nodes import read_nodes
from iscp.runtime.owner.owner_loop import OwnerLoop
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until


@pytest.fixture
def owner() -> Iterator[OwnerLoop]:
    world = OwnerWorld()
    world.lead()
    yield world.owner
    world.close()


def speak(owner: OwnerLoop, wire_format: int) -> None:
    """As if the node had registered with it."""
    term = owner.machine.term
    assert term is not None
    peer = term.peers["n-1"]
    peer.record = replace(peer.record, wire_format=wire_format)


def test_nodes_that_are_there_may_build(owner: OwnerLoop) -> None:
    until(lambda: owner.query(read_nodes))
    found = owner.query(read_nodes)
    assert found is not None
    assert (set(found.records), found.placed.staying) == ({"n-1"}, frozenset({"n-1"}))


def test_nothing_is_placed_while_a_node_is_there_that_cannot(owner: OwnerLoop) -> None:
    owner.query(lambda loop: speak(loop, BUILDS_WIRE_FORMAT - 1))
    assert owner.query(read_nodes) is None
    owner.query(lambda loop: speak(loop, BUILDS_WIRE_FORMAT))
    assert owner.query(read_nodes) is not None
