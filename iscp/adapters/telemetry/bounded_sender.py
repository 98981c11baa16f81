"""Sends items to a place that may be away: from a thread of its own, so that nobody waits for it.

What waits is bounded, and so is every attempt. What is not sent by then is dropped, and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from iscp.core.values.errors import IscpError, PermanentError

log = logging.getLogger(__name__)

T = TypeVar("T")

SAID_EVERY_S = 60.0
"""Pause between two lines of the log that say how many items were dropped, to one place."""


@dataclass(frozen=True, slots=True)
class SenderBounds:
    """`waiting_max`: items that wait; one more is dropped. `batch_max`: items that are sent at once.

    `linger_s`: how long the first item of a batch may wait for others. `attempts`: how often a batch is tried; then it
    is dropped. `pause_s`: the pause before the second attempt, which doubles with each.
    """

    waiting_max: int
    batch_max: int
    linger_s: float
    attempts: int
    pause_s: float


class BoundedSender(Generic[T]):
    """`send` sends a batch, within a bounded time, and raises IscpError; a PermanentError is not worth another attempt.

    It returns how many of the batch were not taken. `sent` and `dropped` count items since the start.
    """

    def __init__(self, name: str, send: Callable[[Sequence[T]], int], bounds: SenderBounds) -> None:
        self._name = name
        self._send = send
        self._bounds = bounds
        self._waiting: deque[T] = deque()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self.sent = self.dropped = 0
        self._said = 0
        self._said_at_s = -SAID_EVERY_S
        self._thread = threading.Thread(target=self._run, name=f"iscp-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return how many items wait."""
        return len(self._waiting)

    def put(self, item: T) -> None:
        """Have the item sent; this never blocks, and drops it where too many wait or the sender is closed."""
        with self._wake:
            if len(self._waiting) >= self._bounds.waiting_max or self._closing.is_set():
                self.dropped += 1
                return
            self._waiting.append(item)
            if len(self._waiting) in (1, self._bounds.batch_max):
                self._wake.notify()

    def close(self, wait_s: float) -> bool:
        """Send what waits, each batch once, for `wait_s` at most; the rest is dropped. Return whether all was sent."""
        with self._wake:
            self._closing.set()
            self._wake.notify()
        self._thread.join(wait_s)
        with self._wake:
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        if self.dropped > self._said:
            self._say("the node stops")
        return not left and not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._take():
            self._send_all(batch)

    def _take(self) -> list[T]:
        """Return the next batch; none: the sender was closed, and nothing waits."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing.is_set())
            self._wake.wait_for(self._is_full, self._bounds.linger_s)
            count = min(len(self._waiting), self._bounds.batch_max)
            return [self._waiting.popleft() for _ in range(count)]

    def _is_full(self) -> bool:
        return self._closing.is_set() or len(self._waiting) >= self._bounds.batch_max

    def _send_all(self, batch: list[T]) -> None:
        refused, why = len(batch), ""
        for attempt in range(self._bounds.attempts):
            try:
                refused, why = self._send(batch), "the receiver has refused some"
                break
            except IscpError as error:
                why = str(error)
                # Closed: one attempt is enough, for the node stops.
                if isinstance(error, PermanentError) or self._closing.wait(self._bounds.pause_s * 2**attempt):
                    break
            except Exception as error:
                log.exception("telemetry.broken", extra={"to": self._name})
                why = f"{type(error).__name__}: {error}"
                break
        with self._wake:
            self.dropped += refused
            self.sent += len(batch) - refused
        if self.dropped > self._said and time.monotonic() >= self._said_at_s + SAID_EVERY_S:
            self._say(why)

    def _say(self, why: str) -> None:
        count, self._said, self._said_at_s = self.dropped - self._said, self.dropped, time.monotonic()
        log.warning("telemetry.dropped", extra={"to": self._name, "count": count, "why": why})
