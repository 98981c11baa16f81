"""The changes of a query's rows are the difference of its rows before and after, for any query, tables and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from multiprocessing import Pool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.algebra.algebra import (
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Opaque,
    Project,
    Rel,
    Table,
    TypedColumn,
    Windowed,
)
from iscp.algebra.change_plan import ChangePlan
from tests.fakes.algebras import NAMES, both, number, queries
from tests.fakes.ducks import DUCKS, LAKES, Lake, Row, all_rows, applied, some
from tests.random_views.properties import CHUNK, played_seed, summed_up


def check_net_changes(root: Rel, old: Lake, new: Lake) -> None:
    before, after = all_rows(root, old), all_rows(root, new)
    assert applied(before, DUCKS.net(root, old, new)) == after
    one = {NAMES[0]: new[NAMES[0]], NAMES[1]: old[NAMES[1]]}
    assert applied(before, DUCKS.net(root, old, one, NAMES[:1])) == all_rows(root, one)


def check_several_commits(root: Rel, first: Lake, second: Lake, third: Lake) -> None:
    rows = all_rows(root, first)
    once = applied(rows, DUCKS.net(root, first, third))
    each = applied(applied(rows, DUCKS.net(root, first, second)), DUCKS.net(root, second, third))
    assert once == each


def check_parts(root: Rel, old: Lake, new: Lake, order: list[int]) -> None:
    """Rows for which a condition is true, false and null come and go one part after the other."""

    def part(row: Row) -> int:
        return 2 if row[1] is None else int(row[1] > 0)

    rows, lake = all_rows(root, old), old
    for chosen in order:
        bags = {name: Counter({row: n for row, n in lake[name].items() if part(row) != chosen}) for name in NAMES}
        for name in NAMES:
            bags[name].update({row: n for row, n in new[name].items() if part(row) == chosen})
        rows, lake = applied(rows, DUCKS.net(root, lake, bags)), bags
    assert rows == all_rows(root, new)


def as_key(values: Iterable[object]) -> tuple[object, ...]:
    """Zeros of both signs are one key, as where a target's rows are found."""
    return tuple("0.0" if each == "-0.0" else each for each in values)


def check_touched_rows(root: Rel, old: Lake, new: Lake) -> None:
    keyed = ChangePlan(root, NAMES).keyed_rows()
    if keyed is None:
        return
    before, after = all_rows(root, old), all_rows(root, new)
    DUCKS.have(old, new)
    places = [[each.id for each in root.columns].index(column.id) for column in keyed.keys.columns]
    keys = {*map(as_key, DUCKS.rows(keyed.keys))}
    kept = Counter({row: n for row, n in before.items() if as_key(row[place] for place in places) not in keys})
    assert kept + DUCKS.bag(keyed.rows) == after


@some(60)
@given(queries(), LAKES, LAKES)
def test_net_changes_are_the_difference_of_two_recomputations(root: Rel, old: Lake, new: Lake) -> None:
    check_net_changes(root, old, new)


@some(25)
@given(queries(), LAKES, LAKES, LAKES)
def test_several_commits_in_one_refresh_are_the_same_as_each_in_its_own(
    root: Rel, first: Lake, second: Lake, third: Lake
) -> None:
    check_several_commits(root, first, second, third)


@some(25)
@given(queries(), LAKES, LAKES, st.permutations(range(3)))
def test_a_change_in_parts_is_the_same_in_any_order(root: Rel, old: Lake, new: Lake, order: list[int]) -> None:
    check_parts(root, old, new, order)


@some(50)
@given(queries(), LAKES, LAKES)
def test_rows_of_touched_keys_replace_those_that_were_there(root: Rel, old: Lake, new: Lake) -> None:
    check_touched_rows(root, old, new)


@pytest.mark.full
@pytest.mark.timeout(7_200)
@some(20_000)
@given(queries(depth=4), LAKES, LAKES, LAKES, st.permutations(range(3)))
def test_all_of_it_holds_for_many_queries(root: Rel, old: Lake, new: Lake, other: Lake, order: list[int]) -> None:
    check_net_changes(root, old, new)
    check_several_commits(root, old, other, new)
    check_parts(root, old, new, order)
    check_touched_rows(root, old, new)


def test_random_histories_commute_and_split() -> None:
    played = summed_up(map(played_seed, range(40)))
    assert played.failed == {}
    assert {*played.refreshes} == {"net", "keyed", "summed"}


@pytest.mark.full
@pytest.mark.timeout(36_000)
def test_many_random_histories_commute_and_split() -> None:
    with Pool() as pool:
        played = summed_up(pool.imap_unordered(played_seed, range(100_000), CHUNK))
    assert played.failed == {}


# --- plans ------------------------------------------------------------------------------------------------------------

K, N = TypedColumn(1, "k", "long"), TypedColumn(2, "n", "long")
L, M = TypedColumn(3, "k", "long"), TypedColumn(4, "n", "long")
ORDERS, ITEMS = Table((), (K, N), "orders"), Table((), (L, M), "items")


def leaves(relation: Rel | None) -> Counter[str]:
    assert relation is not None
    found: Counter[str] = Counter()
    seen: set[int] = set()
    for each in relation.walk():
        if isinstance(each, Table) and id(each) not in seen:
            seen.add(id(each))
            found[f"{each.at}:{each.name}"] += 1
    return found


def test_a_table_that_does_not_change_is_read_once_and_as_it_is() -> None:
    join = Join((ORDERS, ITEMS), JoinKind.INNER, both("EqualTo", K.value, L.value))
    assert leaves(ChangePlan(join, ["orders"]).net_rows()) == {"changes:orders": 1, "new:items": 1}
    assert leaves(ChangePlan(join, NAMES).net_rows()) == {
        "changes:orders": 1,
        "old:items": 1,
        "new:orders": 1,
        "changes:items": 1,
    }
    assert ChangePlan(join, ["others"]).net_rows() is None


def reduced_tables(relation: Rel) -> set[str]:
    """The tables of which only rows with touched keys are read."""
    return {
        f"{table.at}:{table.name}"
        for each in relation.walk()
        if isinstance(each, Join) and each.kind is JoinKind.LEFT_SEMI
        for table in each.inputs[:1]
        if isinstance(table, Table)
    }


def test_keys_go_down_to_the_tables() -> None:
    summed = Expr("AggregateExpression", (Expr("Sum", (N.value,), "long", ("ANSI",)),), "long", (False,))
    below = Filter(
        (Join((ORDERS, ITEMS), JoinKind.LEFT_OUTER, both("EqualTo", N.value, M.value)),), both("IsNotNull", K.value)
    )
    groups = Group(
        (Project((below,), (K.value, N.value)),), (K.value,), (K.value, Expr("Alias", (summed,), "long", (9, "s")))
    )
    keyed = ChangePlan(groups, ["orders"]).keyed_rows()
    assert keyed is not None
    assert reduced_tables(keyed.rows) == {"new:orders"}
    net = ChangePlan(groups, ["orders"]).net_rows()
    assert net is not None
    assert reduced_tables(net) == {"new:orders", "old:orders"}


@pytest.mark.parametrize(
    ("opaque", "read"),
    [
        (Opaque((ITEMS,), (L, M), "Generate", "a list", linear=True), {"changes:items"}),
        (
            Opaque((ITEMS,), (L, M), "Aggregate", "sessions", keys=(L.value,)),
            {"changes:items", "new:items", "old:items"},
        ),
        (Opaque((ITEMS,), (L, M), "Sample", "a share"), {"new:items", "old:items"}),
    ],
)
def test_what_only_spark_has_is_planned_by_what_is_known_of_it(opaque: Opaque, read: set[str]) -> None:
    changes = ChangePlan(opaque, ["items"]).changes(opaque)
    assert changes is not None
    assert {f"{each.at}:{each.name}" for each in changes.tables()} == read
    assert ChangePlan(opaque, ["orders"]).changes(opaque) is None


def test_windows_have_their_partitions_recomputed() -> None:
    place = Expr("WindowExpression", (Expr("RowNumber", (), "integer"),), "integer", ("ROWS", None, 0))
    order = (Expr("SortOrder", (N.value,), "long", (True, True)),)
    window = Windowed((ORDERS,), (Expr("Alias", (place,), "integer", (9, "r")),), (K.value,), order)
    first = Filter((window,), both("EqualTo", Expr("Column", (), "integer", (9, "r")), number(1)))
    keyed = ChangePlan(window, ["orders"]).keyed_rows()
    assert keyed is not None
    assert reduced_tables(keyed.rows) == {"new:orders"}
    assert [each.name for each in keyed.keys.columns] == ["k"]
    assert ChangePlan(first, ["orders"]).keyed_rows() is not None
