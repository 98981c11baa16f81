"""However a snapshot is cut, each of its pieces is in exactly one range, and ranges follow the tree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.build_pieces import (
    PieceOfFile,
    RangeFiles,
    depth_for,
    files_in_range,
    group_span,
    parts_of,
    piece_name,
    row_spans,
)
from iscp.core.build_task import DEPTH_MAX, depth
from iscp.core.range_tree import WHOLE, children

PIECE = 100
FILES = st.lists(
    st.tuples(st.text("ab/%é ", min_size=1, max_size=8), st.integers(0, 1_000), st.sampled_from(["", "u1", "u2"])),
    max_size=30,
    unique_by=lambda file: file[0],
)
Piece = tuple[str, int]


def pieces(found: RangeFiles, files: list[tuple[str, int, str]]) -> list[Piece]:
    sizes = {path: size for path, size, _ in files}
    whole = [(path, each.number) for path in found.whole for each in parts_of(path, sizes[path], PIECE)]
    return whole + [(path, each.number) for path, parts in found.parts.items() for each in parts]


@given(FILES, st.lists(st.integers(0, 40), max_size=20))
def test_each_piece_is_in_one_range_of_any_tiling(files: list[tuple[str, int, str]], cuts: list[int]) -> None:
    tiles = [WHOLE]
    for cut in cuts:
        tile = tiles.pop(cut % len(tiles))
        tiles += children(tile) if depth(tile) < DEPTH_MAX else (tile,)
    found = itertools.chain.from_iterable(pieces(files_in_range(files, PIECE, tile), files) for tile in tiles)
    assert sorted(found) == sorted(
        (path, each.number) for path, size, _ in files for each in parts_of(path, size, PIECE)
    )


@given(FILES, st.integers(WHOLE, (1 << 6) - 1))
def test_a_range_is_its_halves(files: list[tuple[str, int, str]], range_id: int) -> None:
    whole, (left, right) = files_in_range(files, PIECE, range_id), children(range_id)
    halves = [files_in_range(files, PIECE, each) for each in (left, right)]
    assert sorted(pieces(whole, files)) == sorted([each for half in halves for each in pieces(half, files)])


def test_files_and_deletion_vectors_are_distinguished_and_so_are_parts() -> None:
    first, second = parts_of("a.parquet", PIECE + 1, PIECE)
    names = {piece_name("a.parquet", vector, part) for vector in ("", "u1", "u2") for part in (first, second)}
    assert len(names) == 6
    assert piece_name("a.parquet", "", PieceOfFile("a.parquet", 0, 1)) == "a.parquet"


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
