"""Remember what a machine has to check again, and when: a heap, so that what is idle costs nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator


def wake() -> None:
    """Do nothing, for a time at which the machine only has to step."""


class Timers:
    """Actions by due time, then in the order they were set.

    None can be cancelled: each checks whether it still counts.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (due_s, self._serial, action))

    def next_due_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> Iterator[Callable[[], None]]:
        """Take out what is due, one by one; what is set meanwhile for now is among it."""
        while self._heap and self._heap[0][0] <= now_s:
            yield heapq.heappop(self._heap)[2]
