"""Rows of a source that have some keys, found in its files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.source.change_source import DeltaChangeSource

FILES, ROWS = 6, 40


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def rows(ids: Sequence[int | None]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"of {each}" for each in ids]})


@pytest.mark.parametrize("seed", range(20))
def test_all_rows_with_a_key_are_found_and_no_other(tmp_path: Path, seed: int) -> None:
    """Of files whose keys lie apart, or overlap; some have only nulls."""
    draw, uri, held = random.Random(seed), str(tmp_path), list[int | None]()
    for _ in range(FILES):
        low = draw.randrange(100)
        ids = [draw.choice([None, *range(low, low + draw.randint(1, 30))]) for _ in range(draw.randint(1, ROWS))]
        write_deltalake(uri, rows(ids), mode="append")
        held += ids
    wanted = draw.sample(range(130), draw.randrange(30))
    found = DeltaChangeSource().rows_with(uri, FILES - 1, keys(*wanted), ("id", "v"), FILES * ROWS)
    assert found is not None
    assert sorted(found["id"].to_pylist()) == sorted(each for each in held if each in wanted)
    assert found["v"].to_pylist() == [f"of {each}" for each in found["id"].to_pylist()]


def test_files_that_cannot_have_a_key_are_not_opened(tmp_path: Path) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, rows([1, 2]))
    write_deltalake(uri, rows([11, 12]), mode="append")
    (newest,) = set(DeltaTable(uri).file_uris()) - set(DeltaTable(uri, version=0).file_uris())
    Path(newest).unlink()
    source = DeltaChangeSource()
    assert source.rows_with(uri, 1, keys(2, 5), ("id",), 9).to_pydict() == {"id": [2]}  # type: ignore[union-attr]
    assert source.rows_with(uri, 1, keys(2, 12), ("id",), 9) is None


def test_columns_that_are_in_paths_are_for_others_to_read(tmp_path: Path) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, rows([1, 2]).append_column("p", [["x", "y"]]), partition_by=["p"])
    source = DeltaChangeSource()
    assert source.rows_with(uri, 0, keys(2), ("id", "v"), 9) is not None
    assert source.rows_with(uri, 0, keys(2), ("id", "p"), 9) is None
    assert source.rows_with(uri, 0, pa.table({"p": ["x"]}), ("id", "p"), 9) is None


def test_no_more_rows_than_allowed(tmp_path: Path) -> None:
    uri = str(tmp_path)
    for ids in ([1, 2, None], [2, 3], [4]):
        write_deltalake(uri, rows(ids), mode="append")
    source = DeltaChangeSource()
    assert source.rows_with(uri, 2, keys(2, 4), ("id",), 2) is None
    assert len(source.rows_with(uri, 2, keys(2, 4), ("id",), 3)) == 3  # type: ignore[arg-type]
    assert source.rows_with(uri, 0, keys(2, 4), ("id",), 9).to_pydict() == {"id": [2]}  # type: ignore[union-attr]
    assert DeltaChangeSource(0).rows_with(uri, 2, keys(2), ("id",), 9) is None, "nothing is to be read without Spark"


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("close", [True, False])
def test_numbers_from_both_ends_of_their_type_are_found(tmp_path: Path, kind: pa.DataType, close: bool) -> None:
    """Whether those that are wanted lie close together, and differences to others leave the type, or far apart."""
    most = 2 ** (kind.bit_width - 1) - 1
    held = [-most - 1, -most, -1, 0, 1, 7, most - 1, most, *range(0, 120, 3)]
    write_deltalake(str(tmp_path), pa.table({"id": pa.array(held, kind), "n": range(len(held))}))
    for first in (-most - 1, 0, most) if close else (0,):
        wanted = [each for each in range(first - 2, first + 9) if -most - 1 <= each <= most]
        wanted = wanted if close else [-most - 1, 3, most]
        by = pa.table({"id": pa.array(wanted, kind)})
        found = DeltaChangeSource().rows_with(str(tmp_path), 0, by, ("id", "n"), 99)
        assert found is not None
        assert found["id"].to_pylist() == [each for each in held if each in wanted]
        assert found["n"].to_pylist() == [number for number, each in enumerate(held) if each in wanted]


def test_all_rows_are_those_that_are_not_marked_as_gone(tmp_path: Path) -> None:
    uri, source = str(tmp_path), DeltaChangeSource()
    write_deltalake(uri, rows([1, 2, None]))
    write_deltalake(uri, rows([2, 3]), mode="append")
    DeltaTable(uri).delete("id = 2")
    found = [source.all_rows(uri, version, ("id",), 10**6) for version in (2, 1, 2, 0)]
    held = [sorted(map(str, each["id"].to_pylist())) for each in found if each is not None]
    assert held == [["1", "3", "None"], ["1", "2", "2", "3", "None"], ["1", "3", "None"], ["1", "2", "None"]]
    assert source.all_rows(uri, 2, ("id",), 100) is None, "its files are larger"
