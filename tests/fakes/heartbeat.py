"""A thread that beats as a lease's renewal does: for how long it had to wait for Python's lock.

A call into a library that keeps the lock stops all other threads of the process, whose work no tenant may hold up.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

EVERY_S = 0.005


class Heartbeat:
    """`longest_s` is the longest time between two beats within the block, `took_s` how long the block took."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.took_s = 0.0
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        assert self._begun.wait(20.0)
        self._since_s = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.took_s = time.monotonic() - self._since_s
        self._over.set()
        self._thread.join(20.0)

    def _beat(self) -> None:
        self._begun.set()
        last_s = time.monotonic()
        while not self._over.is_set():
            time.sleep(EVERY_S)
            now_s = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s
