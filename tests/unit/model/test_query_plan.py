"""How each operator follows a change of its input, and how that is explained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.query_plan import (
    JoinSide,
    Operator,
    OperatorKind,
    OperatorUpkeep,
    explain_operators,
    passes_stored_input,
    reads_all_again,
    upkeep_of,
    worth_storing,
)

T = Operator(OperatorKind.TABLE, "t", table="t")
U = Operator(OperatorKind.TABLE, "u", table="u")


def join(linear_in: JoinSide, keyed: bool = True) -> Operator:
    return Operator(OperatorKind.JOIN, "Join", (T, U), keyed=keyed, linear_in=linear_in)


@pytest.mark.parametrize(
    ("operator", "upkeep"),
    [
        (T, OperatorUpkeep.LINEAR),
        (Operator(OperatorKind.FILTER, "Filter", (T,)), OperatorUpkeep.LINEAR),
        (Operator(OperatorKind.EXPAND, "Expand", (T,)), OperatorUpkeep.LINEAR),
        (join(JoinSide.BOTH, keyed=False), OperatorUpkeep.JOINED),
        (join(JoinSide.LEFT), OperatorUpkeep.TOUCHED),
        (join(JoinSide.NEITHER), OperatorUpkeep.TOUCHED),
        (join(JoinSide.LEFT, keyed=False), OperatorUpkeep.WHOLE),
        (replace(join(JoinSide.LEFT, keyed=False), conditional=True), OperatorUpkeep.TOUCHED),
        (replace(join(JoinSide.NEITHER, keyed=False), conditional=True), OperatorUpkeep.WHOLE),
        (Operator(OperatorKind.AGGREGATE, "Aggregate", (T,), keyed=True), OperatorUpkeep.TOUCHED),
        (Operator(OperatorKind.AGGREGATE, "Aggregate", (T,)), OperatorUpkeep.WHOLE),
        (Operator(OperatorKind.AGGREGATE, "Aggregate", (T,), adds_up=True), OperatorUpkeep.STATE),
        (Operator(OperatorKind.WINDOW, "Window", (T,), keyed=True), OperatorUpkeep.TOUCHED),
        (Operator(OperatorKind.LIMIT, "Limit", (T,)), OperatorUpkeep.WHOLE),
    ],
)
def test_an_operator_follows_in_the_cheapest_way_that_is_right(operator: Operator, upkeep: OperatorUpkeep) -> None:
    assert upkeep_of(operator) is upkeep


def test_every_kind_has_an_upkeep() -> None:
    assert all(upkeep_of(Operator(kind, kind.value, (T, U))) in OperatorUpkeep for kind in OperatorKind)


GROUPED = Operator(OperatorKind.AGGREGATE, "Aggregate", (join(JoinSide.BOTH),), keyed=True)


def test_all_is_read_again_by_what_is_recomputed_and_by_conditions_on_values_over_more_than_one_table() -> None:
    assert not reads_all_again(GROUPED)
    assert reads_all_again(Operator(OperatorKind.LIMIT, "Limit", (GROUPED,)))
    assert not reads_all_again(Operator(OperatorKind.FILTER, "Filter", (T,), subqueries=(GROUPED,)))
    assert reads_all_again(Operator(OperatorKind.FILTER, "Filter", (GROUPED,), subqueries=(T,)))
    assert reads_all_again(Operator(OperatorKind.PROJECT, "Project", (T,), subqueries=(GROUPED,)))


def test_tables_of_subqueries_count() -> None:
    assert Operator(OperatorKind.FILTER, "Filter", (T,), subqueries=(U,)).tables() == {"t", "u"}


def test_a_tree_is_explained_parents_first_with_reason_and_remedy() -> None:
    limit = Operator(OperatorKind.LIMIT, "Limit 3", (join(JoinSide.LEFT, keyed=False),))
    explained = explain_operators(limit)
    assert [(each.depth, each.operator) for each in explained] == [(0, "Limit 3"), (1, "Join"), (2, "t"), (2, "u")]
    assert all(bool(each.reason) is (each.upkeep is OperatorUpkeep.WHOLE) for each in explained)
    assert "equality" in explained[1].remedy


def test_what_is_above_a_limit_can_be_computed_from_its_input_and_values_that_cost_little() -> None:
    assert passes_stored_input(Operator(OperatorKind.LIMIT, "Limit", (T,)))
    assert passes_stored_input(Operator(OperatorKind.AGGREGATE, "Aggregate", (T,)))
    assert not passes_stored_input(Operator(OperatorKind.AGGREGATE, "Aggregate", (T,), keyed=True))
    assert not passes_stored_input(Operator(OperatorKind.AGGREGATE, "Aggregate", (T,), adds_up=True))
    assert passes_stored_input(Operator(OperatorKind.FILTER, "Filter", (T,), subqueries=(U,)))
    ranked = Operator(OperatorKind.WINDOW, "Window", (U,))
    assert not passes_stored_input(Operator(OperatorKind.FILTER, "Filter", (T,), subqueries=(ranked,)))
    assert not passes_stored_input(Operator(OperatorKind.PROJECT, "Project", (T,), subqueries=(U,)))


def test_rows_of_one_table_are_not_kept_twice() -> None:
    assert not worth_storing(Operator(OperatorKind.FILTER, "Filter", (T,)))
    assert worth_storing(Operator(OperatorKind.PROJECT, "Project", (join(JoinSide.BOTH),)))
