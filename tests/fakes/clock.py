"""A clock that only the test moves (port Clock)."""

from __future__ import annotations

import threading


class FakeClock:
    def __init__(self, now_s: float = 1_700_000_000.0, monotonic_s: float = 100.0) -> None:
        self._now_s = now_s
        self._monotonic_s = monotonic_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now_s += seconds
        self._monotonic_s += seconds

    def step(self, seconds: float) -> None:
        """The wall clock alone jumps, forwards or back."""
        self._now_s += seconds


class ThreadClock(FakeClock):
    """A clock that `advance` moves for the calling thread alone: each of several threads takes its own time."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def monotonic_s(self) -> float:
        return super().monotonic_s() + getattr(self._own, "seconds", 0.0)

    def advance(self, seconds: float) -> None:
        self._own.seconds = getattr(self._own, "seconds", 0.0) + seconds
