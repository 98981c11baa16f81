"""Which queries can be made of what they give of ranges of one of their tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.query_plan import JoinSide, NotRanged, Operator, OperatorKind, RangedQuery, find_ranged
from iscp.model.sql.sql_names import TimeDependence

T = Operator(OperatorKind.TABLE, "t", table="t")
U = Operator(OperatorKind.TABLE, "u", table="u")
VALUE_OF_T = Operator(OperatorKind.AGGREGATE, "Aggregate [max]", (T,))
VALUE_OF_U = Operator(OperatorKind.AGGREGATE, "Aggregate [max]", (U,))
OWN = frozenset({"t"})


def over(kind: OperatorKind, *inputs: Operator) -> Operator:
    return Operator(kind, kind.value.title(), inputs)


def join(linear_in: JoinSide, left: Operator = T, right: Operator = U) -> Operator:
    return Operator(OperatorKind.JOIN, "Join", (left, right), keyed=True, linear_in=linear_in)


FILTERED = over(OperatorKind.FILTER, T)


@pytest.mark.parametrize(
    "root",
    [
        T,
        over(OperatorKind.PROJECT, over(OperatorKind.GENERATE, FILTERED)),
        over(OperatorKind.SORT, over(OperatorKind.EXPAND, T)),
        over(OperatorKind.UNION, T, join(JoinSide.BOTH)),
        join(JoinSide.BOTH),
        join(JoinSide.BOTH, U, T),
        join(JoinSide.LEFT),
        join(JoinSide.RIGHT, U, T),
        join(JoinSide.LEFT, join(JoinSide.BOTH), VALUE_OF_U),
        replace(FILTERED, subqueries=(VALUE_OF_U,)),
        replace(FILTERED, by_time=TimeDependence.MOMENT),
    ],
)
def test_rows_of_ranges_are_all_rows_of_what_is_linear(root: Operator) -> None:
    assert find_ranged(root, OWN) == RangedQuery()


GROUPS = replace(over(OperatorKind.AGGREGATE, join(JoinSide.BOTH)), keyed=True)


@pytest.mark.parametrize(
    "root",
    [
        GROUPS,
        over(OperatorKind.LIMIT, over(OperatorKind.SORT, over(OperatorKind.FILTER, GROUPS))),
        over(OperatorKind.WINDOW, GROUPS),
        over(OperatorKind.AGGREGATE, GROUPS),
        over(OperatorKind.UNION, VALUE_OF_U, GROUPS),
        join(JoinSide.NEITHER, GROUPS, U),
        replace(over(OperatorKind.FILTER, GROUPS), subqueries=(VALUE_OF_U,)),
    ],
)
def test_the_lowest_groups_are_put_together_whatever_is_above_them(root: Operator) -> None:
    found = find_ranged(root, OWN)
    assert isinstance(found, RangedQuery)
    assert found.groups is GROUPS


@pytest.mark.parametrize(
    ("root", "title"),
    [
        (over(OperatorKind.LIMIT, T), "Limit"),
        (over(OperatorKind.WINDOW, FILTERED), "Window"),
        (over(OperatorKind.AGGREGATE, over(OperatorKind.WINDOW, T)), "Window"),
        (over(OperatorKind.UNION, T, U), "Union"),
        (join(JoinSide.BOTH, T, FILTERED), "Join"),
        (join(JoinSide.LEFT, U, T), "Join"),
        (join(JoinSide.RIGHT), "Join"),
        (join(JoinSide.NEITHER), "Join"),
        (join(JoinSide.LEFT, T, VALUE_OF_T), "Join"),
        (over(OperatorKind.UNION, GROUPS, T), "Union"),
        (replace(FILTERED, subqueries=(VALUE_OF_T,)), "Filter"),
        (replace(over(OperatorKind.FILTER, GROUPS), subqueries=(VALUE_OF_T,)), "Filter"),
        (replace(GROUPS, by_time=TimeDependence.MOMENT), "Aggregate"),
        (U, "u"),
    ],
)
def test_what_needs_all_rows_at_once_is_named(root: Operator, title: str) -> None:
    assert find_ranged(root, OWN) == NotRanged(f"{title} needs all rows of t at once")


def test_a_table_that_a_query_has_under_two_names_is_one() -> None:
    assert find_ranged(over(OperatorKind.UNION, T, U), {"t", "u"}) == RangedQuery()
    assert find_ranged(join(JoinSide.BOTH), {"t", "u"}) == NotRanged("Join needs all rows of t and u at once")
