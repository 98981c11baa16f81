"""Ranges cut the keys of a table into parts that are disjoint and complete, however they were split and merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.rows import key_ranges

RANGES = st.integers(1, 2 * key_ranges.RANGES_MAX - 1)
HASHES = st.integers(-(2**63), 2**63 - 1)


@given(RANGES, HASHES)
def test_a_key_is_in_a_range_and_in_one_of_its_halves(range_id: int, key_hash: int) -> None:
    if key_ranges.may_split(range_id):
        halves = [key_ranges.holds(child, key_hash) for child in key_ranges.children(range_id)]
        assert sum(halves) == key_ranges.holds(range_id, key_hash)


@given(RANGES, RANGES)
def test_ranges_overlap_where_they_share_hashes(one: int, other: int) -> None:
    (low, high), (from_, to) = key_ranges.hashes(one), key_ranges.hashes(other)
    assert key_ranges.overlaps(one, other) == (low <= to and from_ <= high)
    assert (other in key_ranges.overlapping(one)) == (key_ranges.overlaps(one, other) and one != other)


def test_the_whole_holds_every_hash() -> None:
    assert key_ranges.hashes(1) == (-(2**63), 2**63 - 1)
    assert [key_ranges.hashes(each) for each in (2, 3)] == [(-(2**63), -1), (0, 2**63 - 1)]
    assert len(key_ranges.below(1)) == 2 * key_ranges.RANGES_MAX - 2
    assert key_ranges.above(1) == []
    assert key_ranges.above(11) == [5, 2, 1]
    assert key_ranges.overlapping(32)[-2:] == [64, 65]
    assert not key_ranges.may_split(64)
    assert key_ranges.may_split(63)


def test_the_deepest_are_there_in_pairs() -> None:
    assert key_ranges.deepest([1]) == []
    assert key_ranges.deepest([2, 3]) == [1]
    assert key_ranges.deepest([2, 6, 28, 29, 15]) == [14]
    assert key_ranges.deepest([4, 5, 6, 7]) == [2, 3]
    assert (key_ranges.sibling(6), key_ranges.sibling(7), key_ranges.parent(7)) == (7, 6, 3)


@pytest.mark.parametrize("range_id", [0, -1, 128])
def test_what_is_no_range_has_no_depth(range_id: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        key_ranges.depth(range_id)


def test_conditions_are_those_of_spark() -> None:
    assert key_ranges.condition_sql(["a"], 1) == ""
    assert key_ranges.condition_sql(["a"], 3) == f"{key_ranges.hash_sql(['a'])} BETWEEN 0L AND 9223372036854775807L"
    assert "CAST(`b``` AS STRING)" in key_ranges.hash_sql(["a", "b`"])


@pytest.mark.parametrize("range_id", [1, 2, 3, 5, 44, 127])
@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_parts_are_those_that_share_hashes_with_the_range(range_id: int, count: int) -> None:
    width = 2**64 // count
    low, high = (each + 2**63 for each in key_ranges.hashes(range_id))
    expected = [part for part in range(count) if part * width <= high and (part + 1) * width > low]
    assert list(key_ranges.parts(range_id, count)) == expected
