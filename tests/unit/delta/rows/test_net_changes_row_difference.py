"""The changes that are found bring rows to others, whatever both are, and are no more than needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.delta.rows.net_changes import changes_of_keys, differing_rows, having_keys
from iscp.model.sql.sql_names import OP

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


@given(ROWS, ROWS)
def test_changes_of_keys_name_what_is_left_of_each_and_what_is_gone(keys: list[Row], rows: list[Row]) -> None:
    """However many rows the keys had before: those that are left are written, keys without one are deleted."""
    own = {row[:2]: row for row in rows if row[:2] in {key[:2] for key in keys}}
    named = {row[:2] for row in keys}
    once = table([(*key, None, None) for key in sorted(named, key=str)]).select(["k", "Part"])
    changes = changes_of_keys(once, table([*own.values()]), KEY).to_pylist()
    assert {(row["k"], row["Part"]): row[OP] for row in changes} == {key: "u" if key in own else "d" for key in named}
    assert len(changes) == len(named)
    written = {(row["k"], row["Part"]): (value(row["d"]), row["v"]) for row in changes if row[OP] == "u"}
    assert written == {key: (value(row[2]), row[3]) for key, row in own.items()}


@given(ROWS, ROWS)
def test_rows_with_a_key_of_others_are_found(rows: list[Row], others: list[Row]) -> None:
    found = having_keys(table(rows), table(others), KEY)
    assert found.tolist() == [row[:2] in {other[:2] for other in others} for row in rows]
