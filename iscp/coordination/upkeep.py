"""What has to be done again and again, each at its own time (after the heaps of TiDB MVS): refreshes, or purges.

It knows neither clock nor threads, and nothing of what is done: only when, and that one thing is done once at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from iscp.core.backoff import doubled_s
from iscp.core.config import BackoffConfig

T = TypeVar("T", bound=Hashable)

STALE_MAX = 1_000
"""Entries that no longer count, beside one for each item that waits, above which they are thrown out."""


class _Item:
    """`due_s` is None while it is being done; `wanted` is False where it was given up meanwhile."""

    __slots__ = ("due_s", "earliest_s", "failures", "wanted")

    def __init__(self, earliest_s: float) -> None:
        self.due_s: float | None = None
        self.earliest_s = earliest_s
        self.failures = 0
        self.wanted = True


class UpkeepHeap(Generic[T]):
    """Times are of one clock that never steps back.

    Invariant: an item that waits has one entry with its `due_s`; its other entries count for nothing.
    """

    def __init__(self, interval_s: float, backoff: BackoffConfig, draw: Callable[[], float]) -> None:
        """`interval_s`: however soon an item is to be done again, it is not done before."""
        self._interval_s = interval_s
        self._backoff = backoff
        self._draw = draw
        self._items: dict[T, _Item] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._serial = 0

    def __contains__(self, item: T) -> bool:
        found = self._items.get(item)
        return found is not None and found.wanted

    def add(self, item: T, now_s: float) -> None:
        """Due at once; one that is there keeps its time."""
        found = self._items.get(item)
        if found is None:
            self._items[item] = _Item(now_s)
            self._wait(item, now_s)
        else:
            found.wanted = True

    def remove(self, item: T) -> None:
        """One that is being done is forgotten when it ends."""
        found = self._items.get(item)
        if found is None:
            return
        found.wanted = False
        if found.due_s is not None:
            del self._items[item]

    def hasten(self, item: T, now_s: float) -> None:
        """Due as soon as its interval is over, if it waits for its time; what has failed keeps its wait."""
        found = self._items.get(item)
        if found is not None and found.due_s is not None and not found.failures:
            self._wait(item, min(found.due_s, max(now_s, found.earliest_s)))

    def take_due(self, now_s: float) -> list[T]:
        """All that are due, the longest overdue first; each counts as being done until `done` or `failed`."""
        taken = []
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            item = heapq.heappop(self._heap)[2]
            self._items[item].due_s = None
            taken.append(item)
        return taken

    def done(self, item: T, wait_s: float, now_s: float) -> None:
        found = self._items[item]
        found.failures, found.earliest_s = 0, now_s + self._interval_s
        self._ended(item, max(now_s + wait_s, found.earliest_s))

    def failed(self, item: T, now_s: float) -> float:
        """After how long it is tried again."""
        found = self._items[item]
        found.failures += 1
        wait_s = max(doubled_s(self._backoff, found.failures, self._draw()), self._interval_s)
        self._ended(item, now_s + wait_s)
        return wait_s

    def next_due_s(self) -> float | None:
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _ended(self, item: T, due_s: float) -> None:
        if self._items[item].wanted:
            self._wait(item, due_s)
        else:
            del self._items[item]

    def _wait(self, item: T, due_s: float) -> None:
        if self._items[item].due_s == due_s:
            return
        self._items[item].due_s = due_s
        self._serial += 1
        heapq.heappush(self._heap, (due_s, self._serial, item))
        if len(self._heap) > 2 * len(self._items) + STALE_MAX:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[float, int, T]) -> bool:
        found = self._items.get(entry[2])
        return found is not None and found.due_s == entry[0]
