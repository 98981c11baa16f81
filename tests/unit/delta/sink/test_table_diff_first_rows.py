"""A few rows of a table that iscp wrote are read without Spark, and no more than memory has place for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.delta.sink.table_diff import FIRST_ROWS_BYTES_MAX, read_first_rows
from iscp.model.values.errors import FileLost, PermanentError, TableNotFound


def written(place: Path, *parts: pa.Table, **given: object) -> str:
    for part in parts:
        write_deltalake(str(place), part, mode="append", **given)  # type: ignore[call-overload]
    return str(place)


def test_rows_of_several_files_up_to_the_number_wanted(tmp_path: Path) -> None:
    parts = [pa.table({"id": [number, number], "v": ["a", "b"]}) for number in range(3)]
    uri = written(tmp_path / "t", *parts)
    found = read_first_rows(uri, 5)
    assert len(found) == 5
    every = [row for part in parts for row in part.to_pylist()]
    assert all(row in every for row in found)
    assert len(read_first_rows(uri, 100)) == 6


def test_nested_values_and_nulls_are_as_they_are(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([None], pa.int64()), "s": [{"a": 1, "b": [1, 2]}], "t": ["x"]})
    assert read_first_rows(written(tmp_path / "t", rows), 5) == rows.to_pylist()


def test_rows_that_were_replaced_are_not_shown(tmp_path: Path) -> None:
    uri = written(tmp_path / "t", pa.table({"id": [1]}))
    write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
    assert read_first_rows(uri, 5) == [{"id": 2}]


def test_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        read_first_rows(str(tmp_path / "none"), 5)


def test_a_text_that_repeats_itself_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A file of few bytes, whose rows would take more than is allowed."""
    text = "x" * 1_000_000
    uri = written(tmp_path / "t", pa.table({"id": list(range(200)), "v": [text] * 200}))
    assert sum(path.stat().st_size for path in (tmp_path / "t").glob("*.parquet")) < FIRST_ROWS_BYTES_MAX // 4
    with pytest.raises(PermanentError, match="MiB"):
        read_first_rows(uri, 1)


def test_partitions_are_refused_by_name(tmp_path: Path) -> None:
    uri = written(tmp_path / "t", pa.table({"id": [1], "p": ["a"]}), partition_by=["p"])
    with pytest.raises(PermanentError, match="features"):
        read_first_rows(uri, 1)


@pytest.mark.parametrize("content", [None, b"not a parquet file at all"])
def test_a_file_that_is_gone_or_damaged_is_said(tmp_path: Path, content: bytes | None) -> None:
    uri = written(tmp_path / "t", pa.table({"id": [1]}))
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(FileLost):
        read_first_rows(uri, 1)
