"""A schedule over one table that has a few versions."""

from __future__ import annotations

import pytest

from tests.fakes.timetable import URI, Timetable


@pytest.fixture
def world() -> Timetable:
    made = Timetable()
    made.source.commit(URI, 4)
    return made
