"""All jobs and searches of a node share the pace of requests to one embedder."""

from __future__ import annotations

import threading

from iscp.ports.system import Clock


class RequestPace:
    """Spreads requests evenly: `per_s` of them in a second, or without a limit where it is 0. Thread-safe."""

    def __init__(self, per_s: float, clock: Clock) -> None:
        self._interval_s = 1.0 / per_s if per_s > 0 else 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_s = clock.monotonic_s()

    def reserve(self) -> float:
        """Take the next place, and return the seconds to wait for it."""
        if not self._interval_s:
            return 0.0
        with self._lock:
            now_s = self._clock.monotonic_s()
            at_s = max(self._free_at_s, now_s)
            self._free_at_s = at_s + self._interval_s
        return at_s - now_s
