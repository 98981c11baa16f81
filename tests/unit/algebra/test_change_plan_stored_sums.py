"""Groups follow from stored sums: after any change they are what a recomputation of all rows gives."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.algebra.algebra import Expr, Filter, Group, Project, Rel, Table, TableRows, TypedColumn
from iscp.algebra.change_plan import ChangePlan, GroupTotals, key_columns, number_names, summed_functions
from tests.fakes.algebras import NAMES, RANDOMS, Drawn, both, number
from tests.fakes.ducks import DUCKS, LAKES, Lake, all_rows, some

DECIMALS = {"decimal(10,2)": "decimal(20,2)", "decimal(27,4)": "decimal(37,4)", "decimal(27,10)": "decimal(37,10)"}
AVERAGES = {"decimal(10,2)": "decimal(14,6)", "decimal(27,4)": "decimal(31,8)", "decimal(27,10)": "decimal(31,14)"}


def aggregate(op: str, value: Expr, kind: str, *condition: Expr) -> Expr:
    info = () if op == "Count" else ("ANSI",)
    return Expr("AggregateExpression", (Expr(op, (value,), kind, info), *condition), kind, (False,))


@st.composite
def groups(draw: st.DrawFn) -> Rel:
    """Groups of a query by one or two keys, with functions that add up, and perhaps operators above."""
    drawn = Drawn(draw(RANDOMS))
    below = drawn.relation(draw(st.integers(0, 2)))
    keys = [each.value for each in below.columns if each.type in ("long", "string")][: draw(st.integers(1, 2))]
    items = [*keys]
    for _ in range(draw(st.integers(0, 3))):
        value, condition = drawn.value(below), [drawn.condition(below)] * draw(st.booleans())
        op = draw(st.sampled_from(("Count", "Sum", "Average")))
        kind = {"Count": "long", "Sum": "long", "Average": "double"}[op]
        if op != "Count" and draw(st.booleans()):
            digits = draw(st.sampled_from([*DECIMALS]))
            value = Expr("Cast", (value,), digits, ("ANSI",))
            kind = (DECIMALS if op == "Sum" else AVERAGES)[digits]
        items.append(drawn.alias(aggregate(op, value, kind, *condition)))
    root: Rel = Group((below,), tuple(keys), tuple(items))
    if draw(st.booleans()):
        root = Filter((root,), both("IsNotNull", root.columns[-1].value))
    if draw(st.booleans()):
        root = Project((root,), tuple(drawn.alias(each.value, each.name) for each in root.columns))
    return root


def store(root: Rel, lake: Lake) -> None:
    """Stores the sums of all rows."""
    top = root
    while not isinstance(top, Group):
        (top,) = top.inputs
    plan = ChangePlan(top.inputs[0], NAMES)
    sums = GroupTotals.of(top, Table((), (), "sums", TableRows.STATE), plan.ids)
    assert sums is not None
    rows = plan.rows(top.inputs[0], TableRows.NEW)
    one = Expr("Alias", (number(1),), "long", (plan.weight.id, plan.weight.name))
    DUCKS.have(lake, lake)
    weighted = Project((rows,), (*(each.value for each in rows.columns), one))
    DUCKS.keep(sums.rows, sums.moved(weighted, plan.weight))


@some(120)
@given(groups(), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)))
def test_groups_from_stored_sums_are_those_of_all_rows(
    root: Rel, old: Lake, new: Lake, changed: tuple[str, ...]
) -> None:
    check_groups(root, old, new, changed)


def check_groups(root: Rel, old: Lake, new: Lake, changed: tuple[str, ...]) -> None:
    new = {name: new[name] if name in changed else old[name] for name in NAMES}
    few = ChangePlan(root, changed).summed_rows()
    if few is None:
        return
    before, after = all_rows(root, old), all_rows(root, new)
    store(root, old)
    DUCKS.database.execute('CREATE OR REPLACE TEMP TABLE former AS SELECT * FROM "state:sums"')
    DUCKS.have(old, new)
    DUCKS.keep(few.moved[1], few.moved[0])
    DUCKS.keep(few.now[1], few.now[0])
    keys = {*DUCKS.rows(few.touched.keys)}
    places = [[each.id for each in root.columns].index(column.id) for column in few.touched.keys.columns]
    kept = Counter({row: n for row, n in before.items() if tuple(row[place] for place in places) not in keys})
    assert kept + DUCKS.bag(few.touched.rows) == after
    store(root, new)
    same = " AND ".join(f"f.{each} IS NOT DISTINCT FROM n.{each}" for each in key_columns(len(places)))
    stays = f'SELECT f.* FROM former f ANTI JOIN "given:now" n ON {same}'
    followed = f'({stays} UNION ALL SELECT * FROM "given:now" WHERE n > 0)'
    for one, other in ((followed, 'FROM "state:sums"'), ('(FROM "state:sums")', f"FROM {followed}")):
        assert DUCKS.database.execute(f"FROM {one} EXCEPT ALL {other}").fetchall() == []


K, X = TypedColumn(1, "k", "long"), TypedColumn(2, "x", "decimal(10,2)")
D = TypedColumn(3, "d", "double")
T = Table((), (K, X, D), "t")


@pytest.mark.full
@pytest.mark.timeout(3_600)
@some(5_000)
@given(groups(), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)))
def test_groups_from_stored_sums_are_those_of_all_rows_for_many_queries(
    root: Rel, old: Lake, new: Lake, changed: tuple[str, ...]
) -> None:
    check_groups(root, old, new, changed)


@pytest.mark.parametrize(
    ("item", "adds_up"),
    [
        (aggregate("Sum", X.value, "decimal(20,2)"), True),
        (aggregate("Count", D.value, "long"), True),
        (aggregate("Average", K.value, "double"), True),
        (aggregate("Sum", D.value, "double"), False),
        (aggregate("Max", K.value, "long"), False),
        (Expr("AggregateExpression", (Expr("Count", (K.value,), "long"),), "long", (True,)), False),
        (Expr("AggregateExpression", (Expr("Sum", (K.value,), "long", ("TRY",)),), "long", (False,)), False),
    ],
    ids=["decimals", "count of doubles", "average", "doubles", "most", "distinct", "null where too large"],
)
def test_only_exact_sums_add_up(item: Expr, adds_up: bool) -> None:
    group = Group((T,), (K.value,), (K.value, Expr("Alias", (item,), item.type, (9, "v"))))
    assert (summed_functions(group) is not None) == adds_up


def test_groups_by_doubles_or_values_are_not_stored() -> None:
    item = Expr("Alias", (aggregate("Count", number(1), "long"),), "long", (9, "n"))
    for key in (D.value, Expr("Add", (K.value, number(1)), "long", ("ANSI",))):
        assert summed_functions(Group((T,), (key,), (item,))) is None
    assert number_names(1) == ["n", "c0", "s0"]


def test_a_sum_that_leaves_its_type_raises() -> None:
    group = Group(
        (Table((), (K,), "orders"),),
        (K.value,),
        (K.value, Expr("Alias", (aggregate("Sum", K.value, "long"),), "long", (9, "s"))),
    )
    summed = ChangePlan(group, ["orders"]).summed_rows()
    assert summed is not None
    values = ", ".join(str(each) for each in (1, 2, 2, Decimal(2**63)))
    DUCKS.database.execute(
        f'CREATE OR REPLACE TEMP TABLE "given:now" AS SELECT * FROM (VALUES ({values})) v(k0, n, c0, s0)'
    )
    with pytest.raises(Exception, match="out of range"):
        DUCKS.rows(summed.touched.rows)
