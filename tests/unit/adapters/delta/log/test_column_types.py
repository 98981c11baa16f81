"""The names and types of a table's columns, as its log has them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from iscp.adapters.delta.log.column_types import read_column_types


def test_columns_are_read_in_order_with_nested_ones_by_their_kind(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "tags": [["a"]], "at": [{"x": 1.5}], "Name": ["n"]})
    write_deltalake(str(tmp_path), rows)
    found = read_column_types(str(tmp_path))
    assert list(found.items()) == [("id", "long"), ("tags", "array"), ("at", "struct"), ("Name", "string")]


def test_what_is_no_table_has_no_columns(tmp_path: Path) -> None:
    assert read_column_types(str(tmp_path / "none")) == {}
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")
    assert read_column_types(str(tmp_path)) == {}
