"""Digests show every change of a multiset of rows, and ranges narrow down to what differs without losing any of it.

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

from iscp.model.rows.differences import (
    ABSENT_BEFORE,
    FILES_OF_A_CLASS_MAX,
    MERGED_ROWS_MAX,
    NARROWINGS_MAX,
    RANGES_MAX,
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
