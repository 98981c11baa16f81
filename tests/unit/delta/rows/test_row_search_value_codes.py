"""Rows compared on Arrow as Spark compares them, against a model in Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from iscp.delta.rows.row_search import beyond, row_codes

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.string())),
        ("n", pa.list_(pa.int8())),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, -1]),
        st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
        st.sampled_from([None, "", "x"]),
        st.none() | st.lists(st.sampled_from([None, "", "-", "x", "1:x", "1:", "é"]), max_size=3),
        st.none() | st.lists(st.sampled_from([None, 1, 11, -1]), max_size=2),
    ),
    max_size=12,
)


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [[row[place] for row in rows] for place in range(len(SCHEMA))]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    found = ("NaN" if each != each else each for each in row)
    return tuple(tuple(each) if isinstance(each, list) else each for each in found)


@given(ROWS, ROWS)
def test_equal_rows_have_equal_numbers(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    mine, theirs = row_codes(table(rows), table(others))
    every = [*zip(map(comparable, rows), mine, strict=True), *zip(map(comparable, others), theirs, strict=True)]
    assert all((one == other) == (code == number) for one, code in every for other, number in every)


@given(ROWS, ROWS)
def test_what_is_beyond_is_the_difference_of_bags(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    mine, theirs = row_codes(table(rows), table(others))
    found = Counter(comparable(rows[place]) for place in np.flatnonzero(beyond(mine, theirs)))
    assert found == Counter(map(comparable, rows)) - Counter(map(comparable, others))
