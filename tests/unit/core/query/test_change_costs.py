"""What a change is estimated to cost at each operator: the rows that come to it, and those among which it looks."""

from __future__ import annotations

import pytest

from iscp.core.query.change_costs import CostEstimator
from iscp.core.query.query_explanation import ChangeCost, OperatorUpkeep
from iscp.core.query.query_plan import JoinSide, Operator, OperatorKind, upkeep_of

ORDERS = Operator(OperatorKind.TABLE, "orders", table="orders")
CUSTOMERS = Operator(OperatorKind.TABLE, "customers", table="customers")
ROWS = {"orders": 5_000_000, "customers": 150_000}


def operator(kind: OperatorKind, *inputs: Operator, keyed: bool = True, linear_in: JoinSide | None = None) -> Operator:
    return Operator(kind, kind.value, inputs, keyed=keyed, linear_in=linear_in or JoinSide.NEITHER)


JOIN = operator(OperatorKind.JOIN, ORDERS, CUSTOMERS, linear_in=JoinSide.BOTH)
OUTER = operator(OperatorKind.JOIN, ORDERS, CUSTOMERS, linear_in=JoinSide.LEFT)
GROUPED = operator(OperatorKind.AGGREGATE, JOIN)
LIMIT = operator(OperatorKind.LIMIT, GROUPED, keyed=False)


def costs(of: Operator, known: dict[Operator, int] | None = None) -> list[tuple[str, int, int]]:
    found = CostEstimator(ROWS, known or {}).costs(of, upkeep_of(of))
    return [(each.table, each.changed, each.read) for each in found]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (ORDERS, [("orders", 1_000, 0)]),
        (operator(OperatorKind.FILTER, ORDERS), [("orders", 1_000, 0)]),
        (JOIN, [("customers", 1_000, 5_000_000), ("orders", 1_000, 150_000)]),
        (OUTER, [("customers", 1_000, 5_150_000), ("orders", 1_000, 5_150_000)]),
        (GROUPED, [("customers", 1_000, 5_000_000), ("orders", 1_000, 5_000_000)]),
        (operator(OperatorKind.UNION, ORDERS, ORDERS), [("orders", 2_000, 0)]),
        (operator(OperatorKind.AGGREGATE, ORDERS, keyed=False), [("orders", 1_000, 5_000_000)]),
    ],
)
def test_changed_rows_meet_those_of_the_other_tables(of: Operator, expected: list[tuple[str, int, int]]) -> None:
    assert costs(of) == expected


def test_what_is_above_an_operator_that_is_recomputed_sees_all_of_its_rows() -> None:
    above = operator(OperatorKind.PROJECT, operator(OperatorKind.WINDOW, ORDERS, keyed=False))
    assert costs(above) == [("orders", 5_000_000, 0)]
    value = Operator(OperatorKind.FILTER, "Filter", (CUSTOMERS,), subqueries=(ORDERS,))
    assert costs(value) == [("customers", 1_000, 0), ("orders", 0, 150_000)]
    assert costs(operator(OperatorKind.PROJECT, value))[1] == ("orders", 150_000, 0)


def test_rows_that_are_kept_are_counted_and_not_guessed() -> None:
    assert costs(LIMIT)[0] == ("customers", 1_000, 5_000_000)
    assert costs(LIMIT, {GROUPED: 80})[0] == ("customers", 1_000, 80)
    assert costs(LIMIT, {GROUPED: -1})[0] == ("customers", 1_000, 5_000_000)


def test_groups_whose_sums_are_kept_read_nothing_else() -> None:
    grouped = operator(OperatorKind.AGGREGATE, ORDERS)
    assert CostEstimator(ROWS, {}).costs(grouped, OperatorUpkeep.STATE) == (ChangeCost("orders", 1_000, 0),)


def test_of_a_table_whose_log_does_not_say_nothing_is_made_up() -> None:
    found = CostEstimator({"orders": 5_000_000}, {}).costs(JOIN, OperatorUpkeep.JOINED)
    assert [each.read for each in found] == [5_000_000, -1]
