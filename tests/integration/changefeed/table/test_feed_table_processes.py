"""Processes that write one feed: whoever is killed or frozen, each append is there once and in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.system.failpoints import VARIABLE
from tests.fakes.feed_program import ROWS
from tests.fakes.waiting import until
from tests.integration.changefeed.table.feed_tables import append, opened, read, told


class Writer:
    def __init__(self, uri: str, shard: int, who: str, root: Path, failpoints: str = "") -> None:
        self.who, self._told = who, root / f"{who}.told"
        command = [sys.executable, "-m", "tests.fakes.feed_program", uri, str(shard), who, str(self._told)]
        self.child = subprocess.Popen(command, env=os.environ | {VARIABLE: failpoints})

    def end(self) -> None:
        self.child.kill()
        self.child.wait()

    def appends(self, word: str) -> set[int]:
        lines = self._told.read_text().splitlines() if self._told.exists() else []
        return {int(line.split()[1]) for line in lines if line.startswith(word)}


def check(uri: str, writers: list[Writer]) -> None:
    """All that was acknowledged is there once, nothing else but what was begun last, no ulid twice, all in order."""
    rows = read(uri).rows
    assert len(set(rows["ulid"].to_pylist())) == len(rows)
    there = Counter((who, number) for who, number, _ in told(rows))
    assert set(there.values()) <= {ROWS}, "an append is there as a whole and once"
    for writer in writers:
        has = {number for who, number in there if who == writer.who}
        assert writer.appends("has") <= has <= writer.appends("begins")
    for shard in set(rows["shard"].to_pylist()):
        part = rows.filter(pa.compute.equal(rows["shard"], shard))
        for writer in writers:
            mine = [(number, n) for who, number, n in told(part) if who == writer.who]
            assert mine == sorted(mine), "in the order in which they were appended"


@pytest.mark.parametrize("point", ["feed.write", "feed.commit"])
def test_a_writer_that_is_killed_leaves_the_shard_to_the_others(uri: str, tmp_path: Path, point: str) -> None:
    doomed = Writer(uri, 0, "doomed", tmp_path, f"{point}=kill:4")
    assert doomed.child.wait(60) == -signal.SIGKILL
    append(opened(uri), 0, "other", now_ms=int(time.time() * 1000))
    assert doomed.appends("has") == {0, 1, 2}
    check(uri, [doomed])


def test_the_commit_of_a_frozen_writer_fails_when_it_wakes(uri: str, tmp_path: Path) -> None:
    frozen = Writer(uri, 0, "frozen", tmp_path, "feed.commit=sleep:3:3")
    until(lambda: 2 in frozen.appends("begins"), 60.0)
    time.sleep(0.5)
    feed = opened(uri)
    for number in range(3):
        append(feed, 0, "other", number, now_ms=int(time.time() * 1000))
    until(lambda: 2 in frozen.appends("has"), 60.0)
    frozen.end()
    assert 2 in frozen.appends("lost"), "its first try was refused"
    check(uri, [frozen])


@pytest.mark.further  # each time: one that is frozen and one that is killed above, eight in test_processes.py
@pytest.mark.timeout(300)
def test_eight_write_at_once_while_some_are_frozen_and_killed(uri: str, tmp_path: Path) -> None:
    """Six to one shard, and two to another; a reader that follows sees each row once, in its shard's order."""
    chance = random.Random(2)
    writers = [Writer(uri, n % 4 // 3, f"w{n}", tmp_path) for n in range(8)]
    seen: list[tuple[int, str]] = []
    cursor: dict[int, str] = {}
    frozen: Writer | None = None
    try:
        until(lambda: all(writer.appends("begins") for writer in writers), 150.0)
        end_s = time.monotonic() + 10.0
        while time.monotonic() < end_s:
            if frozen is not None:
                frozen.child.send_signal(signal.SIGCONT)
            frozen = chance.choice(writers[2:])
            frozen.child.send_signal(signal.SIGSTOP)
            if chance.random() < 0.1:
                chance.choice(writers[:2]).child.kill()
            page = read(uri, cursor, limit=500)
            seen += zip(page.rows["shard"].to_pylist(), page.rows["ulid_text"].to_pylist(), strict=True)
            cursor = dict(page.cursor)
            time.sleep(0.2)
    finally:
        for writer in writers:
            writer.end()
    check(uri, writers)
    while len((page := read(uri, cursor, limit=5_000)).rows):
        seen += zip(page.rows["shard"].to_pylist(), page.rows["ulid_text"].to_pylist(), strict=True)
        cursor = dict(page.cursor)
    rows = read(uri).rows
    assert len(seen) == len(set(seen)) == len(rows) > 8 * ROWS
    for shard in range(2):
        mine = [ulid for each, ulid in seen if each == shard]
        assert mine == sorted(mine) != []
