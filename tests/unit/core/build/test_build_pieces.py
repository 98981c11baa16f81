"""However a snapshot is cut, each of its pieces is in exactly one range, and ranges follow the tree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.build.build_pieces import (
    PieceOfFile,
    RangeFiles,
    SnapshotFile,
    count_pieces,
    depth_for,
    files_in_range,
    group_span,
    parts_of,
    piece_name,
    row_spans,
)
from iscp.core.build.build_task import DEPTH_MAX, depth
from iscp.core.rows.range_tree import WHOLE, children
from iscp.core.values.progress import UNKNOWN, TableSize, total_size

PIECE = 100
SIZES = st.builds(TableSize, st.integers(UNKNOWN, 1_000), st.integers(0, 1_000))
PATHS = st.text("ab/%é ", min_size=1, max_size=8)
FILES = st.lists(
    st.builds(SnapshotFile, PATHS, SIZES, st.sampled_from(["", "u1", "u2"])),
    max_size=30,
    unique_by=lambda file: (file.path, file.vector_id),
)
"""Paths are there several times, with another vector each."""

Piece = tuple[str, str, int]


def named(file: SnapshotFile) -> tuple[str, str]:
    return file.path, file.vector_id


def all_pieces(files: list[SnapshotFile]) -> list[Piece]:
    return [(*named(file), each.number) for file in files for each in parts_of(file.path, file.size.bytes, PIECE)]


def pieces(found: RangeFiles) -> list[Piece]:
    whole = all_pieces(found.whole)
    return whole + [(*named(file), each.number) for file, parts in found.parts.items() for each in parts]


@given(FILES, st.lists(st.integers(0, 40), max_size=20))
def test_each_piece_is_in_one_range_of_any_tiling(files: list[SnapshotFile], cuts: list[int]) -> None:
    tiles = [WHOLE]
    for cut in cuts:
        tile = tiles.pop(cut % len(tiles))
        tiles += children(tile) if depth(tile) < DEPTH_MAX else (tile,)
    ranges = [files_in_range(files, PIECE, tile) for tile in tiles]
    found = sorted(itertools.chain.from_iterable(map(pieces, ranges)))
    assert found == sorted(all_pieces(files))
    assert len(found) == count_pieces((file.size.bytes for file in files), PIECE)
    counted = [file for file in files if file.size.rows >= 0]
    assert total_size(files_in_range(counted, PIECE, tile).size for tile in tiles) == total_size(
        file.size for file in counted
    ), "no row and no byte is lost, or counted twice"
    assert total_size(each.size for each in ranges) == total_size(file.size for file in files)


@given(FILES, st.integers(WHOLE, (1 << 6) - 1))
def test_a_range_is_its_halves(files: list[SnapshotFile], range_id: int) -> None:
    whole, (left, right) = files_in_range(files, PIECE, range_id), children(range_id)
    halves = [files_in_range(files, PIECE, each) for each in (left, right)]
    assert sorted(pieces(whole)) == sorted([each for half in halves for each in pieces(half)])


def test_files_and_deletion_vectors_are_distinguished_and_so_are_parts() -> None:
    first, second = parts_of("a.parquet", PIECE + 1, PIECE)
    files = [SnapshotFile("a.parquet", TableSize(1, PIECE + 1), vector) for vector in ("", "u1", "u2")]
    names = {piece_name(file, part) for file in files for part in (first, second)}
    assert len(names) == 6
    assert piece_name(files[0], PieceOfFile("a.parquet", 0, 1)) == "a.parquet"


def test_a_part_of_a_file_counts_as_its_share() -> None:
    file = SnapshotFile("a.parquet", TableSize(10, 3 * PIECE))
    tiles = [files_in_range([file], PIECE, range_id).size for range_id in range(1 << 10, 2 << 10)]
    assert sorted(size.rows for size in tiles if size.bytes) == [3, 3, 4]
    assert {size.bytes for size in tiles} == {0, PIECE}


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 20))
def test_the_parts_of_a_file_are_all_of_its_rows_once(group_rows: list[int], parts: int) -> None:
    found = [PieceOfFile("f", number, parts) for number in range(parts)]
    assert row_spans(group_rows, found) == ([(0, sum(group_rows))] if sum(group_rows) else [])
    each = [row for piece in found for first, last in row_spans(group_rows, [piece]) for row in range(first, last)]
    assert each == list(range(sum(group_rows)))
    assert group_span(len(group_rows), found[-1])[1] == len(group_rows)


@given(st.integers(0, 2**50), st.integers(1, 2**40))
def test_the_depth_is_the_smallest_that_does(total: int, range_bytes: int) -> None:
    cuts = depth_for(total, range_bytes)
    assert cuts == DEPTH_MAX or total <= range_bytes << cuts
    assert cuts == 0 or total > range_bytes << (cuts - 1)


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1, 1), (100, 1), (101, 2), (1_000, 10)])
def test_large_files_are_cut(size: int, parts: int) -> None:
    assert len(parts_of("f", size, PIECE)) == parts
    assert len(parts_of("f", size, 0)) == 1
