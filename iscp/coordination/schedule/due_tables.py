"""Tables by the time at which they have to be visited, so that a pass costs only what is due.

Due times of idle tables lie on a grid, so that many share one: the heap holds times, each with the tables that are due
then, in the order in which they came. A hundred thousand idle tables have some hundreds of times.
"""

from __future__ import annotations

import heapq
from math import inf, isfinite

from iscp.coordination.schedule.table_state import TrackedTable
from iscp.core.values.errors import InvariantBroken

STALE_MAX = 1_000
"""Outdated entries, in addition to one for each live table; beyond them they are removed."""


class DueTables:
    """Invariant: a table with a finite `due_s` has an entry at that time; its other entries count for nothing."""

    def __init__(self) -> None:
        self._times: list[float] = []  # a heap
        self._tables: dict[float, list[TrackedTable]] = {}
        self._entries = 0
        self._live = 0
        # How many entries of the earliest time count no more: a list is not cut at its beginning for each.
        self._passed, self._passed_of_s = 0, inf

    def __len__(self) -> int:
        return self._live

    def set(self, table: TrackedTable, due_s: float, now_s: float) -> None:
        """Set when the table is due: never in the past, and never not at all. Raises InvariantBroken if `due_s` is no
        time.
        """
        due_s = max(due_s, now_s)
        if not isfinite(due_s):
            raise InvariantBroken(f"{table.uri} would never be visited again")
        if due_s == table.due_s:
            return
        if table.due_s == inf:
            self._live += 1
        table.due_s = due_s
        tables = self._tables.get(due_s)
        if tables is None:
            self._tables[due_s] = [table]
            heapq.heappush(self._times, due_s)
        else:
            tables.append(table)
        self._entries += 1
        if self._entries > 2 * self._live + STALE_MAX:
            self._remove_stale()

    def clear(self, table: TrackedTable) -> None:
        if table.due_s != inf:
            self._live -= 1
            table.due_s = inf

    def pop(self, now_s: float) -> TrackedTable | None:
        """Return a table that is due, the longest overdue first."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        table = self._tables[due_s][self._passed]
        self._passed += 1
        self.clear(table)
        return table

    def next_due_s(self) -> float | None:
        while self._times:
            due_s = self._times[0]
            if due_s != self._passed_of_s:
                self._passed, self._passed_of_s = 0, due_s
            tables = self._tables[due_s]
            while self._passed < len(tables):
                if tables[self._passed].due_s == due_s:
                    return due_s
                self._passed += 1
            heapq.heappop(self._times)
            del self._tables[due_s]
            self._entries -= len(tables)
            self._passed_of_s = inf
        return None

    def _remove_stale(self) -> None:
        waiting = {
            due_s: [table for table in dict.fromkeys(tables) if table.due_s == due_s]
            for due_s, tables in self._tables.items()
        }
        self._tables = {due_s: tables for due_s, tables in waiting.items() if tables}
        self._times = list(self._tables)
        heapq.heapify(self._times)
        self._entries = sum(map(len, self._tables.values()))
        self._passed_of_s = inf
