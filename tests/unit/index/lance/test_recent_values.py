"""Values that were used last stay, and no more than so many."""

from __future__ import annotations

from iscp.index.lance.recent_values import RecentValues


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
