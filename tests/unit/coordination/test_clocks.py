"""A clock that is ahead is noticed, and said once."""

from __future__ import annotations

from iscp.coordination.clocks import CLOCKS_APART_S, NodeClocks, of_the_future

NOW_S = 1_000_000.0


def test_clocks_may_be_a_little_apart() -> None:
    assert not of_the_future(NOW_S + CLOCKS_APART_S, NOW_S)
    assert of_the_future(NOW_S + CLOCKS_APART_S + 1.0, NOW_S)


def test_of_a_clock_that_is_ahead_it_is_said_once_and_again_when_it_is_right() -> None:
    clocks = NodeClocks()
    assert clocks.note("n1", NOW_S, NOW_S) == ""
    assert "86400 s ahead" in clocks.note("n1", NOW_S + 86_400.0, NOW_S)
    assert clocks.note("n1", NOW_S + 86_401.0, NOW_S) == ""
    assert clocks.note("n2", NOW_S, NOW_S) == ""
    assert "agrees" in clocks.note("n1", NOW_S + 1.0, NOW_S)
    assert clocks.note("n1", NOW_S + 1.0, NOW_S) == ""
