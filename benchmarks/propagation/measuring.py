"""One step of one driver: until when all derived tables are right, what it has cost, and what is wrong in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.propagation.driver import Driver
from benchmarks.propagation.history import Step
from benchmarks.propagation.medallion import Derived
from benchmarks.propagation.results import Bag, Results, read_derived
from benchmarks.propagation.source_lake import SourceCommit, committed_at_s
from iscp.storage.locations import commit_name

POLL_S = 0.02
PATIENCE_S = 300.0
"""Seconds for which tables may be wrong; then the driver is waited for, and they count as wrong if they still are."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a step.

    `lag_s`: from the last commit to the sources to the commit by which the last derived table was right; 0 where none
    was wrong. `settled_s`: to when the driver had nothing left to do. `cpu_s` of all its processes, and `bytes` written
    by them, are those until then. `wrong` has the differing rows of each derived table that is not right.
    """

    lag_s: float
    settled_s: float
    cpu_s: float
    bytes: int
    wrong: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "lag_s": round(self.lag_s, 3),
            "settled_s": round(self.settled_s, 3),
            "cpu_s": round(self.cpu_s, 2),
        }


class WatchedTable:
    """A derived table, as often as it has a new version. `right_at_s` is when it became right, None while it is not."""

    def __init__(self, derived: Derived, uri: str, results: Results) -> None:
        self.derived = derived
        self.uri = uri
        self.right_at_s: float | None = None
        self._results = results
        self._version = -1
        self._bag: Bag | None = None

    def expect(self, now_s: float) -> None:
        """Compare with rows that are expected from now on: it may be right already."""
        self.right_at_s = now_s if self._is_right() else None
        self.catch_up()

    def catch_up(self) -> None:
        """Compare its newest version, if there is a new one."""
        before = self._version
        while Path(self.uri, "_delta_log", commit_name(self._version + 1)).exists():
            self._version += 1
        if self._version == before:
            return
        self._bag = self._results.bag(read_derived(self.derived, self.uri, self._version))
        if not self._is_right():
            self.right_at_s = None
        elif self.right_at_s is None:
            self.right_at_s = committed_at_s(self.uri, self._version)

    def differences(self) -> int:
        self.catch_up()
        if self._version < 0:
            return max(1, self._results.expected[self.derived.name].rows)
        rows = read_derived(self.derived, self.uri, self._version)
        return self._results.differences(self.derived.name, rows)

    def _is_right(self) -> bool:
        return self._bag == self._results.expected[self.derived.name]


class Bench:
    """A driver, and what is seen of its tables."""

    def __init__(self, driver: Driver, results: Results, patience_s: float = PATIENCE_S) -> None:
        self.driver = driver
        self._patience_s = patience_s
        self._tables = [WatchedTable(each, driver.place.target(each.name), results) for each in driver.derived]

    def play(self, step: Step, commits: Sequence[SourceCommit], idle_s: float) -> Round:
        """Apply a change, or cause trouble, and wait for the end of it. `Results` are those after the change."""
        self.driver.resume()
        try:
            return self._play(step, commits, idle_s)
        finally:
            self.driver.pause()

    def _play(self, step: Step, commits: Sequence[SourceCommit], idle_s: float) -> Round:
        files, spent_s = _files(self.driver.written_folders()), self.driver.spent_s()
        if step is Step.IDLE:
            time.sleep(idle_s)
            return self._round(0.0, idle_s, spent_s, files)
        if step is Step.FAILOVER:
            self.driver.fail()
        began_s = self.driver.place.lake.apply(commits) if commits else time.time()
        if step is Step.FIRST:
            self.driver.create()
        else:
            read = {table for each in self.driver.derived for table in each.inputs}
            self.driver.notify(dict.fromkeys(commit.table for commit in commits if commit.table in read))
        for table in self._tables:
            table.expect(began_s)
        self._await(lambda: all(table.right_at_s is not None for table in self._tables))
        self.driver.settle()
        settled_s = time.time() - began_s
        for table in self._tables:
            table.catch_up()
        lag_s = max((table.right_at_s or time.time()) - began_s for table in self._tables)
        return self._round(max(0.0, lag_s), settled_s, spent_s, files)

    def _await(self, right: Callable[[], bool]) -> None:
        until_s = time.monotonic() + self._patience_s
        while not right() and time.monotonic() < until_s:
            time.sleep(POLL_S)
            for table in self._tables:
                table.catch_up()

    def _round(self, lag_s: float, settled_s: float, spent_s: float, files: dict[str, tuple[int, int]]) -> Round:
        cpu_s = self.driver.spent_s() - spent_s
        now = _files(self.driver.written_folders())
        written = sum(size for path, (size, at) in now.items() if files.get(path) != (size, at))
        wrong = {table.derived.name: table.differences() for table in self._tables}
        return Round(lag_s, settled_s, cpu_s, written, {name: rows for name, rows in wrong.items() if rows})


def _files(folders: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """The size and the time of each file."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # a temporary file, which has its name by now
            if path.is_file():
                found[str(path)] = stat.st_size, stat.st_mtime_ns
    return found
