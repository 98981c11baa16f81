"""Tables by the time at which they have to be visited, so that a pass costs only what is due."""

from __future__ import annotations

import heapq
from math import inf, isfinite

from iscp.coordination.schedule.table_state import TrackedTable
from iscp.core.errors import InvariantBroken

STALE_MAX = 1_000
"""Outdated entries of the heap, in addition to one for each live table; beyond them they are removed."""


class DueTables:
    """Invariant: a table with a finite `due_s` has one entry with that time; its other entries count for nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TrackedTable]] = []
        self._serial = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def set(self, table: TrackedTable, due_s: float, now_s: float) -> None:
        """Never in the past, and never nothing: raises InvariantBroken if `due_s` is no time."""
        due_s = max(due_s, now_s)
        if not isfinite(due_s):
            raise InvariantBroken(f"{table.uri} would never be visited again")
        if due_s == table.due_s:
            return
        if table.due_s == inf:
            self._live += 1
        table.due_s = due_s
        self._serial += 1
        heapq.heappush(self._heap, (due_s, self._serial, table))
        if len(self._heap) > 2 * self._live + STALE_MAX:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_s]
            heapq.heapify(self._heap)

    def clear(self, table: TrackedTable) -> None:
        if table.due_s != inf:
            self._live -= 1
            table.due_s = inf

    def pop(self, now_s: float) -> TrackedTable | None:
        """A table that is due, the longest overdue first."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        table = heapq.heappop(self._heap)[2]
        self.clear(table)
        return table

    def next_due_s(self) -> float | None:
        while self._heap and self._heap[0][0] != self._heap[0][2].due_s:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
