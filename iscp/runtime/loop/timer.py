"""Time what is due again and again."""

from __future__ import annotations


class Timer:
    """A timer is due every `every_s` of the monotonic clock; after a failure it is due after the retry's pause."""

    def __init__(self, every_s: float, now_s: float) -> None:
        self._every_s = every_s
        self.due_s = now_s + every_s

    def fires(self, now_s: float) -> bool:
        if now_s < self.due_s:
            return False
        self.due_s = now_s + self._every_s
        return True
