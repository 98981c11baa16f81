"""The tables that wait to be built, in the order of their turns: what a step costs does not grow with their number."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

GATHER_S = 2.0
"""Seconds that a table's turn waits after its first request: jobs that are registered together are read together."""

STALE_MAX = 16
"""Outdated entries of the heap, in addition to one for each table that waits; beyond them it is made again."""

_Turn = tuple[int, float, int]
"""A `_Turn` orders the tables, the least first: the priority, negated, since when the table is wanted, and a number."""


class WaitingTables:
    """Tables that wait, ordered by priority and then by when they were first wanted; tables whose requests still gather
    come last.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._heap: list[tuple[_Turn, str]] = []
        self._gathering: dict[str, None] = {}  # as they have come, which is by time
        self._number = 0
        self._ripening: deque[tuple[float, str]] = deque()

    def set(self, table_id: str, priority: int, since_s: float, now_s: float) -> None:
        """Have the table wait, wanted since `since_s`."""
        before = self._turns.get(table_id)
        if before is None:
            self._number += 1
        turn = -priority, since_s, before[2] if before else self._number
        if before == turn:
            return
        if before is None and since_s + GATHER_S > now_s:
            self._gathering[table_id] = None
            self._ripening.append((since_s + GATHER_S, table_id))
        self._turns[table_id] = turn
        if table_id not in self._gathering:
            self._push(table_id)

    def remove(self, table_id: str) -> None:
        if self._turns.pop(table_id, None) is not None:
            self._gathering.pop(table_id, None)

    def ripen(self, now_s: float) -> None:
        """Let the turns of those that have gathered come from now on."""
        while self._ripening and self._ripening[0][0] <= now_s:
            _, table_id = self._ripening.popleft()
            turn = self._turns.get(table_id)
            if turn is not None and turn[1] + GATHER_S <= now_s and table_id in self._gathering:
                del self._gathering[table_id]
                self._push(table_id)

    def ripens_at_s(self) -> float | None:
        """Return when the turn of a further table may come, or None if none gathers."""
        return self._ripening[0][0] if self._ripening else None

    def first(self, most: int) -> list[str]:
        """Return up to so many of those whose turn may come, in order."""
        found: list[tuple[_Turn, str]] = []
        while self._heap and len(found) < most:
            entry = heapq.heappop(self._heap)
            if self._holds(entry) and (not found or found[-1] != entry):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [table_id for _, table_id in found]

    def next_ones(self, most: int) -> list[str]:
        """Return what `first` does, and then tables whose requests still gather."""
        found = self.first(most)
        for table_id in self._gathering:
            if len(found) >= most:
                break
            found.append(table_id)
        return found

    def __iter__(self) -> Iterator[str]:
        """Return all of them, in order, at a cost that grows with their number."""
        return iter(sorted(self._turns, key=lambda table_id: (table_id in self._gathering, self._turns[table_id])))

    def _holds(self, entry: tuple[_Turn, str]) -> bool:
        turn, table_id = entry
        return self._turns.get(table_id) == turn and table_id not in self._gathering

    def _push(self, table_id: str) -> None:
        heapq.heappush(self._heap, (self._turns[table_id], table_id))
        if len(self._heap) > 2 * len(self._turns) + STALE_MAX:
            self._heap = [(turn, each) for each, turn in self._turns.items() if each not in self._gathering]
            heapq.heapify(self._heap)
