"""Builds without etcd and Spark: a store in memory, a builder that notes what it is given, and a guard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from iscp.model.build.build_state import BuildState, Change
from iscp.model.build.build_task import RangeBatch, StagingBatch, StagingTask
from iscp.model.values.errors import Canceled, Conflict, IscpError
from iscp.model.values.ids import Leader
from iscp.model.values.progress import TableSize
from iscp.ports.system import Guard

RANGE = TableSize(100, 4_000)

Follow = Callable[[Sequence[Change]], None]


class FakeBuildStore:
    """The port BuildStore. The next writes raise `faults`."""

    def __init__(self) -> None:
        self.faults: list[IscpError] = []
        self._current = True
        self.writes = 0
        self._lock = threading.Lock()
        self._state = BuildState()
        self._followers: list[Follow] = []
        self._readers: list[Follow] = []

    @property
    def state(self) -> BuildState:
        return self.load()

    @property
    def empty(self) -> bool:
        return not list(self.load().changes())

    def lose_all(self) -> None:
        """As an etcd that is emptied: those who follow it read it again."""
        with self._lock:
            self._state, self._current = BuildState(), False
            for read in self._readers:
                read(())

    def is_current(self) -> bool:
        return self._current

    def load(self) -> BuildState:
        with self._lock:
            self._current = True
            return BuildState.of(list(self._state.changes()))

    def write(self, leader: Leader, changes: Sequence[Change]) -> None:
        with self._lock:
            if self.faults:
                raise self.faults.pop(0)
            if not self._current:
                raise Conflict("another write has come first")
            for change in changes:
                self._state.apply(change)
            self.writes += 1
            for follow in self._followers:
                follow(changes)

    def watch(self, on_read: Follow, on_changed: Follow) -> Callable[[], None]:
        with self._lock:
            on_read(list(self._state.changes()))
            self._readers.append(on_read)
            self._followers.append(on_changed)
        return lambda: self._followers.remove(on_changed)


class FakeRangeBuilder:
    """The port RangeBuilder. It waits until `go` is set or the guard refuses; the next batches raise `faults`.

    Each range has RANGE of the source, and each task that keeps commits, which is done at once, keeps as much.
    `stopped`: guards of batches whose work was to stop.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.batches: list[RangeBatch] = []
        self.staged: list[StagingTask] = []
        self.built: list[tuple[str, int]] = []
        self.canceled = 0
        self.faults: list[Exception] = []
        self.stopped: list[Guard] = []

    def cancel(self, guard: Guard) -> None:
        self.stopped.append(guard)

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        if isinstance(batch, StagingBatch):
            self.staged.append(batch.task)
            return RANGE
        self.batches.append(batch)
        if self.faults:
            raise self.faults.pop(0)
        while not self.go.wait(0.01):
            try:
                guard.check()
            except Canceled:
                self.canceled += 1
                raise
        self.built += [(plan.job_id, batch.range_id) for plan in batch.plans]
        return RANGE


class FakeBatchGuard:
    def __init__(self) -> None:
        self._canceled = False

    def cancel(self) -> None:
        self._canceled = True

    def check(self) -> None:
        if self._canceled:
            raise Canceled("the batch was cancelled")
