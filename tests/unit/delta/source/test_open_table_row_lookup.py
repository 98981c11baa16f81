"""Rows of a source that have some keys, found in its files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.change_source import DeltaChangeSource
from iscp.model.values.errors import StorageError
from iscp.ports.source import UnreadRowsError

FILES, ROWS = 6, 40


def all_rows(source: DeltaChangeSource, uri: str, version: int, columns: Sequence[str]) -> pa.Table | None:
    """Return all rows as a scan has them, or None if it has none of all of them."""
    scan = source.scan(uri, version, columns)
    with suppress(UnreadRowsError):
        return None if scan is None else pa.concat_tables([scan.schema.empty_table(), *scan.parts()])
    return None


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


PARTS = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int32()), ("day", pa.date32()), ("v", pa.string())])


def parted(draw: random.Random, count: int) -> pa.Table:
    """Rows of a table with partitions, some of them without a value."""
    days = [None, *(date(2024, 2, each) for each in (1, 28, 29))]
    columns: list[list[Any]] = [
        [draw.randrange(9) for _ in range(count)],
        [draw.choice([None, "x", "a b/ä%", "7"]) for _ in range(count)],
        [draw.choice([None, 0, -5, 7]) for _ in range(count)],
        [draw.choice(days) for _ in range(count)],
        [draw.choice(["u", "w"]) for _ in range(count)],
    ]
    return pa.table([pa.array(each, kind.type) for each, kind in zip(columns, PARTS, strict=True)], schema=PARTS)


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(each.values()) for each in table.to_pylist())


@pytest.mark.parametrize("seed", range(20))
def test_columns_that_are_in_paths_have_the_values_of_the_log(tmp_path: Path, seed: int) -> None:
    """Rows are found by them and by others, and read with them; a checkpoint may leave them to Spark."""
    draw, uri, source = random.Random(seed), str(tmp_path), DeltaChangeSource()
    by = draw.sample(["p", "n", "day"], draw.randint(1, 3))
    held = [parted(draw, draw.randint(1, 12)) for _ in range(3)]
    for each in held:
        write_deltalake(uri, each, mode="append", partition_by=by)
    rows = pa.concat_tables(held)
    for names in (draw.sample(["id", *by], draw.randint(1, 2)), by[:1]):
        wanted = rows.select(names).slice(draw.randrange(len(rows)), 3)
        passing = [tuple(each[name] for name in names) in bag(wanted) for each in rows.to_pylist()]
        found = source.rows_with(uri, 2, wanted, ("v", *by, "id"), 99)
        assert found is not None
        assert bag(found) == bag(rows.filter(pa.array(passing)).select(found.column_names))
    whole = all_rows(source, uri, 2, ("id", *by))
    assert whole is not None
    assert bag(whole) == bag(rows.select(whole.column_names))
    DeltaTable(uri).create_checkpoint()
    found = all_rows(DeltaChangeSource(), uri, 2, ("id", *by))
    assert found is None or bag(found) == bag(whole)


def test_files_of_other_partitions_are_not_opened(tmp_path: Path) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, rows([1, 2]).append_column("p", [["x", "y"]]), partition_by=["p"])
    (other,) = [each for each in DeltaTable(uri).file_uris() if "p=y" in each]
    Path(other).unlink()
    found = DeltaChangeSource().rows_with(uri, 0, pa.table({"p": ["x", "z"]}), ("id", "p"), 9)
    assert found is not None
    assert found.to_pydict() == {"id": [1], "p": ["x"]}


@pytest.mark.parametrize(
    "values", [pa.array([True, False]), pa.array([0, 1], pa.timestamp("us")), pa.array([Decimal("1.5"), Decimal(2)])]
)
def test_values_that_are_written_in_several_ways_are_for_spark_to_read(tmp_path: Path, values: pa.Array) -> None:
    uri, source = str(tmp_path), DeltaChangeSource()
    write_deltalake(uri, rows([1, 2]).append_column("p", values), partition_by=["p"])
    assert source.rows_with(uri, 0, keys(2), ("id", "v"), 9) is not None
    assert source.rows_with(uri, 0, keys(2), ("id", "p"), 9) is None
    assert all_rows(source, uri, 0, ("id", "p")) is None


def test_columns_of_files_have_no_values_of_the_log(tmp_path: Path) -> None:
    """Whatever a commit says of partitions that the table does not have."""
    uri, source = str(tmp_path), DeltaChangeSource()
    write_deltalake(uri, rows([1, 2]))
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace('"partitionValues":{}', '"partitionValues":{"id":"9","V":"x"}'))
    found = source.rows_with(uri, 0, keys(1, 9), ("id", "v"), 9)
    assert found is not None
    assert found.to_pydict() == {"id": [1], "v": ["of 1"]}


@pytest.mark.parametrize(
    "value", ['""', "5", "[]", '{"p": 1}', '"no number"', '"0x10"', '"+1"', '" 1"', '"99999999999"']
)
def test_a_forged_value_of_a_partition_is_no_row(tmp_path: Path, value: str) -> None:
    uri, source = str(tmp_path), DeltaChangeSource()
    write_deltalake(uri, rows([1, 2]).append_column("p", pa.array([7, 7], pa.int32())), partition_by=["p"])
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace('"partitionValues":{"p":"7"}', f'"partitionValues":{{"p":{value}}}'))
    with suppress(StorageError):
        assert source.rows_with(uri, 0, keys(2), ("id", "p"), 9) is None
    with suppress(StorageError):
        assert all_rows(source, uri, 0, ("id", "p")) is None


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
    found = [all_rows(source, uri, version, ("id",)) for version in (2, 1, 2, 0)]
    held = [sorted(map(str, each["id"].to_pylist())) for each in found if each is not None]
    assert held == [["1", "3", "None"], ["1", "2", "2", "3", "None"], ["1", "3", "None"], ["1", "2", "None"]]


def test_a_scan_reads_a_few_rows_at_a_time_and_begins_again_each_time(tmp_path: Path) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, rows([1, 2]))
    write_deltalake(uri, rows([3]), mode="append")
    scan = DeltaChangeSource().scan(uri, 1, ("v", "id"))
    assert scan is not None
    assert scan.schema.names == ["v", "id"]
    assert scan.bytes == sum(Path(each).stat().st_size for each in DeltaTable(uri).file_uris())
    begun = scan.parts()
    first = next(begun)
    assert sorted([len(first), *(len(each) for each in scan.parts() if not each.equals(first))]) == [1, 2]
    assert [each["id"].to_pylist() for each in begun] == [[1, 2] if len(first) == 1 else [3]]


@pytest.mark.parametrize(
    "values",
    [pa.array([date(1582, 10, 4)]), pa.array([b"\xff"]).view(pa.string())],
    ids=["a day of another calendar", "a text that is none"],
)
def test_what_is_read_by_spark_alone_ends_a_scan(tmp_path: Path, values: pa.Array) -> None:
    write_deltalake(str(tmp_path), pa.table({"v": values}))
    scan = DeltaChangeSource().scan(str(tmp_path), 0, ("v",))
    assert scan is not None
    with pytest.raises(UnreadRowsError):
        list(scan.parts())
