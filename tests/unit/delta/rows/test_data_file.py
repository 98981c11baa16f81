"""Columns of a data file come out as they were written, whether texts are copied or references to few values.

Rows of files are read once while they are among those that were used last, and never are more held than may be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.delta.rows.data_file import DataFile, RowCache

ROWS = 30_000
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("few", pa.string()),
        ("unique", pa.string()),
        ("none", pa.string()),
        ("bytes", pa.binary()),
        ("many", pa.list_(pa.string())),
        ("inner", pa.struct([("few", pa.string())])),
    ]
)


@pytest.fixture
def written(tmp_path: Path) -> pa.Table:
    rows = [
        {
            "number": number,
            "few": [None, "", "ä", "two words"][number * number % 4],
            "unique": f"text {number}",
            "bytes": b"\xff" * (number % 3),
            "many": [f"{number % 2}"] * (number % 3),
            "inner": {"few": "ab"[number % 2]},
        }
        for number in range(ROWS)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=7_000)
    return table


def opened(root: Path) -> DataFile:
    return DataFile(str(root), {"path": "part.parquet", "size": 1024**3})


@pytest.mark.parametrize("places", [None, [], [0], [6_999, 7_000, 13_000], [*range(0, ROWS, 11)], [ROWS - 1]])
@pytest.mark.parametrize("names", [SCHEMA.names, ["few"], ["few", "number"], ["unique", "none"]])
def test_rows_are_those_that_were_written(
    tmp_path: Path, written: pa.Table, names: list[str], places: list[int] | None
) -> None:
    schema = pa.schema([SCHEMA.field(name) for name in names])
    found = opened(tmp_path).read(schema, None if places is None else np.array(places, np.int64))
    wanted = written if places is None else written.take(pa.array(places, pa.int64()))
    assert found.equals(wanted.select(names))


def test_texts_of_few_values_are_references(tmp_path: Path, written: pa.Table) -> None:
    with opened(tmp_path).open_groups() as groups:
        assert {group.coded for group in groups} == {frozenset({"few", "none"})}


BYTES_MAX = 1_000


def test_what_cannot_be_read_is_read_again() -> None:
    held, rows = RowCache(BYTES_MAX), pa.table({"a": [1]})

    def fail() -> pa.Table:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        held.rows("a", fail)
    assert held.rows("a", lambda: rows) is rows
    assert held.rows("a", fail) is rows
