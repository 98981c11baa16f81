"""How many bytes a refresh reads besides the changed rows, by the shape of its query."""

from __future__ import annotations

import pytest

from iscp.core.query.query_plan import JoinSide, Operator, OperatorKind
from iscp.core.query.scan_costs import ScanEstimator

FACT = Operator(OperatorKind.TABLE, "fact", table="fact")
OTHER = Operator(OperatorKind.TABLE, "other", table="other")
DIM = Operator(OperatorKind.TABLE, "dim", table="dim")
SIZES = {"fact": 1_000, "other": 100, "dim": 10}


def join(left: Operator, right: Operator, linear_in: JoinSide = JoinSide.BOTH) -> Operator:
    return Operator(OperatorKind.JOIN, "Join", (left, right), keyed=True, linear_in=linear_in)


def groups(below: Operator) -> Operator:
    return Operator(OperatorKind.AGGREGATE, "Aggregate", (below,), keyed=True)


def total(below: Operator, distincts: int = 0) -> Operator:
    return Operator(OperatorKind.AGGREGATE, "Aggregate", (below,), adds_up=True, distincts=distincts)


@pytest.mark.parametrize(
    ("operator", "moved", "read"),
    [
        (Operator(OperatorKind.FILTER, "Filter", (FACT,)), {"fact"}, 0),
        (join(FACT, DIM), {"fact"}, 10),
        (join(FACT, DIM), {"dim"}, 1_000),
        (join(join(FACT, OTHER), DIM), {"fact", "other"}, 1_000 + 100 + 10),
        (join(join(FACT, OTHER), DIM), {"dim"}, 1_100),
        (join(FACT, OTHER, JoinSide.LEFT), {"fact"}, 100),
        (join(FACT, OTHER, JoinSide.LEFT), {"other"}, 2 * 1_100),
        (join(FACT, OTHER, JoinSide.NEITHER), {"fact"}, 2 * 1_100),
        (groups(join(FACT, DIM)), {"fact"}, 10 + 2 * 1_010),
        (join(groups(FACT), groups(FACT)), {"fact"}, 2 * 2_000 + 2_000),
        (total(FACT), {"fact"}, 0),
        (total(FACT, distincts=2), {"fact"}, 4_000),
        (join(FACT, DIM), {"none"}, 0),
    ],
)
def test_what_belongs_to_changed_rows_is_read_once_and_what_is_recomputed_twice(
    operator: Operator, moved: set[str], read: int
) -> None:
    assert ScanEstimator(SIZES, moved).changes(operator) == read


def test_what_the_rows_of_keys_are_now_is_read_once() -> None:
    estimator = ScanEstimator(SIZES, {"fact"})
    assert estimator.rows_now(join(FACT, DIM)) == 10 + 1_010
    assert estimator.rows_now(DIM) == 0
    assert estimator.all_rows(join(FACT, join(FACT, DIM))) == 2_010


def test_the_rows_of_a_subquery_are_followed_too() -> None:
    value = total(join(FACT, OTHER))
    root = Operator(OperatorKind.FILTER, "Filter", (DIM,), subqueries=(value,))
    assert ScanEstimator(SIZES, {"fact"}).changes(root) == 100
    assert ScanEstimator(SIZES, {"fact"}).all_rows(root) == 1_110
