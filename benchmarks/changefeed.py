"""Writing to a changefeed against plain appends by deltalake: `python -m benchmarks.changefeed [--json]`.

One writer: the same rows, of the year's flights, go by turns into a plain table and into feeds, in one run. Once
without a line of writers (`append`), and once by transactions in line at an etcd of its own. Writers in number are
processes; those of a plain table append to it at the same time. Pauses: one of eight writers is stopped (SIGSTOP)
within its transaction, and the longest time without a commit of the others is what counts.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.bare_cluster import until
from benchmarks.feed_writer import batch, feed, plain
from benchmarks.progress import report_progress
from iscp import changefeed
from iscp.changefeed.model.ulid import DRAWN_BYTES, NO_ULIDS, begin
from iscp.changefeed.table.feed_schema import ulid_columns
from iscp.etcd.server import EtcdServer
from iscp.system.threads import SystemClock

AIM_RATIO, AIM_PAUSE_OVER_S, AIM_ULIDS_PER_S = 1.3, 0.5, 5_000_000
TIMEOUT_S = 1.0
SIZES = {100: 60, 1_000: 60, 10_000: 30, 100_000: 10}
"""Rows of a commit, and how many commits of each kind."""
WRITERS = 8
WRITERS_ROWS = 1_000
SECONDS = 8.0
FREEZES = 5
FROZEN_S = 4.0
ULIDS = 2_000_000
ULID_ROUNDS = 9
WARM = 3


class Tables:
    """New tables for such rows, each in a place of its own."""

    def __init__(self, root: Path, etcd: str) -> None:
        self.etcd = etcd
        self._root, self._count = root, 0

    def plain(self, rows: pa.Table) -> str:
        uri = self._place()
        DeltaTable.create(uri, rows.schema)
        return uri

    def feed(self, rows: pa.Table, shards: int = 1) -> str:
        uri = self._place()
        changefeed.create(uri, rows.schema, shards=shards)
        return uri

    def _place(self) -> str:
        self._count += 1
        return str(self._root / f"table-{self._count}")


# --- one writer ----------------------------------------------------------------------------------------------------


def one_writer(tables: Tables, size: int, rounds: int) -> dict[str, Any]:
    """Medians of a commit's time, of each kind."""
    rows = batch(size)
    with changefeed.open(tables.feed(rows)) as alone:
        kinds: dict[str, Callable[[], object]] = {
            "plain": plain(tables.plain(rows), rows),
            "append": lambda: alone.append(0, rows),
            "transaction": feed(tables.feed(rows), tables.etcd, 0, rows),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(rounds + WARM):
            for kind, commit in kinds.items():
                began_s = time.perf_counter()
                commit()
                if number >= WARM:
                    taken[kind].append(time.perf_counter() - began_s)
    median_s = {kind: statistics.median(each) for kind, each in taken.items()}
    found = {
        "rows": size,
        **{f"{kind}_ms": round(1_000 * each, 2) for kind, each in median_s.items()},
        **{f"{kind}_rows_per_s": round(size / each) for kind, each in median_s.items()},
        **{f"ratio_{kind}": round(median_s[kind] / median_s["plain"], 2) for kind in ("append", "transaction")},
    }
    report_progress("one writer", **found)
    return found


# --- many ----------------------------------------------------------------------------------------------------------


class Writer:
    """A process; `commits` are the times of its commits (seconds of the monotonic clock)."""

    def __init__(self, kind: str, uri: str, etcd: str, shard: int) -> None:
        command = [sys.executable, "-m", "benchmarks.feed_writer", kind, uri, etcd, str(shard), str(WRITERS_ROWS)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.commits: list[float] = []
        self.lost: list[str] = []
        self.ready = self.frozen = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            word, *rest = line.split()
            match word:
                case "has":
                    self.commits.append(int(rest[0]) / 1e9)
                case "lost":
                    self.lost.append(rest[0])
                case _:
                    setattr(self, word, True)

    def go(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("go\n")
        self.child.stdin.flush()

    def end(self) -> None:
        if self.child.stdin is not None:
            self.child.stdin.close()
        try:
            self.child.wait(30.0)
        except subprocess.TimeoutExpired:
            self.child.kill()
        self._listener.join(10.0)


@contextmanager
def writers(tables: Tables, kind: str, count: int, shards: int) -> Iterator[list[Writer]]:
    rows = batch(1)
    uri = tables.plain(rows) if kind == "plain" else tables.feed(rows, shards)
    started = [Writer(kind, uri, tables.etcd, number % shards) for number in range(count)]
    try:
        until("all writers are ready", lambda: all(each.ready for each in started))
        for each in started:
            each.go()
        yield started
    finally:
        for each in started:
            each.end()


def many(tables: Tables, kind: str, count: int, shards: int, seconds: float) -> dict[str, Any]:
    with writers(tables, kind, count, shards) as started:
        until("each has committed", lambda: all(each.commits for each in started))
        began_s = time.monotonic()
        time.sleep(seconds)
        end_s = time.monotonic()
    commits = sum(began_s <= at_s <= end_s for each in started for at_s in each.commits) / (end_s - began_s)
    found = {
        "kind": kind,
        "writers": count,
        "shards": shards,
        "commits_per_s": round(commits, 1),
        "rows_per_s": round(commits * WRITERS_ROWS),
        "lost": sum(len(each.lost) for each in started),
    }
    report_progress("writers in number", **found)
    return found


def pauses(tables: Tables, writers_most: int, freezes: int) -> tuple[list[float], list[str]]:
    """Of each freeze the longest time without a commit, and what became of the commits of who was frozen."""
    longest: list[float] = []
    ends: list[str] = []
    with writers(tables, "feed", writers_most, 1) as started:
        until("each has committed", lambda: all(each.commits for each in started))
        for number in range(freezes):
            victim = started[number % writers_most]
            lost = len(victim.lost)
            victim.frozen = False
            began_s = time.monotonic()
            os.kill(victim.child.pid, signal.SIGUSR1)
            until("it is frozen within its transaction", lambda v=victim: v.frozen)  # type: ignore[misc]
            time.sleep(FROZEN_S)
            end_s = time.monotonic()
            others = [at_s for each in started if each is not victim for at_s in each.commits]
            times = sorted(at_s for at_s in others if began_s <= at_s <= end_s)
            longest.append(
                max(after - before for before, after in zip([began_s, *times], [*times, end_s], strict=True))
            )
            os.kill(victim.child.pid, signal.SIGCONT)
            until("its commit has ended", lambda v=victim, n=lost: len(v.lost) > n)  # type: ignore[misc]
            ends.append(victim.lost[lost])
            report_progress("a pause", pause_s=round(longest[-1], 2), frozen_ended_with=ends[-1])
    return longest, ends


# --- ulids ---------------------------------------------------------------------------------------------------------


def ulids_per_s() -> float:
    """As bytes and as text, for one transaction."""
    place = begin(NO_ULIDS, time.time_ns() // 1_000_000, os.urandom(DRAWN_BYTES))
    taken = []
    for _ in range(ULID_ROUNDS):
        began_s = time.perf_counter()
        ulid_columns(place, ULIDS)
        taken.append(time.perf_counter() - began_s)
    return ULIDS / statistics.median(taken)


def measure(tables: Tables, rows_max: int, most: int, seconds: float, freezes: int) -> dict[str, Any]:
    sizes = [one_writer(tables, size, rounds) for size, rounds in SIZES.items() if size <= rows_max]
    several = [many(tables, "plain", count, 1, seconds) for count in (1, most)]
    several += [many(tables, "feed", count, shards, seconds) for shards in (1, most) for count in (1, most)]
    longest, ends = pauses(tables, most, freezes)
    return {
        "ratio_one_writer": max(case["ratio_append"] for case in sizes),
        "ratio_one_writer_in_line": max(case["ratio_transaction"] for case in sizes),
        "longest_pause_s": round(max(longest), 2),
        "timeout_s": TIMEOUT_S,
        "pauses_s": [round(each, 2) for each in longest],
        "frozen_ended_with": ends,
        "ulids_per_s": round(ulids_per_s()),
        "one_writer": sizes,
        "writers": several,
        "aims": {
            "ratio_one_writer": AIM_RATIO,
            "longest_pause_s": TIMEOUT_S + AIM_PAUSE_OVER_S,
            "ulids_per_s": AIM_ULIDS_PER_S,
        },
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--rows-max", type=click.IntRange(min=min(SIZES)), default=max(SIZES), show_default=True, help="A commit."
)
@click.option("--writers", type=click.IntRange(min=2), default=WRITERS, show_default=True, help="In number.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=SECONDS, show_default=True, help="Of each of these.")
@click.option("--freezes", type=click.IntRange(min=1), default=FREEZES, show_default=True)
def main(as_json: bool, rows_max: int, writers: int, seconds: float, freezes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-changefeed-") as scratch:
        etcd = EtcdServer.start(Path(scratch) / "etcd", clock=SystemClock())
        try:
            result = measure(Tables(Path(scratch), etcd.endpoint), rows_max, writers, seconds, freezes)
        finally:
            etcd.stop()
    if as_json:
        print(json.dumps(result))
        return
    for name in ("one_writer", "writers"):
        for case in result.pop(name):
            print(case)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
