"""Refreshes, or purges, of one node: which begin now, which are given up, and when each is done again. A pure machine.

Rules: one thing is done once at a time, also where it hangs; one that takes too long leaves its slot to others;
whatever one does, all others are served, as long as threads last (iscp.coordination.schedule.maintenance_queue).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from iscp.coordination.schedule.maintenance_heap import MaintenanceHeap
from iscp.coordination.schedule.maintenance_queue import MaintenanceQueue
from iscp.core.job.maintenance_figures import MaintenanceFigures
from iscp.core.settings.config import BackoffConfig, MaintenanceConfig
from iscp.core.values.errors import IscpError, QueueFull, TimedOut

T = TypeVar("T", bound=Hashable)


SLOT_S = 10.0
"""Seconds that a refresh or a purge has its slot; then it runs on without one, and the next begins."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    """A `Turn` is what is to `begin` now, and what was `given_up` or `rejected`."""

    begin: tuple[T, ...] = ()
    given_up: tuple[T, ...] = ()
    rejected: tuple[T, ...] = ()


class MaintenanceTurns(Generic[T]):
    """Times are of one clock that never steps back."""

    def __init__(
        self, interval_s: float, config: MaintenanceConfig, backoff: BackoffConfig, draw: Callable[[], float]
    ) -> None:
        self._heap: MaintenanceHeap[T] = MaintenanceHeap(interval_s, backoff, draw)
        self._queue: MaintenanceQueue[T] = MaintenanceQueue(config.concurrency)
        self._timeout_s = config.timeout_s if config.timeout_s > 0 else inf
        self._slot_s = min(SLOT_S, self._timeout_s)
        self._about: dict[T, tuple[str, str]] = {}
        self._leaves_s: dict[T, float] = {}
        self._until_s: dict[T, float] = {}

    @property
    def running(self) -> int:
        """Return how many have not ended and were not given up."""
        return self._queue.running

    @property
    def hanging(self) -> int:
        return self._queue.hanging

    def add(self, item: T, account: str, kind: str, now_s: float) -> None:
        """Add an item that is due at once; one that is there keeps its time. `kind` is the kind of consumer, which
        answers for it.
        """
        self._about[item] = account, kind
        self._heap.add(item, now_s)

    def renew(self, item: T, now_s: float) -> None:
        self._heap.renew(item, now_s)

    def remove(self, item: T) -> None:
        self._about.pop(item, None)
        self._heap.remove(item)

    def hasten(self, item: T, now_s: float) -> None:
        self._heap.hasten(item, now_s)

    def turn(self, now_s: float) -> Turn[T]:
        """Return the turn now: each of `begin` is being done from now on, until `end` is called."""
        for item in _due(self._leaves_s, now_s):
            self._queue.leave(item)
        given_up = _due(self._until_s, now_s)
        for item in given_up:
            self._queue.give_up(item)
            self._heap.give_up(item, TimedOut(f"it was given up after {self._timeout_s:g} s, and has not ended"))
        for item in self._heap.take_due(now_s):
            self._queue.put(item, *self._about[item])
        begin, rejected = [], []
        while (next_one := self._queue.next()) is not None:
            if next_one in self._heap and self._queue.refused(next_one):
                self._queue.end(next_one)
                self._heap.reject(next_one, QueueFull("too many of its kind hang: it is not begun"), now_s)
                rejected.append(next_one)
            elif not self._heap.begin(next_one):
                self._queue.end(next_one)
            else:
                self._leaves_s[next_one] = now_s + self._slot_s
                self._until_s[next_one] = now_s + self._timeout_s
                begin.append(next_one)
        return Turn(tuple(begin), tuple(given_up), tuple(rejected))

    def end(self, item: T, result: float | IscpError, now_s: float) -> float:
        """End an item, and return after how many seconds it is done again. `result` is how long it wants to wait, or
        its fault.

        The result of an item that was given up counts for nothing.
        """
        self._queue.end(item)
        self._leaves_s.pop(item, None)
        if self._until_s.pop(item, None) is None:
            return self._heap.end_late(item, now_s)
        if isinstance(result, IscpError):
            return self._heap.fail(item, result, now_s)
        self._heap.complete(item, result, now_s)
        return result

    def figures(self, item: T, now_s: float, at_s: float) -> MaintenanceFigures | None:
        return self._heap.figures(item, now_s, at_s)

    def next_due_s(self) -> float | None:
        """Return when the next turn is due if nothing ends before, or None if none is."""
        due_s = self._heap.next_due_s()
        times = [*self._leaves_s.values(), *self._until_s.values(), inf if due_s is None else due_s]
        return None if min(times) == inf else min(times)


def _due(times: dict[T, float], now_s: float) -> list[T]:
    """Taken out of `times`."""
    found = [item for item, at_s in times.items() if at_s <= now_s]
    for item in found:
        del times[item]
    return found
