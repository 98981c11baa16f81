"""Queue what is to be sent to one receiver: in order, retried with backoff, and bounded.

The queue knows no clock and no network; the random number is passed in.
"""

from __future__ import annotations

from collections import deque

from iscp.core.job.notification import Notification
from iscp.core.settings.backoff import jittered_s

WAITING_MAX = 1_000
"""Notifications that wait for one receiver; one more drops the oldest (`webhook.dropped`, and the counter)."""

REFUSALS_MAX = 10
"""Attempts of a notification that its receiver refuses (a status from 300 to 499 but 408 and 429); then it is dropped,
so that the ones behind it are sent. A receiver that does not answer, or fails, is retried without end.
"""

RETRY_FIRST_S = 1.0
"""Pause after the first failed attempt at a receiver; it doubles with each."""

RETRY_MAX_S = 300.0
"""Longest pause between attempts at a receiver."""


class DeliveryQueue:
    """Notifications for one receiver, oldest first. Invariant: at most `WAITING_MAX` wait."""

    def __init__(self) -> None:
        self._waiting: deque[Notification] = deque()
        self._failures = 0
        self._refusals = 0
        self._due_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, notification: Notification) -> Notification | None:
        """Add a notification, and return the one that had to be dropped for it, if any."""
        self._waiting.append(notification)
        if len(self._waiting) <= WAITING_MAX:
            return None
        self._refusals = 0
        return self._waiting.popleft()

    def clear(self) -> int:
        """Drop all, and answer how many: another owner says what is still true."""
        dropped = len(self._waiting)
        self._waiting.clear()
        self._failures, self._refusals, self._due_s = 0, 0, 0.0
        return dropped

    def next(self, now_s: float) -> Notification | None:
        """Return the one to send now (monotonic seconds)."""
        return self._waiting[0] if self._waiting and self._due_s <= now_s else None

    def pause_s(self, now_s: float) -> float | None:
        """Return for how many seconds nothing is to be sent; None until something is added."""
        return max(0.0, self._due_s - now_s) if self._waiting else None

    def accept(self, notification: Notification) -> None:
        """The receiver has accepted it. The queue may have dropped it meanwhile."""
        self._failures, self._refusals, self._due_s = 0, 0, 0.0
        self._remove(notification)

    def fail(self, notification: Notification, *, refused: bool, now_s: float, draw: float) -> bool:
        """Note a failed delivery, and return whether the notification was given up. `draw` is uniform in [0, 1)."""
        pause_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._due_s = now_s + jittered_s(pause_s, draw)
        if not self._waiting or self._waiting[0] is not notification:
            return False
        self._refusals += refused
        if self._refusals < REFUSALS_MAX:
            return False
        self._failures, self._refusals = 0, 0
        self._remove(notification)
        return True

    def _remove(self, notification: Notification) -> None:
        if self._waiting and self._waiting[0] is notification:
            self._waiting.popleft()
