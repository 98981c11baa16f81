"""An overloaded owner: it requests no more than it can process, and revokes no node for its own backlog."""

from __future__ import annotations

import pytest

from iscp.cluster.invariants import check_owner
from iscp.cluster.membership.assignments import ShardState, ring_of
from iscp.cluster.membership.term import AWAITED_MAX, AWAITED_MIN, OPERATIONS_OF_ALL_MAX, Window
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.placement import PLACED_AT_ONCE
from iscp.model.protocol.events import (
    BuildRing,
    CoordinationTimes,
    Decided,
    Decision,
    Elected,
    FromNode,
    MembersChanged,
    OwnerEffect,
    RingBuilt,
    SendTo,
    Tick,
)
from iscp.model.protocol.messages import Alive, DispatchTable, Sync
from iscp.model.values.ids import NodeRecord
from tests.fakes.busy_owner import Costs, busy_owner, tables
from tests.fakes.rings import step_with_rings

NODES, TABLES = 50, 5_000
TIMES = CoordinationTimes()
N1, N2 = NodeRecord("n1", 1, "x:1"), NodeRecord("n2", 1, "y:1")


def settled(machine: OwnerMachine) -> bool:
    return bool(machine.assignments) and machine.settled


@pytest.mark.parametrize("event_s", [0.0, 0.0001, 0.001, 0.01])
def test_tables_settle_with_one_dispatch_each_however_slow_the_owner(event_s: float) -> None:
    world = busy_owner(NODES, Costs(event_s, event_s / 2))
    world.elect(tables(TABLES))
    took_s = world.run_until(settled, within_s=600.0)
    assert world.revoked == []
    assert world.dispatches.total() <= 1.2 * TABLES
    # A dispatch and two answers for each table, beside what the nodes say anyway: it waits for nothing but itself.
    idle = 1.0 - event_s * NODES / TIMES.alive_s
    assert took_s <= 2.0 + 1.1 * TABLES * (event_s / 2 + 2 * event_s) / idle


def test_what_waits_to_be_read_is_bounded_by_what_the_owner_takes_in() -> None:
    """A hundred events a second are less than it ever requests at a time; the backlog does not grow beyond that."""
    world = busy_owner(NODES, Costs(0.01, 0.0))
    world.elect(tables(TABLES))
    world.run_until(lambda machine: machine.assignments.counts[ShardState.RUNNING] > TABLES / 2, within_s=600.0)
    idle = 1.0 - 0.01 * NODES / TIMES.alive_s
    assert world.longest_wait_s <= 1.25 * 2 * AWAITED_MIN * 0.01 / idle


@pytest.mark.parametrize("stall_s", [5.0, 30.0])
def test_an_owner_that_pauses_blames_nobody_for_what_it_has_not_read(stall_s: float) -> None:
    world = busy_owner(NODES, Costs(0.0005, 0.0002))
    world.elect(tables(TABLES))
    world.run_until(lambda machine: machine.assignments.counts[ShardState.RUNNING] > 100, within_s=60.0)
    world.stall(stall_s)
    world.run_until(settled, within_s=60.0)
    assert world.revoked == []
    assert world.dispatches.total() <= 1.2 * TABLES


def test_silent_nodes_are_given_up_on_and_hold_up_no_others() -> None:
    silent = frozenset({"n-1", "n-7", "n-30"})
    world = busy_owner(NODES, Costs(0.001, 0.0005), silent=silent)
    world.elect(tables(TABLES))

    def others_run(machine: OwnerMachine) -> bool:
        term = machine.term
        peers = [peer for peer in term.peers.values() if peer.record.node_id not in silent] if term else []
        return bool(machine.assignments) and not any(peer.queue or peer.in_flight for peer in peers)

    world.run_until(lambda machine: len(machine.assignments) - machine.assignments.counts[ShardState.ABSENT] > 0, 5.0)
    assert world.run_until(others_run, within_s=60.0) <= 1.25 * TABLES * 0.0025 + 2.0
    world.run_until(lambda machine: len(world.revoked) >= len(silent), within_s=30.0)
    assert {line.split()[0] for line in world.revoked} == silent


def test_nodes_that_take_long_to_start_are_polled_ever_more_rarely() -> None:
    """What they have taken on is bounded, and is requested once in `resend_max_s` at the most."""
    starts_s = 20.0
    world = busy_owner(NODES, Costs(0.0001, 0.0001), starts_s=starts_s)
    world.elect(tables(TABLES))
    took_s = world.run_until(settled, within_s=600.0)
    assert world.revoked == []
    assert took_s <= 1.1 * starts_s * -(-TABLES // OPERATIONS_OF_ALL_MAX) + 5.0
    assert max(world.dispatches.values()) <= 3 + starts_s / TIMES.resend_max_s


def elected(count: int, *members: NodeRecord) -> OwnerMachine:
    owner = OwnerMachine("n1", "v", TIMES)
    step_with_rings(owner, Elected(1, 1, members, tables(count)), 0.0)
    for record in members:
        step_with_rings(owner, FromNode(record.node_id, Sync(1, 1, "v", 1, 0, 1, 0, ())), 0.0)
    return owner


def revoked(effects: list[OwnerEffect]) -> list[str]:
    return [each.why for each in effects if isinstance(each, Decided) and each.what is Decision.REVOKE]


def test_nothing_is_due_before_all_that_came_in_by_then_is_read() -> None:
    """Not a repetition, and not a deadline: the answers may be there."""
    owner = elected(1, N1)
    step_with_rings(owner, Tick(), 1.0)
    read_s = 1.0 + TIMES.resend_s / 2
    assert [each for each in owner.step(Tick(), 60.0, read_s) if isinstance(each, SendTo)] == []
    assert revoked(owner.step(FromNode("n1", Alive(1, 1)), 60.0, read_s)) == []
    # Heard at 1.5, and not of it at 60: the deadline counts from what was read, and is over when that is.
    steps = [owner.step(Tick(), 60.0, 1.0 + 0.5 * number) for number in range(1, 22)]
    assert [why for effects in steps for why in revoked(effects)] != []


def test_a_pass_over_very_many_tables_leaves_room_for_other_things() -> None:
    count = 4 * PLACED_AT_ONCE + 500
    owner = elected(count, N1)
    placed = [0]
    while placed[-1] < count:
        step_with_rings(owner, Tick(), 1.0)
        check_owner(owner)
        placed.append(count - owner.assignments.counts[ShardState.ABSENT])
        assert 0 < placed[-1] - placed[-2] <= 2 * PLACED_AT_ONCE
        assert placed[-1] == count or owner.next_due_s() == 1.0, "it goes on by itself"


def test_nothing_is_placed_before_the_ring_of_the_present_nodes_is_built() -> None:
    owner = elected(10, N1)
    (asked,) = [each for each in owner.step(Tick(), 1.0) if isinstance(each, BuildRing)]
    assert asked.nodes == {"n1"}
    assert owner.step(Tick(), 2.0) == [], "it is asked for once"
    owner.step(MembersChanged((N1, N2)), 2.0)
    owner.step(FromNode("n2", Sync(1, 1, "v", 1, 0, 1, 0, ())), 3.0)
    owner.step(RingBuilt(ring_of(asked.nodes)), 3.5)
    assert owner.assignments.counts[ShardState.ABSENT] == 10, "that ring is of before"
    effects = owner.step(RingBuilt(ring_of(frozenset({"n1", "n2"}))), 4.0)
    assert len([each for each in effects if isinstance(each, SendTo) and isinstance(each.message, DispatchTable)]) == 10


def test_a_ring_is_requested_again_when_the_nodes_of_before_are_back() -> None:
    owner = elected(10, N1)
    owner.step(Tick(), 1.0)
    owner.step(MembersChanged((N1, N2)), 2.0)
    owner.step(FromNode("n2", Sync(1, 1, "v", 1, 0, 1, 0, ())), 2.1)
    owner.step(MembersChanged((N1,)), 2.2)
    effects = owner.step(Tick(), 4.0)
    assert [each.nodes for each in effects if isinstance(each, BuildRing)] == [{"n1"}]


def test_the_window_follows_what_was_answered_lately() -> None:
    window = Window(span_s=0.5)
    assert window.room == AWAITED_MIN
    for _ in range(window.room):
        window.note_sent()
    assert window.room == 0
    for number in range(AWAITED_MIN):
        window.note_answered(10.0 + number / 10_000)
    assert window.size == AWAITED_MIN
    sizes: list[int] = []
    for per_s in (4_000, 100_000, 10):
        for number in range(per_s):
            window.note_sent()
            window.note_answered(20.0 + len(sizes) + number / per_s)
        sizes.append(window.size)
    assert sizes[0] == pytest.approx(2_000, rel=0.05)
    assert sizes[1:] == [AWAITED_MAX, AWAITED_MIN]
    assert window.awaited == 0


def test_there_is_room_when_there_is_room_for_several() -> None:
    window = Window(span_s=0.5)
    for _ in range(AWAITED_MIN):
        window.note_sent()
    window.note_lost()
    assert window.room == 0
    for _ in range(AWAITED_MIN // 4 - 1):
        window.note_lost()
    assert window.room == AWAITED_MIN // 4
