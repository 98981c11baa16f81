"""Commits to tables on local disks are noticed at once, by the real kernel; a tenant who touches files is noticed now
and then.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.delta.log.directory_notices import PAUSE_MAX_S, DirectoryNotices
from tests.fakes.waiting import until

QUEUED_MAX = Path("/proc/sys/fs/inotify/max_queued_events")


class Heard:
    """What was noticed, by URI. While `gate` is closed, whoever notices waits."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.notices = DirectoryNotices(self._hear)

    def _hear(self, uri: str) -> None:
        self.gate.wait()
        self.counts[uri] += 1

    def follow(self, table: Path) -> str:
        """Follow a table, and return its URI once it is watched."""
        self.notices.follow(uri := str(table))
        until(lambda: self.counts[uri])
        return uri

    def rests(self) -> bool:
        """Return whether nothing is noticed for some time."""
        before = Counter(self.counts)
        time.sleep(3 * PAUSE_MAX_S)
        return before == self.counts


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.gate.set()
    heard.notices.close()


def new_table(place: Path) -> Path:
    (place / "_delta_log").mkdir(parents=True)
    return place


def commit(table: Path, version: int) -> None:
    """As a writer does that renames a whole file."""
    made = table / "_delta_log" / f".{version}.tmp"
    made.write_text("{}")
    made.rename(table / "_delta_log" / f"{version:020}.json")


def test_a_commit_is_noticed_and_then_nothing_more(heard: Heard, tmp_path: Path) -> None:
    table, other = new_table(tmp_path / "t"), new_table(tmp_path / "other")
    uri, idle = heard.follow(table), heard.follow(other)
    for version in range(3):
        before = heard.counts[uri]
        commit(table, version)
        until(lambda before=before: heard.counts[uri] > before)  # type: ignore[misc]
    until(heard.rests, 60.0)
    assert heard.counts[idle] == 1, "only when it was followed"
    assert heard.notices.counters() == {"tables_noticed": 2, "tables_unnoticed": 0}


def test_a_table_that_is_left_is_not_noticed_any_more(heard: Heard, tmp_path: Path) -> None:
    table, stays = new_table(tmp_path / "t"), new_table(tmp_path / "stays")
    uri, stayed = heard.follow(table), heard.follow(stays)
    heard.notices.leave(uri)
    until(lambda: heard.notices.counters() == {"tables_noticed": 1, "tables_unnoticed": 0})
    before = heard.counts[uri]
    commit(table, 0)
    commit(stays, 0)
    until(lambda: heard.counts[stayed] > 1)
    assert heard.counts[uri] == before
    assert heard.follow(table) == uri, "it may come back"


def test_whoever_touches_files_all_the_time_is_noticed_now_and_then(heard: Heard, tmp_path: Path) -> None:
    table, other = new_table(tmp_path / "t"), new_table(tmp_path / "other")
    uri, honest = heard.follow(table), heard.follow(other)
    begun_s, before_s, touched = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begun_s < 4.0:
        (table / "_delta_log" / f"{touched % 7}").write_text("")
        touched += 1
    passed_s = time.monotonic() - begun_s
    assert touched > 100
    assert heard.counts[uri] <= 12 + 2 * passed_s / PAUSE_MAX_S, f"{touched} files, {time.process_time() - before_s} s"
    before = heard.counts[honest]
    commit(other, 0)
    until(lambda: heard.counts[honest] > before)


def test_a_log_that_comes_later_or_comes_back_is_followed(heard: Heard, tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    uri = heard.follow(table)
    shutil.rmtree(table)
    until(lambda: heard.notices.counters()["tables_unnoticed"] == 1)
    assert heard.counts[uri] > 1, "whatever became of it is found by a probe"


@pytest.mark.parametrize("uri", ["s3://lake/t", "/proc/t", "relative"])
def test_tables_elsewhere_are_left_to_probes(heard: Heard, uri: str) -> None:
    heard.notices.follow(uri)
    heard.notices.leave(uri)
    until(lambda: heard.notices.counters() == {"tables_noticed": 0, "tables_unnoticed": 0})  # its thread may be behind


# Each time: that every table is noticed once by its own events, above.
@pytest.mark.further
def test_after_a_queue_that_overflows_one_pass_finds_every_commit(
    heard: Heard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = int(QUEUED_MAX.read_text()) // 2 + 1_000  # a watch ends with a second event
    tables = [new_table(tmp_path / f"{number}") for number in range(many)]
    for table in tables:
        heard.notices.follow(str(table))
    until(lambda: heard.counts.total() == many, 120.0)
    heard.gate.clear()
    for table in tables:
        (table / "_delta_log" / "0").touch()
    heard.gate.set()
    until(lambda: min(heard.counts.values()) >= 2, 120.0)
    assert "notices.overflown" in caplog.messages


def test_it_can_be_closed_at_once_and_takes_no_orders_then(tmp_path: Path) -> None:
    heard = Heard()
    heard.notices.close()
    heard.notices.follow(str(new_table(tmp_path / "t")))
    assert heard.notices.counters() == {"tables_noticed": 0, "tables_unnoticed": 0}
