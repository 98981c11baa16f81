"""Whose turn it is: tables that do not go on hold up no others.

Tables come in the order of their turns, whatever was changed, removed and wanted again before.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.builds.staging_tasks import CALL_RETRY_MAX_S
from iscp.cluster.builds.table_turns import GATHER_S, STALE_MAX, STUCK_TABLES_MAX, WaitingTables
from iscp.model.build.build_state import BuilderEvent, BuildOver, BuildTick, BuildWanted, CallNode, RangeFailed
from tests.fakes.effort import Effort
from tests.unit.cluster.builds.test_builder import Owner, answer, plan


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


TABLES = ("a", "b", "c", "d")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "remove", "ripen"]),
        st.sampled_from(TABLES),
        st.integers(-1, 1),
        st.sampled_from([0.0, 1.0, 5.0]),
    ),
    min_size=8,
    max_size=40,
)


@dataclass
class Turn:
    """A table that waits: `number` is that of when it came, `gathers` whether its requests still do."""

    priority: int
    since_s: float
    number: int
    gathers: bool


@given(STEPS)
def test_whatever_comes_tables_are_in_the_order_of_their_turns(steps: list[tuple[str, str, int, float]]) -> None:
    waiting, known = WaitingTables(), dict[str, Turn]()
    for number, (deed, table, priority, ago_s) in enumerate(steps):
        now_s = float(number)
        match deed:
            case "set":
                turn = known.setdefault(table, Turn(priority, now_s - ago_s, number, ago_s < GATHER_S))
                turn.priority = priority  # since when it is wanted does not change while it waits
                waiting.set(table, priority, turn.since_s, now_s)
            case "remove":
                waiting.remove(table)
                known.pop(table, None)
            case _:
                waiting.ripen(now_s)
                for turn in known.values():
                    turn.gathers &= turn.since_s + GATHER_S > now_s
        check(waiting, known)
    waiting.ripen(len(steps) + GATHER_S)
    for turn in known.values():
        turn.gathers = False
    check(waiting, known)
    assert waiting.ripens_at_s() is None


def check(waiting: WaitingTables, known: dict[str, Turn]) -> None:
    ready = sorted((t for t in known if not known[t].gathers), key=lambda t: order(known[t]))
    late = sorted((t for t in known if known[t].gathers), key=lambda t: order(known[t]))
    assert list(waiting) == [*ready, *late]
    for most in range(len(TABLES) + 1):
        assert waiting.first(most) == ready[:most]
        upcoming = waiting.next_ones(most)
        assert upcoming[: len(ready)] == ready[:most]
        assert len(upcoming) == len(set(upcoming)) == min(most, len(known))
        assert set(upcoming[len(ready) :]) <= set(late)
    assert not late or waiting.ripens_at_s() is not None


def order(turn: Turn) -> tuple[int, float, int]:
    return -turn.priority, turn.since_s, turn.number


def test_a_turn_comes_once_its_requests_have_gathered() -> None:
    waiting = WaitingTables()
    waiting.set("a", 0, 10.0, 10.0)
    assert (waiting.first(1), waiting.next_ones(1), waiting.ripens_at_s()) == ([], ["a"], 10.0 + GATHER_S)
    waiting.ripen(10.0 + GATHER_S - 0.1)
    assert waiting.first(1) == []
    waiting.ripen(10.0 + GATHER_S)
    assert (waiting.first(1), waiting.ripens_at_s()) == (["a"], None)


def test_requests_gather_from_when_a_table_is_wanted_again() -> None:
    waiting = WaitingTables()
    waiting.set("a", 0, 10.0, 10.0)
    waiting.remove("a")
    waiting.set("a", 0, 11.0, 11.0)
    waiting.ripen(10.0 + GATHER_S)
    assert waiting.first(1) == []
    waiting.ripen(11.0 + GATHER_S)
    assert waiting.first(1) == ["a"]


def test_turns_that_no_longer_count_take_nothing_with_them() -> None:
    waiting = WaitingTables()
    waiting.set("late", 9, 100.0, 100.0)
    for number in range(STALE_MAX * 10 + 1):
        waiting.set("a", number % 2, 0.0, 100.0)
        waiting.set("b", (number + 1) % 2, 0.0, 100.0)
        if number % 7 == 0:
            assert sorted(waiting.first(3)) == ["a", "b"]
    assert waiting.first(3) == ["b", "a"]
    waiting.ripen(100.0 + GATHER_S)
    assert waiting.first(3) == ["late", "b", "a"]
