"""Ranges cut the keys of a table into parts that are disjoint and complete, however they were split and merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core import shard

RANGES = st.integers(1, 2 * shard.RANGES_MAX - 1)
HASHES = st.integers(-(2**63), 2**63 - 1)


@given(RANGES, HASHES)
def test_a_key_is_in_a_range_and_in_one_of_its_halves(range_id: int, key_hash: int) -> None:
    if shard.may_split(range_id):
        halves = [shard.holds(child, key_hash) for child in shard.children(range_id)]
        assert sum(halves) == shard.holds(range_id, key_hash)


@given(RANGES, RANGES)
def test_ranges_overlap_where_they_share_hashes(one: int, other: int) -> None:
    (low, high), (from_, to) = shard.hashes(one), shard.hashes(other)
    assert shard.overlaps(one, other) == (low <= to and from_ <= high)
    assert (other in shard.overlapping(one)) == (shard.overlaps(one, other) and one != other)


def test_the_whole_holds_every_hash() -> None:
    assert shard.hashes(1) == (-(2**63), 2**63 - 1)
    assert [shard.hashes(each) for each in (2, 3)] == [(-(2**63), -1), (0, 2**63 - 1)]
    assert len(shard.below(1)) == 2 * shard.RANGES_MAX - 2
    assert shard.above(1) == []
    assert shard.above(11) == [5, 2, 1]
    assert shard.overlapping(32)[-2:] == [64, 65]
    assert not shard.may_split(64)
    assert shard.may_split(63)


def test_the_deepest_are_there_in_pairs() -> None:
    assert shard.deepest([1]) == []
    assert shard.deepest([2, 3]) == [1]
    assert shard.deepest([2, 6, 28, 29, 15]) == [14]
    assert shard.deepest([4, 5, 6, 7]) == [2, 3]
    assert (shard.sibling(6), shard.sibling(7), shard.parent(7)) == (7, 6, 3)


@pytest.mark.parametrize("range_id", [0, -1, 128])
def test_what_is_no_range_has_no_depth(range_id: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        shard.depth(range_id)


def test_conditions_are_those_of_spark() -> None:
    assert shard.condition_sql(["a"], 1) == ""
    assert shard.condition_sql(["a"], 3) == f"{shard.hash_sql(['a'])} BETWEEN 0L AND 9223372036854775807L"
    assert "CAST(`b``` AS STRING)" in shard.hash_sql(["a", "b`"])
    assert shard.both("", "x") == shard.both("x", "") == "x"
    assert shard.both("a -- b", "c") == "(a -- b\n) AND (c\n)"


@pytest.mark.parametrize("range_id", [1, 2, 3, 5, 44, 127])
@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_parts_are_those_that_share_hashes_with_the_range(range_id: int, count: int) -> None:
    width = 2**64 // count
    low, high = (each + 2**63 for each in shard.hashes(range_id))
    expected = [part for part in range(count) if part * width <= high and (part + 1) * width > low]
    assert list(shard.parts(range_id, count)) == expected
