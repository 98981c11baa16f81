"""Files that Spark wrote are committed only if they have all ulids of the transaction, in order and each once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.changefeed.model.ulid import UlidPlace, begin, ulid_text
from iscp.changefeed.spark.bulk_write import FileFooter, UlidGroup, check_adds, number_of, read_footers
from iscp.model.values.errors import EngineError

FIRST = begin(UlidPlace(0, 0), 1_700_000_000_000, b"0123456789")
FILES = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4)
"""The numbers of rows in each group of each file."""


def footers(sizes: list[list[int]], first: UlidPlace = FIRST) -> list[FileFooter]:
    made = []
    for number, groups in enumerate(sizes):
        bounds = []
        for rows in groups:
            bounds.append(UlidGroup(rows, ulid_text(first.ulid()), ulid_text(first.ulid(rows - 1))))
            first = first.after(rows)
        made.append(FileFooter(f"d/part-{number:05d}-x.parquet", 10 + number, sum(groups), tuple(bounds)))
    return made


def added(files: list[FileFooter], count: int) -> list[dict[str, object]]:
    return [json.loads(add.stats) for add in check_adds(files, {"shard": "0"}, FIRST, count)]


@settings(max_examples=30)
@given(FILES)
def test_files_that_follow_one_another_are_added_with_their_bounds(sizes: list[list[int]]) -> None:
    files = footers(sizes)
    stats = added(files, sum(map(sum, sizes)))
    assert [each["numRecords"] for each in stats] == [file.rows for file in files]
    for file, each in zip(files, stats, strict=True):
        assert each["minValues"] == {"ulid_text": file.groups[0].first}
        assert each["maxValues"] == {"ulid_text": file.groups[-1].last}


@settings(max_examples=30)
@given(FILES, st.data())
def test_files_that_lack_repeat_or_swap_ulids_are_refused(sizes: list[list[int]], data: st.DataObject) -> None:
    files, count = footers(sizes), sum(map(sum, sizes))
    at = data.draw(st.integers(0, len(files) - 1))
    file = files[at]
    elsewhere = footers([[each.rows for each in file.groups]], FIRST.after(count))[0].groups
    wrong = {
        "lacks a file": [*files[:at], *files[at + 1 :]],
        "has a file twice": [*files[: at + 1], *files[at:]],
        "has other ulids": [*files[:at], replace(file, groups=elsewhere), *files[at + 1 :]],
        "has a group twice": [*files[:at], replace(file, groups=(*file.groups, file.groups[-1])), *files[at + 1 :]],
    }
    if len(files) > 1:
        wrong["is in another order"] = files[::-1]
    for found in wrong.values():
        with pytest.raises(EngineError):
            added(found, count)
    for more in (-1, 1):
        with pytest.raises(EngineError, match="rows were written"):
            added(files, count + more)


def test_footers_are_read_of_data_files_alone(tmp_path: Path) -> None:
    ulids = [ulid_text(FIRST.ulid(number)) for number in range(5)]
    pq.write_table(pa.table({"ulid_text": ulids}), tmp_path / "part-00003-a.parquet", row_group_size=2)
    pq.write_table(pa.table({"other": [1, 2]}), tmp_path / "part-00001-b.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "sub.parquet").mkdir()
    plain, ordered = sorted(read_footers(str(tmp_path), ""), key=lambda file: number_of(file.path))
    assert (plain.rows, plain.groups) == (2, ())
    assert (number_of(plain.path), number_of(ordered.path)) == (1, 3)
    assert ordered.size == (tmp_path / "part-00003-a.parquet").stat().st_size
    assert ordered.groups == tuple(
        UlidGroup(len(each), each[0], each[-1]) for each in (ulids[0:2], ulids[2:4], ulids[4:])
    )
