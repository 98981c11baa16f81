"""The ulids of an append: consecutive, without each of them being held in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.changefeed import Ulids
from iscp.changefeed.model.ulid import UlidPlace, parse_ulid

PLACE = UlidPlace(1_700_000_000_000 << 16 | 7, -(1 << 63) + 0xFFFF_FFFE)


def test_they_follow_one_another() -> None:
    ulids = Ulids(PLACE, 5)
    texts = list(ulids)
    assert texts == sorted(texts) == [ulids[number] for number in range(5)]
    assert [parse_ulid(text) for text in texts] == [ulids.bytes(number) for number in range(5)]
    assert (ulids.first, ulids.last, ulids[-2], len(ulids)) == (texts[0], texts[4], texts[3], 5)


def test_as_columns_they_are_the_same() -> None:
    ulids = Ulids(PLACE, 100)
    as_bytes, as_texts = ulids.columns()
    assert as_texts.to_pylist() == list(ulids)
    assert as_bytes.to_pylist() == [ulids.bytes(number) for number in range(100)]


def test_many_cost_no_more_than_one() -> None:
    assert Ulids(PLACE, 1 << 35).last > Ulids(PLACE, 1 << 34).last


def test_of_none_there_is_no_first() -> None:
    none = Ulids(PLACE, 0)
    assert list(none) == []
    looks: tuple[Callable[[], object], ...] = (
        lambda: none.first,
        lambda: none.last,
        lambda: none[0],
        lambda: Ulids(PLACE, 2)[2],
    )
    for look in looks:
        with pytest.raises(IndexError):
            look()
