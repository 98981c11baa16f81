"""Remember when unread messages came in, so that nobody is blamed for what only has to be read."""

from __future__ import annotations

import threading
from collections import deque

from iscp.ports.system import Clock


class Unread:
    """Safe to use from several threads. Costs next to nothing where things are read about in the order they came in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._came: deque[float] = deque()

    def note(self) -> float:
        """Note that something has come in, and return when, to be given to `mark_read`."""
        with self._lock:
            # Read under the lock: the deque is in order of time, whichever thread comes first.
            came_s = self._clock.monotonic_s()
            self._came.append(came_s)
            return came_s

    def mark_read(self, came_s: float) -> None:
        """Note that a message was processed, or was refused."""
        with self._lock:
            self._came.remove(came_s)

    def since_s(self) -> float:
        """Return the time before which all that came in has been processed."""
        with self._lock:
            return self._came[0] if self._came else self._clock.monotonic_s()
