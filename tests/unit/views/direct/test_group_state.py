"""Groups that follow random changed rows, as Arrow holds them, against groups that are counted row by row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, weights_of
from iscp.core.query.group_query import GroupQuery, Output, key_columns
from iscp.core.sql.sql_names import OP, WEIGHT
from iscp.core.values.totals import AggregateKind
from iscp.views.direct.group_state import UnfitGroupsError, change_groups, sum_up

SOURCE = pa.schema(
    [("g", pa.string()), ("h", pa.date32()), ("x", pa.int32()), ("d", pa.decimal128(18, 2)), ("t", pa.string())]
)
VALUES: list[list[Any]] = [
    [None, "", "p", "P", "p "],
    [None, date(1500, 1, 1), date(2026, 2, 28)],
    [None, 0, 7, 2**31 - 1, -(2**31)],
    [None, Decimal("0.00"), Decimal("-9999999999999.99"), Decimal("0.01")],
    [None, "a text"],
]
QUERY = GroupQuery(
    ("g", "h"),
    (
        Output("n", AggregateKind.COUNT),
        Output("day", None, "h"),
        Output("name", None, "g"),
        Output("k", AggregateKind.COUNT, "t"),
        Output("s", AggregateKind.SUM, "x"),
        Output("m", AggregateKind.AVERAGE, "x"),
        Output("ds", AggregateKind.SUM, "d", scale=2),
        Output("dm", AggregateKind.AVERAGE, "d", scale=6),
    ),
    {"x": 0, "d": 2},
)
VIEW = pa.schema(
    [
        ("n", pa.int64()),
        ("day", pa.date32()),
        ("name", pa.string()),
        ("k", pa.int64()),
        ("s", pa.int64()),
        ("m", pa.float64()),
        ("ds", pa.decimal128(28, 2)),
        ("dm", pa.decimal128(22, 6)),
    ]
)
KEYS = key_columns(2)
Row = tuple[Any, ...]


def changed(rows: Iterable[tuple[str, Row]]) -> pa.Table:
    """As a change data feed has them."""
    listed = list(rows)
    columns = [pa.array([row[place] for _, row in listed], field.type) for place, field in enumerate(SOURCE)]
    kinds = pa.array([kind for kind, _ in listed], pa.string())
    feed = pa.Table.from_arrays(columns, schema=SOURCE).append_column(CHANGE_TYPE, kinds)
    return feed.append_column(WEIGHT, weights_of(feed))


def result(rows: Counter[Row]) -> dict[Row, Row]:
    """Of each group its row in the view, by definition."""
    found = {}
    for key in {row[:2] for row in rows}:
        of_group = [row for row in rows.elements() if row[:2] == key]
        x, d, t = ([row[place] for row in of_group if row[place] is not None] for place in (2, 3, 4))
        mean = Fraction(sum(d)) / len(d) if d else None
        rounded = None if mean is None else Decimal(int(abs(mean) * 10**6 + Fraction(1, 2))).scaleb(-6)
        found[key] = (
            len(of_group),
            key[1],
            key[0],
            len(t),
            sum(x) if x else None,
            sum(x) / len(x) if x else None,
            sum(d) if d else None,
            -rounded if rounded is not None and mean is not None and mean < 0 else rounded,
        )
    return found


def applied(held: dict[Row, Row], changes: pa.Table, keys: list[str]) -> None:
    for row in changes.to_pylist():
        op, key = row.pop(OP), tuple(row[name] for name in keys)
        assert (key in held) == (op != "i")
        if op == "d":
            del held[key]
        else:
            held[key] = tuple(row.values())


def table(held: dict[Row, Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in held.values()], schema)


@pytest.mark.parametrize("seed", range(6))
def test_groups_come_change_go_and_come_back(seed: int) -> None:
    draw, rows = random.Random(seed), Counter[Row]()
    view: dict[Row, Row] = {}
    kept: dict[Row, Row] = {}
    for _ in range(30):
        went = draw.sample(list(rows.elements()), draw.randint(0, sum(rows.values())))
        came = [tuple(map(draw.choice, VALUES)) for _ in range(draw.randint(0, 12))]
        changes = [(draw.choice(["delete", "update_preimage"]), row) for row in went]
        changes += [(draw.choice(["insert", "update_postimage"]), row) for row in came]
        deltas = sum_up(QUERY, changed(changes))
        held = table(kept, _nothing(deltas).schema)
        found = change_groups(QUERY, deltas, held, VIEW)
        applied(kept, found.stored, KEYS)
        applied(view, found.view, ["name", "day"])
        rows = rows + Counter(came) - Counter(went)
        assert view == result(rows)


def _nothing(deltas: pa.Table) -> pa.Table:
    """What is kept of no group."""
    numbers = ["n", *(f"{kind}{place}" for place in range(len(QUERY.measured)) for kind in "cs")]
    return pa.schema([*deltas.select(KEYS).schema, *(pa.field(name, pa.int64()) for name in numbers)]).empty_table()


def test_rows_that_go_and_are_not_there_and_sums_that_are_too_large_are_not_for_here() -> None:
    row = ("p", None, 1, None, None)
    gone = sum_up(QUERY, changed([("delete", row)]))
    with pytest.raises(UnfitGroupsError):
        change_groups(QUERY, gone, _nothing(gone), VIEW)
    came = sum_up(QUERY, changed([("insert", row)]))
    kept = change_groups(QUERY, came, _nothing(came), VIEW).stored.drop_columns([OP])
    most = kept.set_column(kept.schema.names.index("s1"), "s1", pa.array([2**63 - 1], pa.int64()))
    with pytest.raises(UnfitGroupsError):
        change_groups(QUERY, came, most, VIEW)


@pytest.mark.parametrize(
    ("rows", "counts", "total"), [(1, 2, 0), (1, -1, 0), (0, 0, 1), (-1, 0, 0), (1, 1, 2**63), (0, 3, 0)]
)
def test_what_rows_cannot_come_to_and_what_is_too_large_is_not_for_here(rows: int, counts: int, total: int) -> None:
    deltas = sum_up(QUERY, changed([("insert", ("p", None, None, None, None))]))
    for name, value in (("n", rows), ("c1", counts), ("s1", total)):
        place = deltas.schema.names.index(name)
        kind = deltas.schema.field(place).type
        values = pa.array([Decimal(value) if pa.types.is_decimal(kind) else value], kind)
        deltas = deltas.set_column(place, name, values)
    with pytest.raises(UnfitGroupsError):
        change_groups(QUERY, deltas, _nothing(deltas), VIEW)


def test_a_group_to_which_nothing_is_added_does_not_change() -> None:
    row = ("p", None, 1, None, "t")
    assert not len(sum_up(QUERY, changed([("delete", row), ("insert", row)])))
