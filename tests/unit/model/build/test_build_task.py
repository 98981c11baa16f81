"""What a job requests survives the job log, and is refused where it cannot be meant.

What ranges agree on survives where it is written, and distinguishes builds by what they read.

However a snapshot is cut, each of its pieces is in exactly one range, and ranges follow the tree.

Whatever was split, merged and staged late, what is published has each piece once, and nothing is missed.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.build.build_task import (
    DEPTH_MAX,
    NO_TERMS,
    BuildRequest,
    BuildTerms,
    PieceOfFile,
    RangeFiles,
    SnapshotFile,
    build_id,
    count_pieces,
    covers,
    depth,
    depth_for,
    exact_build,
    files_in_range,
    group_span,
    is_staged,
    parse_build,
    parse_terms,
    parts_of,
    piece_name,
    row_spans,
    tiling,
)
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, apply_report, parse_status
from iscp.model.rows.key_ranges import WHOLE, children, parent
from iscp.model.values.progress import UNKNOWN, UNSIZED, SnapshotSize, TableSize, total_size
from iscp.model.values.watermark import SourceMark, Watermark
from tests.unit.model.job.test_job_row import KEY, ROW, SPEC

WANTED = BuildRequest(7, 1024, 3, SnapshotSize(1_000, 8_000, UNKNOWN))


def with_values(**values: Any) -> BuildRequest:
    sizes = {name: values.pop(name) for name in ("rows", "bytes", "pieces") if name in values}
    return replace(WANTED, size=replace(WANTED.size, **sizes), **values)


def test_the_size_that_an_earlier_version_does_not_know_is_unknown() -> None:
    earlier = {"version": 7, "piece_bytes": 1024, "depth": 3}
    assert parse_build(earlier) == BuildRequest(7, 1024, 3, UNSIZED)
    assert WANTED.document().items() >= earlier.items(), "which an earlier version reads"


def test_a_pin_is_said_where_there_is_one_and_distinguishes_builds() -> None:
    pinned = replace(WANTED, pin="abcd")
    assert parse_build(pinned.document()) == pinned
    assert "pin" not in WANTED.document(), "as an earlier version wrote it"
    assert pinned.reading != WANTED.reading
    found = [build_id("j-1", SPEC, each, "t-1", 5.0).digest for each in (WANTED, pinned, replace(WANTED, pin="ef"))]
    assert len({*found}) == 3


def test_it_survives_the_status_of_the_job_log() -> None:
    status = JobStatus(rows=1, build=WANTED)
    assert parse_status(status.to_json()) == status
    assert "build" not in JobStatus().to_json(), "as a row from before has none of it"
    assert JobRow(KEY, "j-1", SPEC, "t", "/t", status_json=status.to_json()).build == WANTED
    assert ROW.build is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": -1},
        {"version": "7"},
        {"version": True},
        {"piece_bytes": -1},
        {"piece_bytes": 2**63},
        {"depth": 17},
        {"depth": -1},
        {"depth": None},
        {"rows": -2},
        {"bytes": None},
        {"pieces": "many"},
        {"pin": 7},
    ],
)
def test_what_no_build_can_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"build.{next(iter(wrong))}"):
        parse_build(WANTED.document() | wrong)
    with pytest.raises(ValueError, match="build"):
        exact_build(with_values(**wrong))
    broken = JobStatus(build=with_values(**wrong)).to_json()
    assert "cannot be read" in parse_status(broken).warning, "of the job log too, and no more is believed of it"
    assert parse_status(broken).build is None


@pytest.mark.parametrize("found", [7, "build", [WANTED], {"version": 7}])
def test_what_is_none_at_all_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="build"):
        exact_build(found)


def test_the_row_keeps_it_while_an_iteration_runs_and_no_longer() -> None:
    waiting = JobReport(KEY, "j-1", ROW.watermark, 4, JobState.PENDING, Reason.BUILDING, JobStatus(build=WANTED))
    row = apply_report(ROW, waiting)
    assert row is not None
    assert (row.reason, row.build) == (Reason.BUILDING, WANTED)
    row = apply_report(row, replace(waiting, state=JobState.RUNNING, status=JobStatus()))
    assert row is not None
    assert row.build == WANTED
    row = apply_report(row, replace(waiting, state=JobState.COMPLETED, reason=Reason.NONE, status=JobStatus()))
    assert row is not None
    assert row.build is None


MARKS = {"/t": SourceMark("t-1", Watermark(3, 5.0)), "/u": SourceMark("t-2", Watermark(7, 6.5))}
TERMS = BuildTerms(MARKS, 1234.5, "groups", passing=True)


@pytest.mark.parametrize("terms", [NO_TERMS, TERMS, BuildTerms(MARKS, way="rows")])
def test_they_come_back_from_what_is_written_among_whatever_else(terms: BuildTerms) -> None:
    written = json.dumps({"format": 1, "version": 3, **terms.document()})
    assert parse_terms(json.loads(written)) == terms


def test_a_pin_is_that_of_what_is_read_and_how() -> None:
    assert NO_TERMS.pin == ""
    assert TERMS.pin == replace(TERMS, sources=dict(reversed(MARKS.items())), as_of_s=9.0).pin
    others = [
        replace(TERMS, way="rows"),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-2", Watermark(8, 7.5))}),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-3", Watermark(7, 6.5))}),
        replace(TERMS, sources={**MARKS, "/u": SourceMark("t-2", Watermark(7, 6.6))}),
    ]
    assert len({TERMS.pin, *(each.pin for each in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "wrong", [[], {"sources": []}, {"sources": {"/t": ["t-1", -7]}}, {"as_of_s": "now"}, {"way": 7}, None]
)
def test_what_cannot_be_meant_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"terms|sources|version|as_of_s|way"):
        parse_terms(wrong)


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


DEEPEST = 6
LEAVES = range(1 << DEEPEST, 2 << DEEPEST)
HISTORY = st.lists(st.tuples(st.sampled_from(["split", "merge", "stage", "late"]), st.integers(0, 999)), max_size=60)


def played(history: list[tuple[str, int]]) -> tuple[set[int], list[int]]:
    """What is staged, and the ranges that are to be built now. Late results are of ranges from any time before."""
    live, known, there = [WHOLE], [WHOLE], set[int]()
    for what, draw in history:
        tile = live[draw % len(live)]
        if what == "split" and depth(tile) < DEEPEST:
            live.remove(tile)
            live += children(tile)
        elif what == "merge" and tile > WHOLE and tile ^ 1 in live:
            live.remove(tile)
            live.remove(tile ^ 1)
            live.append(parent(tile))
        elif what == "stage":
            there.add(tile)
        elif what == "late":
            there.add(known[draw % len(known)])
        known += [each for each in live if each not in known]
    return there, live


@given(HISTORY)
def test_what_is_chosen_and_what_lacks_tile_the_whole(history: list[tuple[str, int]]) -> None:
    there, _ = played(history)
    found = tiling(there)
    assert set(found.chosen) <= there
    for leaf in LEAVES:
        assert sum(covers(each, leaf) for each in (*found.chosen, *found.lacking)) == 1
    for each in found.lacking:
        assert not any(covers(each, other) and is_staged(each, there) for other in there)
        assert each == WHOLE or any(covers(parent(each), other) for other in there), "the largest that lack"


@given(HISTORY)
def test_the_largest_win(history: list[tuple[str, int]]) -> None:
    there, _ = played(history)
    for each in tiling(there).chosen:
        assert not any(covers(other, each) for other in there if other != each)


@given(HISTORY)
def test_once_all_that_is_to_be_built_is_there_nothing_lacks(history: list[tuple[str, int]]) -> None:
    there, live = played(history)
    assert tiling(there | set(live)).whole


@given(HISTORY, st.integers(WHOLE, (2 << DEEPEST) - 1))
def test_a_range_is_staged_where_none_of_its_leaves_lacks(history: list[tuple[str, int]], range_id: int) -> None:
    there, _ = played(history)
    leaves = [leaf for leaf in LEAVES if covers(range_id, leaf)]
    assert is_staged(range_id, there) == all(any(covers(each, leaf) for each in there) for leaf in leaves)


def test_nothing_is_there_at_first() -> None:
    assert tiling(()).lacking == (WHOLE,)
    assert tiling({2}).lacking == (3,)
    assert tiling({2, 6}).lacking == (7,)
    assert tiling({2, 3}).chosen == (2, 3)
    assert tiling({1, 2, 6}).chosen == (1,)
