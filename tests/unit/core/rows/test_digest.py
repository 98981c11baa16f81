"""Digests show every change of a multiset of rows, and ranges narrow down to what differs without losing any of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from hypothesis import assume, given
from hypothesis import strategies as st

from iscp.core.rows.digest import (
    NARROWINGS_MAX,
    RANGES_MAX,
    ROWS_PER_RANGE,
    ROWS_READ_MAX,
    Digest,
    Ranges,
    Unequal,
    ranges_for,
    total,
    unequal,
)

Row = tuple[int, str | None]
ROWS = st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.text(max_size=3))), max_size=30)


def hashed(row: Row) -> tuple[int, int]:
    digest = hashlib.blake2b(repr(row).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8]), int.from_bytes(digest[8:])


def key_class(row: Row) -> int:
    return int.from_bytes(hashlib.blake2b(str(row[0]).encode(), digest_size=8).digest())


def looked_at(row: Row, ranges: Ranges) -> bool:
    return key_class(row) % ranges.of in ranges.within


def digests(rows: Iterable[Row], ranges: Ranges) -> dict[int, Digest]:
    found: dict[int, Digest] = {}
    for row in rows:
        if looked_at(row, ranges):
            each = key_class(row) % ranges.number
            found[each] = found.get(each, Digest()) + Digest(1, *hashed(row))
    return found


@given(source=ROWS, target=ROWS, number=st.integers(1, 9))
def test_any_change_of_a_multiset_shows_and_order_does_not(source: list[Row], target: list[Row], number: int) -> None:
    ranges = Ranges(number)
    found = unequal(ranges, digests(source, ranges), digests(target, ranges))
    assert bool(found.differing) == (Counter(source) != Counter(target))
    assert total(digests(source, ranges)).rows == len(source)
    assert digests(reversed(source), ranges) == digests(source, ranges)


@given(rows=ROWS, doubled=st.integers(0, 29), times=st.integers(1, 3))
def test_a_doubled_row_shows(rows: list[Row], doubled: int, times: int) -> None:
    assume(rows)
    ranges = Ranges(4)
    more = [*rows, *[rows[doubled % len(rows)]] * times]
    assert len(unequal(ranges, digests(rows, ranges), digests(more, ranges)).differing) == 1


@given(source=ROWS, target=ROWS, number=st.integers(1, 5), cuts=st.integers(2, 7))
def test_rows_that_differ_stay_in_the_narrower_ranges(
    source: list[Row], target: list[Row], number: int, cuts: int
) -> None:
    first = Ranges(number)
    found = unequal(first, digests(source, first), digests(target, first))
    finer = Ranges(number * cuts, number, found.differing, 1)
    narrowed = unequal(finer, digests(source, finer), digests(target, finer))
    differing = (Counter(source) - Counter(target)) + (Counter(target) - Counter(source))
    assert all(looked_at(row, found.to_read) and looked_at(row, narrowed.to_read) for row in differing)
    assert {each % number for each in narrowed.differing} == found.differing


def test_the_number_of_ranges_follows_the_rows() -> None:
    sizes = {rows: ranges_for(rows).number for rows in (0, 1, ROWS_PER_RANGE, ROWS_PER_RANGE + 1, 10**12)}
    assert sizes == {0: 1, 1: 1, ROWS_PER_RANGE: 1, ROWS_PER_RANGE + 1: 2, 10**12: RANGES_MAX}


def test_few_large_ranges_are_narrowed_twice_at_most_and_then_read() -> None:
    found = Unequal(Ranges(RANGES_MAX), frozenset({7}), 10**9)
    for _ in range(NARROWINGS_MAX):
        finer = found.narrower()
        assert finer is not None
        assert (finer.of, finer.within) == (found.ranges.number, found.differing)
        assert finer.number // finer.of * len(finer.within) <= RANGES_MAX
        found = Unequal(finer, frozenset({7}), 10**9)
    assert found.narrower() is None
    assert found.to_read.within == {7}


def test_nothing_is_narrowed_that_is_small_or_differs_everywhere() -> None:
    assert Unequal(Ranges(RANGES_MAX), frozenset({7}), ROWS_READ_MAX).narrower() is None
    assert Unequal(Ranges(RANGES_MAX), frozenset(range(RANGES_MAX)), 10**9).narrower() is None
