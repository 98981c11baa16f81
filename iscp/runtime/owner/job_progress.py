"""Wakes who waits for progress of jobs."""

from __future__ import annotations

import threading


class ProgressSignal:
    """A signal that wakes those who wait for a job whenever rows have changed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        # A count, not a flag: a change between a waiter's read of the job and its wait is not missed.
        self._count = 0
        self.closed = False

    def notify(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Wake everyone for the last time: the node stops."""
        self.closed = True
        self.notify()

    def count(self) -> int:
        return self._count

    def wait(self, since: int, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._count != since, timeout_s)
