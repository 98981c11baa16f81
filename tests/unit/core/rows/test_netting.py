"""Net changes of a multiset of rows that may share keys: a range may begin after any prefix of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given

from iscp.core.rows.netting import ABSENT_BEFORE, Op
from tests.fakes.bags import Bag, History, histories, key_of, net, net_op, sharing

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
