"""Whether two tables have the same bag of rows, but for the last digits of doubles."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from iscp.delta.sink.bag_write import BagWriter

ROWS_MAX = 100_000_000
"""Rows of a table whose deleted rows are marked by vectors, which are compared."""

RELATIVE_MOST, ABSOLUTE_MOST = 1e-9, 1.5e-4
"""By how much doubles may differ: sums in another order, and such that were rounded to four digits after that."""


def rows_of(uri: str) -> pa.Table:
    table = DeltaTable(uri)
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return table.to_pyarrow_table()
    rows = BagWriter(uri).few_rows(table.version(), ROWS_MAX)
    if rows is None:
        raise RuntimeError(f"{uri} cannot be read here")
    return rows


def differences(one: pa.Table, other: pa.Table) -> int:
    """Return how many rows are in one of them alone."""
    if sorted(one.column_names) != sorted(other.column_names):
        return max(1, len(one) + len(other))
    names = sorted(one.column_names)
    doubles = [name for name in names if pa.types.is_floating(one.schema.field(name).type)]
    ordered = [*(name for name in names if name not in doubles), *doubles]
    shown = ", ".join(_plain(one, name, name in doubles) for name in ordered)
    with duckdb.connect(config={"threads": 1}) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("one", one)
        database.register("other", other)
        left, right = (
            database.execute(
                f"SELECT {shown} FROM {here} EXCEPT ALL SELECT {shown} FROM {there} ORDER BY ALL"
            ).fetchall()
            for here, there in (("one", "other"), ("other", "one"))
        )
    paired = sum(all(map(_near, *pair)) for pair in zip(left, right, strict=False))
    return len(left) + len(right) - 2 * paired


def _plain(rows: pa.Table, name: str, double: bool) -> str:
    """The column's values, as both tables have them whoever wrote them."""
    if double:
        return f'"{name}"::DOUBLE AS "{name}"'
    kind = rows.schema.field(name).type
    return f'epoch_us("{name}") AS "{name}"' if pa.types.is_timestamp(kind) else f'"{name}"::VARCHAR AS "{name}"'


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=RELATIVE_MOST, abs_tol=ABSOLUTE_MOST)
    return bool(one == other)
