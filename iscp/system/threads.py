"""The threads and clocks of the machine, behind the ports Threads and Clock, and what Python's processes need beside
them: paced threads, rare garbage collection, and retries after a conflict.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from iscp.model.values.errors import Conflict
from iscp.ports.system import Clock, Threads

log = logging.getLogger(__name__)

# --- threads of the operating system ----------------------------------------------------------------------------------


class SystemThread(threading.Thread):
    """Ends with the process."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        super().__init__(target=run, name=name, daemon=True)

    def is_current(self) -> bool:
        return threading.current_thread() is self


class SystemThreads:
    """The port `Threads`: the threads of the operating system."""

    def thread(self, name: str, run: Callable[[], None]) -> SystemThread:
        return SystemThread(name, run)

    def conditions(self, count: int) -> list[threading.Condition]:
        lock = threading.Lock()
        return [threading.Condition(lock) for _ in range(count)]

    def pool(self, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, name)


THREADS = SystemThreads()


# --- paced threads ----------------------------------------------------------------------------------------------------

REST_FACTOR = 20.0
"""After a turn the thread rests for so many times as long as it took: a twentieth of a core at most does its work."""


class PacedThread:
    """A thread that does the same again and again, the more rarely the longer it takes.

    The thread calls `turn` every `every_s` at most, until `close`. What it raises is logged, and the next turn comes in
    its time.
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


# --- garbage collection -----------------------------------------------------------------------------------------------
# Python's default is to go through all objects whenever a quarter has come on top: an owner that loads a hundred
# thousand jobs spent half of its time on that. So it is tuned, in a process that has millions of objects for good, how
# often Python collects garbage in cycles. Objects that are not in a cycle are freed at once as ever.

YOUNG_OBJECTS = 50_000
"""New objects after which Python's collector visits the youngest ones."""

OLDER_AFTER, OLDEST_AFTER = 50, 20
"""Collections of one generation until the next is collected too."""


def collect_rarely() -> None:
    """Collect rarely, for the rest of the process."""
    gc.collect()
    gc.set_threshold(YOUNG_OBJECTS, OLDER_AFTER, OLDEST_AFTER)


@contextmanager
def no_collection() -> Iterator[None]:
    """While objects come that are to stay; they are old at its end, without a visit to each of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        if enabled:
            gc.enable()


# --- retries after a conflict -----------------------------------------------------------------------------------------

T = TypeVar("T")


def retry_conflicts(attempt: Callable[[], T], tries: int) -> T:
    """Do all of it again, and at once, if another was first: what there is by now decides what is to be done.

    Raises the last Conflict, and whatever else `attempt` raises.
    """
    for _ in range(tries - 1):
        try:
            return attempt()
        except Conflict:
            continue
    return attempt()


# --- clocks -----------------------------------------------------------------------------------------------------------

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the one that counts the time for which the machine was suspended: leases run out then too."""


class SystemClock:
    """The port `Clock`: the machine's clocks."""

    def now_s(self) -> float:
        """Return whole microseconds, as tables store them: a time is the same before and after it is written there."""
        return time.time_ns() // 1000 / 1e6

    def monotonic_s(self) -> float:
        return time.clock_gettime(_STEADY)
