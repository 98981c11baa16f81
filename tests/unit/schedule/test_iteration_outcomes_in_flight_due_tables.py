"""Tables by the time at which they are due: in order, each once, and without a place of its own for each idle one."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import ShardId
from iscp.schedule.iteration_outcomes import STALE_MAX, DueTables
from iscp.schedule.table_state import TrackedTable


def tables(count: int) -> list[TrackedTable]:
    return [TrackedTable(ShardId(f"t-{number}"), f"/lake/{number}") for number in range(count)]


def popped(due: DueTables, now_s: float) -> list[TrackedTable]:
    return list(iter(lambda: due.pop(now_s), None))


def test_the_longest_overdue_comes_first_and_of_one_time_who_came_first() -> None:
    due, (first, second, third, later) = DueTables(), tables(4)
    for table, due_s in ((second, 2.0), (third, 2.0), (first, 1.0), (later, 9.0)):
        due.set(table, due_s, 0.0)
    assert popped(due, 2.0) == [first, second, third]
    assert (due.next_due_s(), len(due), later.due_s, first.due_s) == (9.0, 1, 9.0, inf)


def test_a_table_is_never_due_in_the_past_and_always_some_time() -> None:
    due, (table,) = DueTables(), tables(1)
    due.set(table, 1.0, 5.0)
    assert (due.pop(4.9), due.pop(5.0)) == (None, table)
    with pytest.raises(InvariantBroken, match="never be visited again"):
        due.set(table, inf, 5.0)


def test_what_comes_back_at_the_time_that_is_just_served_is_served_too() -> None:
    due, (first, second) = DueTables(), tables(2)
    due.set(first, 1.0, 0.0)
    due.set(second, 1.0, 0.0)
    assert due.pop(1.0) is first
    due.set(first, 1.0, 1.0)
    assert popped(due, 1.0) == [second, first]


def test_idle_tables_of_one_time_share_its_place() -> None:
    due, some = DueTables(), tables(1_000)
    for number, table in enumerate(some):
        due.set(table, float(number % 4), 0.0)
    assert len(due._times) == 4
    assert len(due) == 1_000


def test_a_table_that_changes_its_time_again_and_again_leaves_no_more_than_so_many_entries() -> None:
    due, (table, other) = DueTables(), tables(2)
    due.set(other, 0.5, 0.0)
    for number in range(10 * STALE_MAX):
        due.set(table, 1.0 + number % 2, 0.0)
        assert sum(map(len, due._tables.values())) == due._entries <= 2 * len(due) + STALE_MAX
    assert popped(due, 3.0) == [other, table]
    assert (due._tables, due._entries, due.next_due_s()) == ({}, 0, None)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["set", "clear", "pop"]), st.integers(0, 6))))
def test_it_does_as_a_sorted_list_would(steps: list[tuple[int, str, int]]) -> None:
    due, some, now_s = DueTables(), tables(5), 0.0
    wanted: dict[TrackedTable, float] = {}
    for number, what, time_s in steps:
        table = some[number]
        match what:
            case "set":
                due.set(table, float(time_s), now_s)
                wanted[table] = max(float(time_s), now_s)
            case "clear":
                due.clear(table)
                wanted.pop(table, None)
            case _:
                now_s = max(now_s, float(time_s))
                found, earliest_s = due.pop(now_s), min(wanted.values(), default=inf)
                assert (found is None) == (earliest_s > now_s)
                assert found is None or wanted.pop(found) == earliest_s
        assert len(due) == len(wanted)
        assert due.next_due_s() == min(wanted.values(), default=None)
