"""Rows of large tables are looked up by keys: changes over them are the same, and no such table is read whole."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.algebra.algebra import Expr, Group, Join, JoinKind, Project, Rel, Table, TableRows, TypedColumn, Union
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.lookup_plan import LookupPlan, LookupStep, WholeTableError
from tests.fakes.algebras import NAMES, both, queries
from tests.fakes.ducks import DUCKS, LAKES, Lake, some

LARGE = st.sampled_from((NAMES[:1], NAMES[1:], NAMES))
K, N = TypedColumn(1, "k", "long"), TypedColumn(2, "n", "long")
L, M = TypedColumn(3, "k", "long"), TypedColumn(4, "n", "long")
ORDERS, ITEMS = Table((), (K, N), "orders"), Table((), (L, M), "items")


def whole_tables(relation: Rel) -> set[str]:
    return {each.name for each in relation.tables() if each.at in (TableRows.NEW, TableRows.OLD)}


def check_lookups(root: Rel, old: Lake, new: Lake, changed: tuple[str, ...], large: tuple[str, ...]) -> bool:
    """Whether there is a plan of lookups; if so, its rows are those of the plan that reads tables whole."""
    plan = ChangePlan(root, changed)
    net = plan.net_rows()
    if net is None:
        return False
    lookups = LookupPlan(plan.ids, large)
    try:
        found = lookups.over_lookups(net)
    except WholeTableError:
        return False
    DUCKS.have(old, {name: new[name] if name in changed else old[name] for name in NAMES})
    wanted = DUCKS.bag(net)
    for step in lookups.steps:
        assert isinstance(step, LookupStep) or not whole_tables(step.rows) & {*large}
        DUCKS.step(step)
    assert not whole_tables(found) & {*large}
    assert DUCKS.bag(found) == wanted
    return any(isinstance(each, LookupStep) for each in lookups.steps)


@some(120)
@given(queries(), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)), LARGE)
def test_changes_over_lookups_are_the_same(
    root: Rel, old: Lake, new: Lake, changed: tuple[str, ...], large: tuple[str, ...]
) -> None:
    check_lookups(root, old, new, changed, large)


@some(120)
@given(queries(), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)), LARGE, st.booleans())
def test_changes_over_some_lookups_are_the_same_where_tables_may_be_read_whole(
    root: Rel, old: Lake, new: Lake, changed: tuple[str, ...], large: tuple[str, ...], shared: bool
) -> None:
    plan = ChangePlan(root, changed)
    net = plan.net_rows()
    if net is None:
        return
    lookups = LookupPlan(plan.ids, large, plan.is_shared if shared else lambda _: False)
    found = lookups.over_some_lookups(net)
    DUCKS.have(old, {name: new[name] if name in changed else old[name] for name in NAMES})
    wanted = DUCKS.bag(net)
    for step in lookups.steps:
        DUCKS.step(step)
    assert DUCKS.bag(found) == wanted


@pytest.mark.full
@pytest.mark.timeout(7_200)
@some(20_000)
@given(queries(depth=4), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)), LARGE)
def test_changes_over_lookups_are_the_same_for_many_queries(
    root: Rel, old: Lake, new: Lake, changed: tuple[str, ...], large: tuple[str, ...]
) -> None:
    check_lookups(root, old, new, changed, large)


def steps_of(root: Rel, changed: tuple[str, ...]) -> list[str]:
    plan = ChangePlan(root, changed)
    lookups = LookupPlan(plan.ids, NAMES)
    net = plan.net_rows()
    assert net is not None
    lookups.over_lookups(net)
    return [f"{each.source.at}:{each.source.name}" for each in lookups.steps if isinstance(each, LookupStep)]


def test_rows_of_the_other_side_of_a_join_are_found_by_changed_rows() -> None:
    join = Join((ORDERS, ITEMS), JoinKind.INNER, both("EqualTo", K.value, L.value))
    assert steps_of(join, ("orders",)) == ["new:items"]
    assert steps_of(join, NAMES) == ["old:items", "new:orders"]


def test_rows_of_tables_behind_each_other_are_found_one_by_one() -> None:
    third = Table((), (TypedColumn(5, "k", "long"),), "items")
    below = Join((ORDERS, ITEMS), JoinKind.LEFT_OUTER, both("EqualTo", K.value, L.value))
    join = Join((below, third), JoinKind.LEFT_OUTER, both("EqualTo", M.value, third.fields[0].value))
    assert steps_of(join, ("orders",)) == ["new:items", "new:items"]


def test_rows_of_groups_are_found_by_their_keys_before_and_after() -> None:
    most = Expr("AggregateExpression", (Expr("Max", (N.value,), "long"),), "long", (False,))
    groups = Group((ORDERS,), (K.value,), (K.value, Expr("Alias", (most,), "long", (9, "m"))))
    assert steps_of(groups, ("orders",)) == ["new:orders", "old:orders"]


@pytest.mark.parametrize("kind", [JoinKind.CROSS, JoinKind.FULL_OUTER])
def test_a_large_table_that_is_needed_whole_is_refused_by_name(kind: JoinKind) -> None:
    condition = None if kind is JoinKind.CROSS else both("LessThan", K.value, L.value)
    plan = ChangePlan(Join((ORDERS, ITEMS), kind, condition), ("orders",))
    net = plan.net_rows()
    assert net is not None
    with pytest.raises(WholeTableError, match=r"all rows of (items|orders) are needed"):
        LookupPlan(plan.ids, NAMES).over_lookups(net)


def test_rows_are_not_found_by_doubles() -> None:
    """Zeros of two signs are equal, and are not found by one another's bytes."""
    left, right = (Table((), (TypedColumn(n, "d", "double"),), name) for n, name in enumerate(NAMES, 1))
    join = Join((left, right), JoinKind.INNER, both("EqualTo", left.fields[0].value, right.fields[0].value))
    with pytest.raises(WholeTableError):
        steps_of(join, ("orders",))


def test_rows_of_one_table_are_found_by_each_column_that_has_the_keys() -> None:
    """The same keys are searched for in two columns of one table, which is read twice."""
    sides = tuple(
        Project((table,), (Expr("Alias", (value.value,), "long", (number, "u")),))
        for table, value, number in ((ORDERS, K, 11), (Table((), (L, M), "orders"), M, 12))
    )
    union = Union(sides, (TypedColumn(13, "u", "long"),))
    counted = Expr("AggregateExpression", (Expr("Count", (union.fields[0].value,), "long"),), "long", (False,))
    groups = Group((union,), (union.fields[0].value,), (Expr("Alias", (counted,), "long", (14, "c")),))
    old: Lake = {"orders": Counter([(1, 5, "a", None), (5, 1, "b", None), (2, 0, None, None)]), "items": Counter()}
    new = old | {"orders": Counter([(1, 5, "a", None), (5, 1, "b", None), (5, 0, None, None)])}
    assert check_lookups(groups, old, new, NAMES[:1], NAMES)
