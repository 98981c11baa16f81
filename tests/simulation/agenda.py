"""Simulated time: what happens next, and nothing else. One thread, so that a seed always gives the same run."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions by time, and at one time in the order they were set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._serial = 0

    def after(self, delay_s: float, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._serial, action))

    def run_until(self, end_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(heap)
            action()
        self.now_s = end_s
