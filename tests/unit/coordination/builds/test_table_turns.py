"""Whose turn it is: tables that do not go on hold up no others."""

from __future__ import annotations

import pytest

from iscp.coordination.builds.builder_events import BuildWanted, CallNode, RangeFailed
from iscp.coordination.builds.range_calls import CALL_RETRY_MAX_S
from iscp.coordination.builds.table_turns import GATHER_S, STUCK_TABLES_MAX
from tests.unit.coordination.builds.test_builder import Owner, answer, plan


def play(owner: Owner, failing: tuple[str, ...], seconds: int = 600) -> None:
    """All calls are answered, those for the tables that are `failing` by a fault."""
    for _ in range(seconds):
        owner.wait(1.0)
        while calls := owner.all(CallNode):
            for call in calls:
                fails = call.place.table_id in failing
                owner.take(RangeFailed(call.number, "no permission") if fails else answer(call))


def test_a_table_that_keeps_failing_holds_up_no_other() -> None:
    owner = Owner(plan("j1", "bad", depth=1), plan("j2", "good", depth=1))
    owner.wait(GATHER_S)
    assert set(owner.state.tables) == {"bad"}
    play(owner, ("bad",))
    assert (set(owner.state.tables), set(owner.state.built)) == ({"bad"}, {"j2"})
    play(owner, ())
    assert (set(owner.state.tables), set(owner.state.built)) == (set(), {"j1", "j2"}), "it is tried until it goes on"


def test_a_table_some_of_whose_ranges_go_on_keeps_its_turn() -> None:
    owner = Owner(plan("j1", "bad", depth=1), plan("j2", "good", depth=1))
    owner.wait(GATHER_S)
    first, second = owner.all(CallNode)
    pause_s = 0.0
    while pause_s < CALL_RETRY_MAX_S:
        owner.take(RangeFailed(first.number, "no permission"))
        pause_s = owner.builder.calls.setbacks[first.place].pause_s
        owner.wait(pause_s + 1.0)
        (first,) = owner.all(CallNode)
    assert set(owner.state.tables) == {"bad"}, "the other range is still in work"
    owner.take(answer(second))
    play(owner, ("bad",), seconds=5)
    assert set(owner.state.built) == {"j2"}


@pytest.mark.parametrize("tables", [2, 3 * STUCK_TABLES_MAX])
def test_so_many_tables_are_begun_beside_those_that_fail(tables: int) -> None:
    names = tuple(f"t{number:02}" for number in range(tables))
    owner = Owner(*(plan(name, name, depth=1) for name in names))
    owner.wait(GATHER_S)
    play(owner, names, seconds=tables * 200)
    assert len(owner.state.tables) == min(tables, STUCK_TABLES_MAX + 1)
    for name in names:
        owner.take(BuildWanted(plan(name, name, depth=1)))
    play(owner, (), seconds=tables * 20)
    assert set(owner.state.tables) == set()
