"""The files of a feed between cursors: none that has such rows is left out, whatever the log has of their ulids."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.changefeed.table.page_reader import (
    BEFORE_ALL,
    BEHIND_ALL,
    FeedFile,
    FeedFiles,
    groups_between,
    list_files,
    overlapping,
)
from iscp.storage.bounded_parquet import BoundedParquet

NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}
ULIDS = [f"{number:026d}" for number in range(40)]


def file_of(shard: int, first: str, last: str) -> FeedFile:
    return FeedFile(f"{shard}/{first}-{last}", 1, 1, "f", shard, first, last)


def touch(one: FeedFile, other: FeedFile) -> bool:
    return one.shard == other.shard and one.first <= other.last and other.first <= one.last


def connected(files: Sequence[FeedFile]) -> set[frozenset[str]]:
    """Return the paths of files that touch one another, directly or by others."""
    groups: list[list[FeedFile]] = []
    for file in files:
        near = [group for group in groups if any(touch(file, each) for each in group)]
        groups = [group for group in groups if group not in near]
        groups.append([file, *(each for group in near for each in group)])
    return {frozenset(each.path for each in group) for group in groups}


BOUNDS = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda pair: (ULIDS[pair[0]], ULIDS[sum(pair)]))
FILES = st.lists(
    st.builds(
        lambda shard, bounds: file_of(shard, *bounds),
        st.integers(0, 2),
        st.one_of(BOUNDS, st.just((BEFORE_ALL, BEHIND_ALL))),
    ),
    max_size=12,
    unique_by=lambda file: file.path,
)


@settings(max_examples=30)
@given(FILES)
def test_files_that_overlap_are_together_and_all_others_apart_in_order(files: list[FeedFile]) -> None:
    spans = overlapping(sorted(files, key=lambda file: (file.shard, file.first)))
    assert {frozenset(each.path for each in span) for span in spans} == connected(files)
    assert sum(map(len, spans)) == len(files)
    assert [span[0].first for span in spans] == sorted(span[0].first for span in spans)


class Feed:
    """A table of files with random ulids; `rows` are the ulids of each file, by its path, with its shard."""

    def __init__(self, uri: str, statistics: bool, seed: int) -> None:
        self.uri, self.rows, self._draw = uri, dict[str, tuple[int, list[str]]](), random.Random(seed)
        self._configuration = None if statistics else NO_STATISTICS
        for _ in range(6):
            self.append()

    def append(self) -> None:
        shard = self._draw.randrange(3)
        ulids = sorted(self._draw.sample(ULIDS, self._draw.randint(1, 5)))
        rows = pa.table(
            {"ulid_text": ulids, "feed": ["f"] * len(ulids), "shard": pa.array([shard] * len(ulids), pa.int32())}
        )
        write_deltalake(
            self.uri, rows, mode="append", partition_by=["feed", "shard"], configuration=self._configuration
        )
        (path,) = {*self.table.get_add_actions(flatten=True)["path"].to_pylist()} - {*self.rows}
        self.rows[path] = shard, ulids

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.uri)

    def cursor(self) -> dict[int, str]:
        return {shard: self._draw.choice(ULIDS) for shard in range(3) if self._draw.random() < 0.7}


@pytest.mark.parametrize("statistics", [True, False])
def test_files_between_cursors_are_those_whose_bounds_reach_into_it(tmp_path: Path, statistics: bool) -> None:
    left_out = 0
    for seed in range(3):
        feed = Feed(str(tmp_path / str(seed)), statistics, seed)
        files = FeedFiles()
        for number in range(12):
            if number == 6:
                feed.append()  # which has to be found by who listed the files before
            start, end = feed.cursor(), feed.cursor() if number % 2 else None
            found = files.between(feed.table, start, end)
            assert found == sorted(found, key=lambda file: (file.shard, file.first))
            wanted = {
                path
                for path, (shard, ulids) in feed.rows.items()
                if (end is None or shard in end)
                and (not statistics or (ulids[-1] > start.get(shard, "") and (end is None or ulids[0] <= end[shard])))
            }
            assert {file.path for file in found} == wanted
            left_out += len(feed.rows) - len(found)
    assert left_out


def test_what_the_log_has_of_a_file_is_passed_on_and_the_rest_is_as_wide_as_can_be(tmp_path: Path) -> None:
    for statistics in (True, False):
        feed = Feed(str(tmp_path / str(statistics)), statistics, 1)
        by_path = {file.path: file for file in FeedFiles().between(feed.table, {})}
        assert len(by_path) == len(list_files(feed.table)) == len(feed.rows)
        for path, (shard, ulids) in feed.rows.items():
            file = by_path[path]
            bounds = (ulids[0], ulids[-1]) if statistics else (BEFORE_ALL, BEHIND_ALL)
            assert (file.feed, file.shard, file.first, file.last) == ("f", shard, *bounds)
            assert file.size == (Path(feed.uri) / path).stat().st_size
            assert file.rows == len(ulids)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True), st.integers(0, 9), st.integers(0, 9))
def test_row_groups_without_such_rows_are_left_out_and_no_others(numbers: list[int], after: int, upto: int) -> None:
    groups: dict[int, list[str]] = defaultdict(list)
    ulids = [ULIDS[number] for number in sorted(numbers)]
    for place, ulid in enumerate(ulids):
        groups[place // 3].append(ulid)
    for statistics in (True, False):
        written = io.BytesIO()
        pq.write_table(pa.table({"ulid_text": ulids}), written, row_group_size=3, write_statistics=statistics)
        content = written.getvalue()
        source = SimpleNamespace(size=len(content), read_at=lambda at, count, of=content: of[at : at + count])
        found = groups_between(BoundedParquet(source, "a.parquet"), ULIDS[after], ULIDS[upto])
        assert [*found] == [
            number
            for number, group in groups.items()
            if not statistics or (group[-1] > ULIDS[after] and group[0] <= ULIDS[upto])
        ]
