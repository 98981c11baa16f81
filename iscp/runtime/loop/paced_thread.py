"""A thread that does the same again and again, the more rarely the longer it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from iscp.ports.system import Clock, Threads
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)

REST_FACTOR = 20.0
"""After a turn the thread rests for so many times as long as it took: a twentieth of a core at most does its work."""


class PacedThread:
    """Calls `turn` every `every_s` at most, until `close`. What it raises is logged, and the next turn comes in its
    time.
    """

    def __init__(
        self, name: str, turn: Callable[[], None], clock: Clock, every_s: float, threads: Threads = THREADS
    ) -> None:
        self._turn = turn
        self._clock = clock
        self._every_s = every_s
        (self._wake,) = threads.conditions(1)
        self.closed = False
        self._thread = threads.thread(name, self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the present turn, which is not waited for; it may see that it is `closed`."""
        with self._wake:
            self.closed = True
            self._wake.notify_all()

    def _run(self) -> None:
        while not self.closed:
            began_s = self._clock.monotonic_s()
            try:
                self._turn()
            except Exception:
                log.exception("turn.failed")
            took_s = self._clock.monotonic_s() - began_s
            with self._wake:
                self._wake.wait_for(lambda: self.closed, max(self._every_s, REST_FACTOR * took_s))
