"""How long plans are built is measured without what is computed for them, and may be read meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from iscp.views.changes.plan_leaves import BuildTimer


@dataclass
class Now:
    at_s: float = 100.0

    def __call__(self) -> float:
        return self.at_s


def test_what_is_computed_while_plans_are_built_does_not_count() -> None:
    now = Now()
    timer = BuildTimer(now)
    now.at_s += 1
    with timer.run():
        now.at_s += 2
        assert timer.spent_s == 2
        with timer.pause():
            now.at_s += 4
            assert timer.spent_s == 2
            with timer.run():
                now.at_s += 8
            now.at_s += 16
        now.at_s += 32
    now.at_s += 64
    assert timer.spent_s == 2 + 8 + 32


def test_it_stops_where_building_fails() -> None:
    now = Now()
    timer = BuildTimer(now)

    def fail() -> None:
        with timer.run(), timer.pause():
            now.at_s += 1
            raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        fail()
    now.at_s += 1
    assert timer.spent_s == 0


def test_what_is_spent_each_time_is_forgotten() -> None:
    now = Now()
    timer = BuildTimer(now)
    with timer.run():
        now.at_s += 1
        before_s = timer.spent_s
        with timer.run():
            now.at_s += 2
        timer.forget(before_s)
        now.at_s += 4
    assert timer.spent_s == 1 + 4
