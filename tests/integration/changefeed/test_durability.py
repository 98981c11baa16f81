"""A disk that fails to sync: a changefeed acknowledges nothing that a power loss could undo."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from iscp.changefeed.model.ulid import begin
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import FAILPOINT_SYNC_FILES, FeedTable
from iscp.changefeed.table.file_writer import FeedRows
from iscp.model.values.errors import OutcomeUnknown, StorageError
from iscp.system.threads import SystemClock
from tests.fakes.failing_disk import on_a_failing_disk
from tests.fakes.feed_program import ROWS, SCHEMA, rows_of
from tests.fakes.guards import ScriptedFailpoints, break_down

SYNC, REWRITE = "feed.sync", "feed.rewrite"


class Disk:
    """A feed on a disk that a test can make fail; each `feed` is a writer of its own."""

    def __init__(self, uri: Path) -> None:
        self.uri = uri
        self.points = ScriptedFailpoints()
        create_feed_table(str(uri), SCHEMA, 2)
        self.feed = self.opened()

    def opened(self) -> FeedTable:
        return FeedTable(str(self.uri), SystemClock(), self.points)

    def append(self, feed: FeedTable) -> int:
        seen = feed.state(0)
        first = begin(seen.place, 1_000, b"0123456789")
        rows = FeedRows(rows_of("a", seen.seq), pa.array(["insert"] * ROWS))
        return feed.append(0, seen, first, rows).seq

    def inode(self, version: int) -> int:
        return (self.uri / "_delta_log" / f"{version:020d}.json").stat().st_ino

    def files(self) -> set[Path]:
        return set(self.uri.rglob("*.parquet"))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "feed")


def test_rows_that_the_disk_does_not_take_are_not_committed_and_written_again(disk: Disk) -> None:
    disk.append(disk.feed)
    before = disk.files()
    disk.points.once(FAILPOINT_SYNC_FILES, break_down)
    with pytest.raises(StorageError, match="Input/output error"):
        disk.append(disk.feed)
    assert (disk.feed.state(0).seq, disk.files()) == (1, before), "a second sync of the same files would prove nothing"
    assert disk.append(disk.feed) == 2


def test_nothing_succeeds_while_the_disk_syncs_nothing_and_all_of_it_once_it_does(tmp_path: Path) -> None:
    uri = tmp_path / "feed"
    with pytest.raises(StorageError, match="Input/output error"):
        on_a_failing_disk(lambda: create_feed_table(str(uri), SCHEMA, 2))
    disk = Disk(uri)
    for seq in (1, 2):
        with pytest.raises(StorageError, match="Input/output error"):
            on_a_failing_disk(lambda: disk.append(disk.feed))
        assert (disk.feed.state(0).seq, disk.opened().state(0).seq) == (seq - 1, seq - 1)
        assert disk.append(disk.feed) == seq
    assert disk.opened().state(0).seq == 2


def test_a_commit_whose_sync_failed_is_written_again_before_it_is_acknowledged(disk: Disk) -> None:
    seen: list[int] = []

    def note_and_break_down() -> None:
        seen.append(disk.inode(1))
        break_down()

    disk.points.once(SYNC, note_and_break_down)
    assert disk.append(disk.feed) == 1
    assert [disk.inode(1)] != seen


def test_a_commit_that_may_be_lost_is_doubted_and_so_is_what_follows_it(disk: Disk) -> None:
    disk.points.once(SYNC, break_down)
    disk.points.once(REWRITE, break_down)
    with pytest.raises(OutcomeUnknown, match="lasts"):
        disk.append(disk.feed)
    doubted, other = disk.inode(1), disk.opened()

    def break_down_again() -> None:
        disk.points.once(REWRITE, break_down)
        break_down()

    disk.points.once(REWRITE, break_down_again)
    with pytest.raises(OutcomeUnknown, match="lasts"):
        disk.append(other)
    assert disk.inode(1) == doubted
    assert disk.append(other) == 3
    assert disk.inode(1) != doubted
