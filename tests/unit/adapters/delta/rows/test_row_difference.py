"""The changes that are found bring rows to others, whatever both are, and are no more than needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.adapters.delta.rows.row_difference import differing_rows
from iscp.core.sql.sql_names import OP

SCHEMA = pa.schema([("k", pa.int64()), ("Part", pa.string()), ("d", pa.float64()), ("v", pa.string())])
KEY = ("K", "part")
NAN = float("nan")
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1]),
        st.sampled_from([None, "", "p"]),
        st.sampled_from([None, 0.0, -0.0, NAN, 1.5]),
        st.sampled_from([None, "", "x"]),
    ),
    max_size=8,
)

Row = tuple[Any, ...]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def value(each: Any) -> Any:
    """As Spark compares: NaN equals itself, and zeros each other."""
    return "NaN" if each != each else each


def by_key(rows: list[Row]) -> dict[Row, Row] | None:
    """None: rows share a key, in which null equals null."""
    found = {row[:2]: tuple(map(value, row)) for row in rows}
    return found if len(found) == len(rows) else None


@given(ROWS, ROWS)
def test_what_differs_is_found_by_key_and_nothing_besides(wanted: list[Row], held: list[Row]) -> None:
    changes = differing_rows(table(wanted), table(held), KEY)
    there, here = by_key(wanted), by_key(held)
    if there is None or here is None:
        assert changes is None
        return
    assert changes is not None
    rows = [(row.pop(OP), tuple(map(value, row.values()))) for row in changes.to_pylist()]
    new = {key: ("u", row) for key, row in there.items() if here.get(key) != row}
    gone = {key: ("d", row) for key, row in here.items() if key not in there}
    assert {row[:2]: (op, row) for op, row in rows} == new | gone
    assert len(rows) == len(new | gone)


def test_columns_are_those_of_what_is_wanted_in_their_order() -> None:
    held = table([(1, "p", 1.5, "x"), (2, "p", 1.5, "x")]).select(["v", "d", "Part", "k"])
    wanted = table([(1, "p", 1.5, "x"), (3, "p", None, None)]).rename_columns(["K", "part", "D", "v"])
    changes = differing_rows(wanted, held, KEY)
    assert changes is not None
    assert changes.column_names == ["K", "part", "D", "v", OP]
    assert [(row["K"], row[OP]) for row in changes.to_pylist()] == [(3, "u"), (2, "d")]


@pytest.mark.parametrize(
    "held",
    [
        table([]).drop_columns(["v"]),
        table([]).append_column("more", pa.array([], pa.int64())),
        table([]).set_column(3, "v", pa.array([], pa.binary())),
    ],
    ids=["a column fewer", "a column more", "another type"],
)
def test_of_other_columns_nothing_is_said(held: pa.Table) -> None:
    assert differing_rows(table([]), held, KEY) is None


def test_of_values_that_arrow_does_not_compare_nothing_is_said() -> None:
    rows = pa.table({"k": [1], "s": [{"x": 1}]})
    assert differing_rows(rows, rows, ("k",)) is None
