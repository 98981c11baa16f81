"""The ulids computed for many rows at once equal those computed one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.changefeed.model.ulid import DRAWN_BYTES, NO_ULIDS, TIME_MS_MAX, UlidPlace, begin, ulid_text
from iscp.changefeed.table.ulid_columns import ROWS_MAX, ulid_columns
from iscp.core.values.errors import InvalidRequest

DRAWN = st.binary(min_size=DRAWN_BYTES, max_size=DRAWN_BYTES)


@given(st.integers(1, TIME_MS_MAX), DRAWN, st.integers(0, 2**36), st.integers(0, 100))
def test_they_are_those_of_one_by_one(now_ms: int, drawn: bytes, before: int, count: int) -> None:
    place = begin(NO_ULIDS, now_ms, drawn).after(before)
    ulids, texts = ulid_columns(place, count)
    for column in (ulids, texts):
        column.validate(full=True)
    assert ulids.to_pylist() == [place.ulid(n) for n in range(count)]
    assert texts.to_pylist() == [ulid_text(place.ulid(n)) for n in range(count)]


def test_many_are_made_in_chunks() -> None:
    place = begin(NO_ULIDS, 2**40, bytes(range(200, 210)))
    ulids, texts = ulid_columns(place, 50_000)
    assert texts.to_pylist() == list(map(ulid_text, ulids.to_pylist()))
    assert ulids[49_999].as_py() == place.ulid(49_999)


@pytest.mark.parametrize("high", [1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("low", [0x0FFF_FFFF_FFFF_FFFF - 5, -1 - (1 << 62) - 20, (1 << 20) - 10, (1 << 50) - 1])
def test_every_carry_is_in_the_text(high: int, low: int) -> None:
    place = UlidPlace(high, low)
    assert ulid_columns(place, 20)[1].to_pylist() == [ulid_text(place.ulid(n)) for n in range(20)]


def test_more_than_an_array_holds_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match="more than one append takes"):
        ulid_columns(begin(NO_ULIDS, 1, b"\x00" * DRAWN_BYTES), ROWS_MAX + 1)
