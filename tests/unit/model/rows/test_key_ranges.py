"""Ranges cut the keys of a table into parts that are disjoint and complete, however they were split and merged.

Digests show every change of a multiset of rows, and ranges narrow down to what differs without losing any of it.

Net changes of a multiset of rows that may share keys: a range may begin after any prefix of a history.

Which files are rewritten: few stay, and a row is rewritten a few times only, however many commits come.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iscp.model.rows import key_ranges
from iscp.model.rows.key_ranges import (
    ABSENT_BEFORE,
    COMPARED_RANGES_MAX,
    FILES_OF_A_CLASS_MAX,
    MERGED_ROWS_MAX,
    NARROWINGS_MAX,
    ROWS_PER_RANGE,
    ROWS_READ_MAX,
    Digest,
    FileRows,
    Op,
    Ranges,
    Unequal,
    files_to_merge,
    ranges_for,
    total,
    unequal,
)
from tests.fakes.bags import Bag, History, histories, key_of, net, net_op, sharing

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
    assert sizes == {0: 1, 1: 1, ROWS_PER_RANGE: 1, ROWS_PER_RANGE + 1: 2, 10**12: COMPARED_RANGES_MAX}


def test_few_large_ranges_are_narrowed_twice_at_most_and_then_read() -> None:
    found = Unequal(Ranges(COMPARED_RANGES_MAX), frozenset({7}), 10**9)
    for _ in range(NARROWINGS_MAX):
        finer = found.narrower()
        assert finer is not None
        assert (finer.of, finer.within) == (found.ranges.number, found.differing)
        assert finer.number // finer.of * len(finer.within) <= COMPARED_RANGES_MAX
        found = Unequal(finer, frozenset({7}), 10**9)
    assert found.narrower() is None
    assert found.to_read.within == {7}


def test_nothing_is_narrowed_that_is_small_or_differs_everywhere() -> None:
    assert Unequal(Ranges(COMPARED_RANGES_MAX), frozenset({7}), ROWS_READ_MAX).narrower() is None
    assert Unequal(Ranges(COMPARED_RANGES_MAX), frozenset(range(COMPARED_RANGES_MAX)), 10**9).narrower() is None


Rows = dict[int, str]


def split(bag: Bag) -> tuple[Rows, Bag]:
    """A target, and its dead letters, as a recomputation gives them."""
    shared = sharing(bag)
    return dict(row for row in bag if key_of(row) not in shared), Counter(
        {row: often for row, often in bag.items() if key_of(row) in shared}
    )


def applied(found: Mapping[int, tuple[Op, str]] | None, target: Rows, letters: Bag, after: Bag) -> tuple[Rows, Bag]:
    """As a replica takes a tail: what its rows contradict is given up for a difference, which is a recomputation."""
    if found is None or found.keys() & {key_of(row) for row in letters}:
        return split(after)
    if any(op in ABSENT_BEFORE and key in target for key, (op, _) in found.items()):
        return split(after)
    written = {key: value for key, (op, value) in found.items() if op in (Op.INSERT, Op.UPDATE)}
    return {key: value for key, value in target.items() if key not in found} | written, letters


@given(histories())
def test_a_target_equals_a_recomputation_after_every_range(history: History) -> None:
    for begin, end in history.ranges():
        target, letters = split(history.bags[begin])
        found = net(history.changes(begin, end))
        assert applied(found, target, letters, history.bags[end]) == split(history.bags[end])


@given(histories())
def test_a_store_that_keeps_one_row_of_a_key_follows_where_the_source_confirms_it(history: History) -> None:
    """The store may hold anything for keys that rows shared before, and nobody remembers which they were."""
    for begin, end in history.ranges():
        after, store = history.bags[end], dict(history.bags[begin].elements())
        found = net(history.changes(begin, end))
        of_key = Counter(key_of(row) for row in after.elements())
        if found is None or any(of_key[key] != (op in (Op.INSERT, Op.UPDATE)) for key, (op, _) in found.items()):
            continue  # a snapshot comes instead
        for key, (op, value) in found.items():
            store.pop(key, None)
            if op in (Op.INSERT, Op.UPDATE):
                store[key] = value
        alone = {key: value for key, value in after if key not in sharing(after)}
        assert {key: store.get(key) for key in alone} == alone
        assert store.keys() == of_key.keys()


@given(histories())
def test_there_is_no_doubt_where_no_rows_share_a_key(history: History) -> None:
    for begin, end in history.ranges():
        if not any(sharing(bag) for bag in history.bags[begin : end + 1]):
            found = net(history.changes(begin, end))
            assert found is not None
            before = {key_of(row) for row in history.bags[begin]}
            assert all((op in ABSENT_BEFORE) == (key not in before) for key, (op, _) in found.items())


@pytest.mark.parametrize(
    ("writes", "op"),
    [
        ([True], Op.INSERT),
        ([True, False], Op.PASSED),
        ([False], Op.DELETE),
        ([False, True], Op.UPDATE),
        ([True, False, True, False, True], Op.INSERT),
        ([False, True, False, True, False], Op.DELETE),
        ([True, True], None),
        ([False, False], None),
        # Whatever rows shared the key, all were removed before the last was written, or all are gone.
        ([True, True, False, False], Op.PASSED),
        ([True, True, False, False, True], Op.INSERT),
        ([False, True, True, False, False, True], Op.UPDATE),
        ([True, True, False], None),
        ([False, False, True, True], None),
        ([True, False, False, True], None),
    ],
)
def test_the_first_and_the_last_change_count_where_the_rows_add_up(writes: list[bool], op: Op | None) -> None:
    assert net_op(writes) is op


class Table:
    """The files that commits of few rows leave."""

    def __init__(self) -> None:
        self.files: dict[str, FileRows] = {}
        self.number = 0
        self.rewritten = 0

    def commit(self, coming: int, going: dict[str, int] | None = None) -> None:
        for name, rows in (going or {}).items():
            held = self.files[name]
            self.files[name] = FileRows(held.written, held.left - rows)
        self.files = {name: rows for name, rows in self.files.items() if rows.left}
        merged = files_to_merge(self.files, coming)
        rewritten = sum(self.files.pop(name).left for name in merged)
        self.rewritten += rewritten
        if coming + rewritten:
            self.number += 1
            self.files[str(self.number)] = FileRows(coming + rewritten, coming + rewritten)


def test_a_table_of_ten_thousand_commits_has_few_files_and_rows_are_rewritten_once_a_class() -> None:
    table, draw, written = Table(), random.Random(1), 0
    for _ in range(10_000):
        coming = draw.randint(1, 40)
        written += coming
        table.commit(coming)
        assert len(table.files) <= 6 * (FILES_OF_A_CLASS_MAX + 1)
    assert sum(rows.left for rows in table.files.values()) == written
    assert table.rewritten <= 5 * written


def test_a_file_most_of_whose_rows_are_gone_is_rewritten() -> None:
    files = {"most": FileRows(100, 40), "half": FileRows(100, 50), "none": FileRows(100, 100), "all": FileRows(9, 0)}
    assert files_to_merge(files, 0) == {"most"}


def test_large_files_are_left_as_they_are() -> None:
    large = MERGED_ROWS_MAX + 1
    assert files_to_merge({"most gone": FileRows(3 * large, large)}, 10) == frozenset()
    many = {str(number): FileRows(large, large) for number in range(2 * FILES_OF_A_CLASS_MAX)}
    assert files_to_merge(many, 1) == frozenset()


def test_no_commit_writes_more_than_the_limit() -> None:
    files = {str(number): FileRows(300_000, 140_000) for number in range(20)}
    merged = files_to_merge(files, 0)
    assert merged
    assert sum(files[name].left for name in merged) <= MERGED_ROWS_MAX


def test_rows_that_come_count_as_a_file_of_their_class() -> None:
    files = {str(number): FileRows(20, 20) for number in range(FILES_OF_A_CLASS_MAX)}
    assert files_to_merge(files, 20) == {*files}
    assert files_to_merge(files, 1) == frozenset()
