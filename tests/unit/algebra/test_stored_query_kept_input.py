"""What is above a stored part of a query is computed of that part, and is what a recomputation of all rows gives."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from iscp.algebra.algebra import (
    Expr,
    Filter,
    Group,
    Limit,
    Project,
    Rel,
    Sort,
    Table,
    TableRows,
    TypedColumn,
    Windowed,
)
from iscp.algebra.change_plan import ChangePlan, GroupTotals
from iscp.algebra.duck_text import identifier, leaf_name
from iscp.algebra.stored_query import KeptInput, KeptRows, plan_kept_rows
from tests.fakes.algebras import NAMES, RANDOMS, Drawn, both, number, total
from tests.fakes.ducks import DUCKS, LAKES, Lake, all_rows, some


@st.composite
def kept_queries(draw: st.DrawFn) -> KeptInput:
    """Groups of a query, and above them what is made of all of their rows."""
    drawn = Drawn(draw(RANDOMS))
    below = drawn.relation(draw(st.integers(0, 2)))
    keys = tuple(each.value for each in below.columns if each.type in ("long", "string"))[: draw(st.integers(1, 2))]
    value, summed = drawn.value(below), draw(st.booleans())
    function = total(value)
    if not summed:
        function = Expr("AggregateExpression", (Expr("Max", (value,), "long"),), "long", (False,))
    part: Rel = Group((below,), keys, (*keys, drawn.alias(function)))
    if draw(st.booleans()) and not summed:
        part = Project((part,), tuple(drawn.alias(each.value, each.name) for each in part.columns))
    order = tuple(Expr("SortOrder", (each.value,), each.type, (True, True)) for each in reversed(part.columns))
    above: list[Rel] = [Sort((part,), order)]
    match draw(st.sampled_from(("limit", "total", "window", "filter"))):
        case "limit":
            above.append(Limit((above[-1],), draw(st.integers(0, 3)), draw(st.integers(0, 1))))
        case "total":
            above.append(Group((part,), (), (drawn.alias(total(part.columns[-1].value)),)))
        case "window":
            rank = Expr("WindowExpression", (Expr("RowNumber", (), "integer"),), "integer", ("ROWS", None, 0))
            above = [Windowed((part,), (drawn.alias(rank),), (), order)]
        case _:
            more = Filter((above[-1],), both("LessThan", part.columns[-1].value, number(draw(st.integers(-2, 6)))))
            above += [more, Project((more,), (part.columns[-1].value,))]
    root, depth = above[-1], 0
    each = root
    while each is not part:
        depth, (each,) = depth + 1, each.inputs
    return KeptInput(root, depth, summed)


def store(kept: KeptInput, found: KeptRows, lake: Lake) -> None:
    """Stores the part of all rows."""
    DUCKS.have(lake, lake)
    if not kept.summed:
        DUCKS.keep(found.stored, kept.part)
        return
    assert isinstance(kept.part, Group)
    plan = ChangePlan(kept.part.inputs[0], NAMES)
    sums = GroupTotals.of(kept.part, Table((), (), "kept", TableRows.STATE), plan.ids)
    assert sums is not None
    rows = plan.rows(kept.part.inputs[0], TableRows.NEW)
    one = Expr("Alias", (number(1),), "long", (plan.weight.id, plan.weight.name))
    weighted = Project((rows,), (*(each.value for each in rows.columns), one))
    DUCKS.keep(sums.rows, sums.moved(weighted, plan.weight))


@some(150)
@given(kept_queries(), LAKES, LAKES, st.sampled_from((NAMES[:1], NAMES)))
def test_the_result_follows_from_what_is_kept(kept: KeptInput, old: Lake, new: Lake, changed: tuple[str, ...]) -> None:
    assert kept.is_sound
    new = {name: new[name] if name in changed else old[name] for name in NAMES}
    planned = plan_kept_rows(kept, changed)
    if planned is None:
        return
    _, found = planned
    after = all_rows(kept.root, new)
    store(kept, found, old)
    DUCKS.have(old, new)
    for relation, leaf in (found.moved, found.now):
        DUCKS.keep(leaf, relation)
    assert DUCKS.bag(found.result) == after
    stored, moved, now = (identifier(leaf_name(each)) for each in (found.stored, found.moved[1], found.now[1]))
    same = " AND ".join(f"s.{each} IS NOT DISTINCT FROM m.{each}" for each in found.keys)
    stays = "WHERE n > 0" if kept.summed else ""
    merged = f"SELECT s.* FROM {stored} s ANTI JOIN {moved} m ON {same} UNION ALL SELECT * FROM {now} {stays}"
    followed = Counter(DUCKS.database.execute(merged).fetchall())
    store(kept, found, new)
    assert followed == Counter(DUCKS.database.execute(f"FROM {stored}").fetchall())


K, N = TypedColumn(1, "k", "long"), TypedColumn(2, "n", "long")
ORDERS = Table((), (K, N), "orders")


def test_a_part_that_is_not_there_is_none() -> None:
    """As a forged file may name it."""
    groups = Group((ORDERS,), (K.value,), (K.value, Expr("Alias", (total(N.value),), "long", (3, "s"))))
    limit = Limit((Sort((groups,), (Expr("SortOrder", (K.value,), "long", (True, True)),)),), 3)
    assert KeptInput(limit, 2, True).is_sound
    assert not KeptInput(limit, 1, True).is_sound, "which is no group"
    assert KeptInput(limit, 1, False).is_sound
    assert not any(KeptInput(limit, depth, False).is_sound for depth in (0, 4, 60))
