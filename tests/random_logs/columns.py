"""The columns of the tables whose logs are drawn: few values each, so that rows meet and are equal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Numbers = tuple[int, ...]
"""A row as it is drawn: a number for each column, counted modulo the values that there are."""

Row = tuple[Any, ...]
"""A row's values, one for each column of COLUMNS; None in those that the table does not have yet."""


@dataclass(frozen=True, slots=True)
class LogColumn:
    name: str
    sql: str
    arrow: pa.DataType
    values: tuple[Any, ...]


KEYS = 40
"""Keys that there are, but for null: so many that few rows share one, if all of them are drawn."""

COLUMNS = (
    LogColumn("k", "long", pa.int64(), (*range(KEYS), None)),
    LogColumn("v", "string", pa.string(), ("a", "b", "c", None, "", "ü%")),
    LogColumn("g", "long", pa.int64(), (1, 2, 3, -7, None)),
    LogColumn("p", "string", pa.string(), ("x", "y", "a b", None, "%=/é")),
    LogColumn("w", "string", pa.string(), ("new", "newer", None)),
)
"""The last one is not there at first."""

FIRST_COLUMNS = len(COLUMNS) - 1

PLACES = {column.name: place for place, column in enumerate(COLUMNS)}

PARTITIONS: tuple[tuple[str, ...], ...] = ((), ("p",), ("g",), ("p", "g"))
"""The ways in which a table may be partitioned."""


def row_of(numbers: Numbers, columns: int) -> Row:
    """A drawn row in a table that has the first so many columns."""
    padded = (*numbers, *[0] * len(COLUMNS))
    return tuple(
        column.values[number % len(column.values)] if place < columns else None
        for place, (column, number) in enumerate(zip(COLUMNS, padded, strict=False))
    )


def arrow_of(rows: Iterable[Row], names: Iterable[str]) -> pa.Table:
    held = list(rows)
    return pa.table(
        {
            name: pa.array([row[PLACES[name]] for row in held], COLUMNS[PLACES[name]].arrow)
            for name in names
            if name in PLACES
        }
    )


def schema_json(columns: int) -> str:
    fields = [
        {"name": column.name, "type": column.sql, "nullable": True, "metadata": {}} for column in COLUMNS[:columns]
    ]
    return json.dumps({"type": "struct", "fields": fields})


def partition_values(row: Row, partitions: Iterable[str]) -> dict[str, str | None]:
    """The values as the log spells them."""
    found = ((name, row[PLACES[name]]) for name in partitions)
    return {name: None if value is None else str(value) for name, value in found}


def statistics(rows: Iterable[Row], columns: int, partitions: Iterable[str], *, bounds: bool) -> Mapping[str, Any]:
    """The statistics of a file; `bounds`: with the least and greatest value of each column, and its nulls."""
    held, parted = list(rows), {*partitions}
    found: dict[str, Any] = {"numRecords": len(held)}
    if bounds:
        names = [column.name for column in COLUMNS[:columns] if column.name not in parted]
        there = {name: [row[PLACES[name]] for row in held if row[PLACES[name]] is not None] for name in names}
        found["minValues"] = {name: min(values) for name, values in there.items() if values}
        found["maxValues"] = {name: max(values) for name, values in there.items() if values}
        found["nullCount"] = {name: len(held) - len(values) for name, values in there.items()}
    return found
