"""What the owner has decided is told in order, from a number on, for as long as it is kept."""

from __future__ import annotations

from iscp.coordination.protocol.effects import Decided, Decision
from iscp.core.ids import ShardId
from iscp.runtime.owner.placement_events import KEPT_MAX, Decisions


def noted(count: int) -> Decisions:
    decisions = Decisions()
    decisions.begin(7)
    for number in range(1, count + 1):
        decisions.note(Decided(Decision.DISPATCH, f"n{number}", ShardId("t"), "new"), float(number))
    return decisions


def test_each_is_reported_with_its_number_and_what_it_was() -> None:
    (only,) = noted(3).after(7, 2)
    assert (only.owner_rev, only.number, only.at_s, only.what) == (7, 3, 3.0, "dispatch")
    assert (only.node_id, only.shard, only.why) == ("n3", "t", "new")


def test_what_is_known_already_is_not_reported_again() -> None:
    decisions = noted(3)
    assert [each.number for each in decisions.after(7, 1)] == [2, 3]
    assert decisions.after(7, 3) == []
    assert [each.number for each in decisions.after(6, 2)] == [1, 2, 3], "of another term nothing is known"


def test_the_oldest_are_forgotten_and_the_others_keep_their_numbers() -> None:
    told = noted(KEPT_MAX + 5).after(7, 2)
    assert (len(told), told[0].number, told[0].node_id, told[-1].number) == (KEPT_MAX, 6, "n6", KEPT_MAX + 5)


def test_a_term_starts_over() -> None:
    decisions = noted(3)
    decisions.begin(8)
    assert decisions.after(7, 3) == []
    decisions.note(Decided(Decision.TERM, "n1"), 1.0)
    assert [(each.owner_rev, each.number) for each in decisions.after(7, 3)] == [(8, 1)]
