"""Tables come in the order of their turns, whatever was changed, removed and wanted again before."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.builds.waiting_tables import GATHER_S, STALE_MAX, WaitingTables

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
