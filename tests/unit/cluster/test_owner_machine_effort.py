"""What the owner's machine does for a table does not grow with the number of tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.cluster.membership.assignments import ShardState
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.protocol.events import CoordinationTimes, Elected, FromNode
from iscp.model.protocol.messages import NodeShard, NodeShardState, Sync
from iscp.model.values.ids import NodeRecord, TableEpoch
from tests.fakes.busy_owner import BusyOwner, Costs, tables
from tests.fakes.effort import CountedOwner
from tests.fakes.prompt_nodes import EPOCH, node_records

NODES, FEW, MANY = 6, 120, 960
GROWTH_MAX = 1.15
"""Queues and windows are fuller where there is more; a pass over all tables for each would be a growth of 8."""

TIMES = CoordinationTimes()
LATE = NodeRecord("late", EPOCH, "late:1")


def counted(machine: OwnerMachine) -> int:
    assert isinstance(machine, CountedOwner)
    return machine.effort.lines


def settled_world(count: int) -> BusyOwner:
    world = BusyOwner(CountedOwner("n-0", "v", TIMES), node_records(NODES), TIMES, Costs())
    world.elect(tables(count))
    world.run_until(settled, within_s=60.0)
    return world


def settled(machine: OwnerMachine) -> bool:
    return bool(machine.assignments) and machine.settled


def settle(count: int) -> int:
    return counted(settled_world(count).machine)


def lose_a_node(count: int) -> int:
    world = settled_world(count)
    before = counted(world.machine)
    world.change_nodes(world.nodes[:-1])
    world.run_until(lambda machine: not settled(machine), within_s=60.0)
    world.run_until(settled, within_s=60.0)
    return counted(world.machine) - before


def rebalance_to_a_new_node(count: int) -> int:
    world = settled_world(count)
    before = counted(world.machine)
    world.change_nodes((*world.nodes, LATE))
    world.run_until(lambda machine: not machine.settled, within_s=60.0)
    world.run_until(lambda machine: machine.settled and bool(held_by(world, LATE)), within_s=600.0)
    return counted(world.machine) - before


def held_by(world: BusyOwner, node: NodeRecord) -> int:
    term = world.machine.term
    assert term is not None
    return len(list(term.assignments.assigned_to(term.peers[node.node_id].holder))) if node.node_id in term.peers else 0


def lose_a_node_while_another_runs_all(count: int) -> int:
    """It comes back from where the owner could not see it, and takes long to stop what others run by now."""
    world = settled_world(count)
    before = counted(world.machine)
    held = (NodeShard(shard, TableEpoch(1, 0), NodeShardState.RUNNING) for shard in tables(count))
    world.held, world.silent = {LATE.node_id: tuple(held)}, frozenset({LATE.node_id})
    world.change_nodes((*world.nodes, LATE))
    world.run_until(lambda machine: copies(machine) == count, within_s=5.0)
    world.change_nodes((*world.nodes[:-2], LATE))
    world.run_until(lambda machine: machine.assignments.counts[ShardState.ABSENT] > 0, TIMES.margin_s + 1.0)
    world.silent = frozenset()
    world.run_until(lambda machine: copies(machine) == 0 and settled(machine), within_s=60.0)
    assert world.revoked == []
    return counted(world.machine) - before


def copies(machine: OwnerMachine) -> int:
    return len(machine.term.copies) if machine.term else 0


@pytest.mark.parametrize(
    "history",
    [settle, lose_a_node, rebalance_to_a_new_node, lose_a_node_while_another_runs_all],
    ids=lambda f: f.__name__,
)
def test_what_is_done_for_a_table_does_not_grow_with_their_number(history: Callable[[int], int]) -> None:
    few, many = history(FEW) / FEW, history(MANY) / MANY
    assert many <= GROWTH_MAX * few


def hear_nodes(count: int) -> int:
    """A new owner, with nothing to place, to which all its nodes report what they run."""
    machine = CountedOwner("n-0", "v", TIMES)
    nodes = node_records(count)
    machine.step(Elected(1, 101, tuple(sorted(nodes)), {}), 1.0)
    for node in nodes:
        machine.step(FromNode(node.node_id, Sync(1, node.epoch, "v", 1, 0, 1, 0, ())), 1.0)
    assert machine.term is not None
    assert len(machine.term.placement.eligible) == count
    return machine.effort.lines


def test_what_is_done_for_a_node_does_not_grow_with_their_number() -> None:
    few, many = 20, 160
    assert hear_nodes(many) / many <= GROWTH_MAX * hear_nodes(few) / few
