"""The one primitive that wakes a loop (after TiDB MVS's Notifier)."""

from __future__ import annotations

import threading


class Notifier:
    """Many may call `notify`, one waits; calls before the waiter comes count as one, and none is missed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake = False

    def notify(self) -> None:
        with self._condition:
            if not self._awake:
                self._awake = True
                self._condition.notify()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait, and return whether it was notified since the last wait; with None it waits without limit."""
        with self._condition:
            self._condition.wait_for(lambda: self._awake, timeout_s)
            awake, self._awake = self._awake, False
            return awake
