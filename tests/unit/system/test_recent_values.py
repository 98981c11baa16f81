"""Proves what a bounded cache stores, what leaves it first, and that one value is made for all who want it at once."""

from __future__ import annotations

import threading
import time
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from iscp.system.recent_values import RecentValues

MOST = 6


def test_the_value_that_was_not_used_for_longest_is_forgotten() -> None:
    values: RecentValues[str, int] = RecentValues(2)
    values.put("a", 1)
    values.put("b", 2)
    assert values.get("a") == 1
    values.put("c", 3)
    assert [values.get(key) for key in "abc"] == [1, None, 3]
    values.put("c", 4)
    assert [values.get(key) for key in "ac"] == [1, 4]


def test_values_may_have_weights() -> None:
    values: RecentValues[str, str] = RecentValues(5, len)
    assert values.put("a", "xx") == "xx"
    values.put("b", "yyy")
    values.put("c", "z")  # together they would weigh 6
    assert [values.get(key) for key in "abc"] == [None, "yyy", "z"]
    values.put("b", "y")  # lighter than before
    values.put("d", "zzz")
    assert [values.get(key) for key in "bcd"] == ["y", "z", "zzz"]
    assert values.put("e", "longer") == "longer"
    assert [values.get(key) for key in "bcde"] == ["y", "z", "zzz", None]


def test_a_value_that_is_taken_out_is_there_again_once_it_is_put_back() -> None:
    values: RecentValues[str, str] = RecentValues(2, len)
    values.put("a", "xx")
    assert values.take("a") == "xx"
    assert values.take("a") is None
    assert "a" not in values
    values.put("b", "yy")  # for which there is room
    assert values.get("b") == "yy"


def test_one_value_is_made_for_all_who_want_it_at_once() -> None:
    values: RecentValues[str, object] = RecentValues(1)
    found: list[object] = []

    def make() -> object:
        time.sleep(0.01)
        return object()

    threads = [threading.Thread(target=lambda: found.append(values.of("a", make))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


CALLS = st.tuples(st.sampled_from(("get", "put", "take", "of")), st.sampled_from("abcd"), st.integers(0, MOST + 1))


@given(st.lists(CALLS, max_size=30))
def test_values_are_stored_as_in_a_list_by_their_last_use(calls: list[tuple[str, str, int]]) -> None:
    values: RecentValues[str, int] = RecentValues(MOST, lambda value: value)
    model: list[tuple[str, int]] = []
    for call, key, value in calls:
        before = dict(model).get(key)
        model = [each for each in model if each[0] != key]
        if call == "put" or (call == "of" and before is None):
            values.put(key, value) if call == "put" else values.of(key, partial(int, value))
            model += [(key, value)] if value <= MOST else []
        elif call == "take":
            assert values.take(key) == before
        else:
            assert (values.get(key) if call == "get" else values.of(key, lambda: 1)) == before
            model += [] if before is None else [(key, before)]
        while sum(each for _, each in model) > MOST:
            del model[0]
        assert [key in values for key in "abcd"] == [key in dict(model) for key in "abcd"]
