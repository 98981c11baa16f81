"""Which ulids a purge deletes: those that are old, those that all cursors have passed, or those that are both."""

from __future__ import annotations

import pytest

from iscp.changefeed.client.reader import bounds_of
from iscp.changefeed.model.ulid import Cursor, ulid_text
from iscp.model.values.errors import InvalidRequest

NOW_MS = 1_700_000_000_000


def at(time_ms: int) -> str:
    return ulid_text((time_ms << 80 | 5).to_bytes(16, "big"))


def test_by_age_a_ulid_may_go_whose_millisecond_is_before() -> None:
    bounds = bounds_of(2, NOW_MS, 10.0, None)
    assert set(bounds) == {0, 1}
    assert at(NOW_MS - 10_001) <= bounds[0] < at(NOW_MS - 10_000)


def test_by_cursors_what_the_slowest_has_read_may_go() -> None:
    cursors = [Cursor("f", {0: at(5), 1: at(7)}), Cursor("f", {0: at(6)})]
    assert bounds_of(2, NOW_MS, None, cursors) == {0: at(5)}
    assert bounds_of(2, NOW_MS, None, []) == {}


def test_with_both_it_has_to_be_both() -> None:
    old, new = at(NOW_MS - 60_000), at(NOW_MS)
    bounds = bounds_of(3, NOW_MS, 10.0, [Cursor("f", {0: old, 1: new})])
    assert bounds[0] == old
    assert old < bounds[1] < new
    assert 2 not in bounds
    assert bounds_of(3, NOW_MS, 10.0, []) == {}


def test_nothing_is_older_than_time_itself() -> None:
    assert bounds_of(1, NOW_MS, 1e12, None) == {}


@pytest.mark.parametrize("older_than_s", [-1.0, float("nan"), float("-inf")])
def test_an_age_that_is_none_is_refused(older_than_s: float) -> None:
    with pytest.raises(InvalidRequest, match="Give 0 or more seconds"):
        bounds_of(1, NOW_MS, older_than_s, None)


def test_what_may_go_has_to_be_said() -> None:
    with pytest.raises(InvalidRequest, match="behind_cursors"):
        bounds_of(1, NOW_MS, None, None)
