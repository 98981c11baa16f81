"""Whose turn it is: tables that do not go on hold up no others."""

from __future__ import annotations

import pytest

from iscp.coordination.builds.builder_events import (
    BuilderEvent,
    BuildOver,
    BuildTick,
    BuildWanted,
    CallNode,
    RangeFailed,
)
from iscp.coordination.builds.range_calls import CALL_RETRY_MAX_S
from iscp.coordination.builds.table_turns import STUCK_TABLES_MAX
from iscp.coordination.builds.waiting_tables import GATHER_S, WaitingTables
from tests.fakes.effort import Effort
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


@pytest.mark.parametrize("event", [BuildTick(), BuildOver("j0"), BuildWanted(plan("more", "another"))])
def test_what_a_step_costs_does_not_grow_with_the_tables_that_wait(event: BuilderEvent) -> None:
    costs = []
    for tables in (60, 600):
        owner = Owner(*(plan(f"j{number}", f"t{number:03}", depth=1) for number in range(tables)))
        owner.wait(GATHER_S)
        with (effort := Effort()):
            owner.builder.step(event, owner.now_s)
        costs.append(effort.lines)
    assert costs[1] < 1.5 * costs[0], "by the logarithm of their number at the most"


def test_tables_that_wait_come_in_the_order_of_their_turns() -> None:
    waiting = WaitingTables()
    for number, table_id in enumerate("abcd"):
        waiting.set(table_id, 0, since_s=float(number), now_s=float(number))
    assert (waiting.first(9), waiting.next_ones(2), list(waiting)) == ([], ["a", "b"], ["a", "b", "c", "d"])
    waiting.ripen(1.0 + GATHER_S)
    assert (waiting.first(9), waiting.ripens_at_s()) == (["a", "b"], 2.0 + GATHER_S)
    waiting.set("b", 5, since_s=1.0, now_s=4.0)
    waiting.remove("c")
    waiting.ripen(9.0)
    assert (waiting.first(2), waiting.first(9), waiting.next_ones(9)) == (["b", "a"], ["b", "a", "d"], ["b", "a", "d"])
    waiting.remove("a")
    for priority in range(100):
        waiting.set("d", priority, since_s=3.0, now_s=9.0)
    assert (waiting.first(9), waiting.ripens_at_s()) == (["d", "b"], None)
    waiting.set("a", 0, since_s=0.0, now_s=9.0)
    assert list(waiting) == waiting.first(9) == ["d", "b", "a"], "what was wanted long ago need not gather again"
