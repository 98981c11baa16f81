"""A clock that is ahead is noticed, and said once."""

from __future__ import annotations

from iscp.coordination.clocks import AHEAD_FOR_S, CLOCKS_APART_S, NodeClocks, SteadyTime, of_the_future

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


def test_a_clock_that_jumps_ahead_counts_once_it_has_stayed_there() -> None:
    time, day_s = SteadyTime(), 86_400.0
    assert time.read(NOW_S, 0.0) == NOW_S
    assert time.read(NOW_S + 10.0 + CLOCKS_APART_S, 10.0) == NOW_S + 10.0 + CLOCKS_APART_S, "a little is no jump"
    assert time.read(NOW_S + 20.0, 20.0) == NOW_S + 20.0
    for passed_s in (30.0, 30.0 + AHEAD_FOR_S - 1.0):
        assert time.read(NOW_S + day_s + passed_s, passed_s) == NOW_S + passed_s
    assert time.read(NOW_S + 2 * day_s + 640.0, 640.0) == NOW_S + 640.0, "it jumps again"
    late_s = 641.0 + AHEAD_FOR_S
    assert time.read(NOW_S + 2 * day_s + late_s, late_s) == NOW_S + 2 * day_s + late_s


def test_a_clock_that_is_set_back_counts_at_once() -> None:
    time = SteadyTime()
    assert time.read(NOW_S, 0.0) == NOW_S
    assert time.read(NOW_S - 1_000.0, 1.0) == NOW_S - 1_000.0
    assert time.read(NOW_S, 2.0) == NOW_S - 999.0, "and may be wrong, for all that is known"
