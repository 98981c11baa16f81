"""The parts of a refresh add up to the whole, and rows are counted while all who read them can say how many."""

from __future__ import annotations

import pytest

from iscp.views.refresh.refresh_parts import Part, count_read, measured_as, measuring
from tests.fakes.clock import FakeClock


def test_parts_add_up_and_one_within_another_counts_once() -> None:
    clock = FakeClock()

    @measured_as(Part.STATE)
    def keep() -> None:
        clock.advance(4.0)

    @measured_as(Part.CHANGES)
    def read() -> str:
        clock.advance(1.0)
        keep()
        clock.advance(2.0)
        return "read"

    with measuring(clock) as parts:
        clock.advance(0.5)
        assert read() == "read"
        keep()
    assert parts.parts_s == {"changes": 3.0, "state": 8.0, "rows": 0.5}


def test_a_part_that_fails_is_measured_as_well() -> None:
    clock = FakeClock()

    @measured_as(Part.PLAN)
    def plan() -> None:
        clock.advance(2.0)
        raise ValueError("no plan")

    with measuring(clock) as parts, pytest.raises(ValueError, match="no plan"):
        plan()
    assert parts.parts_s == {"plan": 2.0, "rows": 0.0}


def test_rows_are_not_known_once_some_were_not_counted() -> None:
    with measuring(FakeClock()) as parts:
        count_read(3)
        count_read(4)
        assert parts.rows_in == 7
        count_read(None)
        count_read(5)
        assert parts.rows_in == -1


def test_outside_of_a_refresh_nothing_is_measured() -> None:
    count_read(3)
    assert measured_as(Part.PLAN)(lambda: "planned")() == "planned"
