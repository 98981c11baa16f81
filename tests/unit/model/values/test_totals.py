"""Totals of a bag of values follow changes of it, or say that they cannot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.values.totals import (
    NO_TOTALS,
    AggregateKind,
    QueryTotals,
    Total,
    TotalChange,
    changed_total,
    exact_totals,
    merged_total,
    parse_totals,
    totals_document,
)

KINDS = [each for each in AggregateKind if each not in (AggregateKind.MOMENTS, AggregateKind.EXACT)]
VALUES = st.lists(st.integers(-3, 3), max_size=8)
EXTREMES = {AggregateKind.MOST: max, AggregateKind.LEAST: min}


def total_of(kind: AggregateKind, values: Sequence[int]) -> Total:
    if kind not in EXTREMES:
        return Total(len(values), sum(values))
    return Total(len(values), 0, EXTREMES[kind](values) if values else None)


def change_between(kind: AggregateKind, old: Sequence[int], new: Sequence[int]) -> TotalChange:
    """Values of which there are more, or fewer, as a signed bag says it."""
    weights = Counter(new)
    weights.subtract(old)
    count = sum(weights.values())
    if kind not in EXTREMES:
        return TotalChange(count, sum(value * weight for value, weight in weights.items()))
    beyond = EXTREMES[kind]
    came = [value for value, weight in weights.items() if weight > 0]
    went = [value for value, weight in weights.items() if weight < 0]
    return TotalChange(count, 0, beyond(came) if came else None, beyond(went) if went else None)


@given(st.sampled_from(KINDS), VALUES, VALUES)
def test_what_follows_is_the_total_of_all_values(kind: AggregateKind, old: list[int], new: list[int]) -> None:
    found = changed_total(kind, total_of(kind, old), change_between(kind, old, new))
    if found is None:  # only where the extreme that there was has gone, at least once, and is not exceeded
        beyond = EXTREMES[kind]
        assert Counter(old)[beyond(old)] > Counter(new)[beyond(old)]
        assert beyond([*new, beyond(old)]) == beyond(old)
    else:
        assert found == total_of(kind, new)


@given(st.sampled_from(list(EXTREMES)), VALUES, VALUES)
def test_an_extreme_follows_what_comes(kind: AggregateKind, old: list[int], came: list[int]) -> None:
    new = [*old, *came]
    assert changed_total(kind, total_of(kind, old), change_between(kind, old, new)) == total_of(kind, new)


TOTALS = QueryTotals("shape", ((Total(3, -(10**40)), Total(0, 0, None)), (Total(1, 0, -5),)))


@pytest.mark.parametrize("totals", [TOTALS, NO_TOTALS])
def test_they_come_back_from_json_digit_by_digit(totals: QueryTotals) -> None:
    assert parse_totals(json.loads(json.dumps(totals_document(totals)))) == totals


WRONG: tuple[object, ...] = (
    None,
    [],
    ["shape"],
    ["shape", 1],
    ["shape", [1]],
    ["shape", [[[1, 2.5, None]]]],
    ["shape", [[[-1, 0, 0]]]],
    ["shape", [[[1, True, 0]]]],
    ["shape", [[[1, 2, 3, 4]]]],
    [1, []],
    {"a": 1, "b": 2},
)


@pytest.mark.parametrize("document", WRONG)
def test_others_are_refused(document: object) -> None:
    with pytest.raises(ValueError, match="totals is"):
        parse_totals(document)


def test_a_consumer_that_gives_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="no QueryTotals"):
        exact_totals(((1, 2),))


@given(st.sampled_from(KINDS), st.lists(VALUES, max_size=4))
def test_totals_of_parts_are_merged(kind: AggregateKind, parts: list[list[int]]) -> None:
    every = [each for part in parts for each in part]
    assert merged_total(kind, [total_of(kind, part) for part in parts]) == total_of(kind, every)
