"""The registered nodes as an owner sees them, and how long it waits for those that have gone."""

from __future__ import annotations

from dataclasses import replace

from iscp.cluster.membership.membership import Roll
from iscp.model.values.ids import Moment, NodeRecord

N1, N2 = NodeRecord("n1", 1, "x:1"), NodeRecord("n2", 1, "y:1")


def roll_of(*snapshots: tuple[NodeRecord, ...]) -> Roll:
    """Each a second after the one before it, the first at 1."""
    roll = Roll()
    for number, members in enumerate(snapshots, start=1):
        assert roll.take(members, Moment(0, number), float(number), 2.0, 10.0) == 0.0
    return roll


def begin(roll: Roll, now_s: float) -> float:
    """For how long an owner that begins now, with the same members, places nothing."""
    return roll.take(roll.members, roll.moment, now_s, 2.0, 10.0, begins=True)


def test_an_owner_that_begins_waits_as_long_for_a_node_that_has_just_gone_as_one_that_was_there() -> None:
    roll = roll_of((N1, N2), (N1,))
    assert begin(roll, 2.5) == 1.5
    assert begin(roll, 4.0) == 0.0


def test_an_owner_that_has_only_just_read_waits_for_a_node_that_may_have_gone_right_before() -> None:
    """It was started meanwhile, and nobody notifies it which leases have ended."""
    assert begin(roll_of((N1,)), 1.5) == 1.5
    assert begin(roll_of((N1,)), 3.0) == 0.0
    assert Roll().take((N1,), Moment(0, 1), 1.0, 2.0, 10.0, begins=True) == 2.0


def test_an_owner_that_lost_sight_of_the_members_does_not_know_who_has_gone_meanwhile() -> None:
    roll = roll_of((N1,))
    assert roll.take((N1,), Moment(0, 1, breaks=1), 7.0, 2.0, 10.0) == 0.0
    assert begin(roll, 8.0) == 1.0


def test_a_node_that_registers_again_has_gone_before() -> None:
    assert begin(roll_of((N1, N2), (N1, replace(N2, epoch=2))), 2.0) == 2.0


def test_nobody_is_waited_for_who_came_or_left_in_order() -> None:
    leaving = replace(N2, leaving=True)
    assert begin(roll_of((N1,), (N1, N2), (N1, leaving), (N1,)), 4.0) == 0.0


def test_leases_that_a_restored_etcd_does_not_know_are_waited_out() -> None:
    roll = roll_of((N1, N2))
    assert roll.take((N1,), Moment(1, 1), 2.0, 2.0, 10.0) == 12.0
