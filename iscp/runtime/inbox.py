"""The loop around a machine: one thread takes events in turn, and wakes when the machine is due."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from iscp.core.errors import QueueFull
from iscp.ports.system import Clock

log = logging.getLogger(__name__)
E = TypeVar("E")

EVENTS_MAX = 100_000
PUT_WAIT_S = 10.0
JOIN_S = 10.0


class Inbox(Generic[E]):
    """Feeds `take` with events from many threads, one at a time, and calls `tick` when `next_due_s` has come.

    Both run on the one thread of the inbox, so what stands behind them needs no lock. An exception there is a
    broken machine: `on_broken` is told, and no further event is taken.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        take: Callable[[E], None],
        tick: Callable[[], None],
        next_due_s: Callable[[], float | None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._clock = clock
        self._take = take
        self._tick = tick
        self._next_due_s = next_due_s
        self._on_broken = on_broken
        self._events: queue.Queue[E | None] = queue.Queue(EVENTS_MAX)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, event: E) -> None:
        """Raises QueueFull if the thread does not keep up for a long time; its own thread never waits."""
        try:
            self._events.put(event, block=not self._own(), timeout=PUT_WAIT_S)
        except queue.Full as error:
            raise QueueFull(f"the inbox {self._name} does not keep up") from error

    def close(self) -> None:
        """Take what is there already, then end; what broke or hangs is left as it is, after a bounded time."""
        if self._thread.ident is not None and not self._thread.is_alive():
            return
        try:
            self._events.put(None, block=not self._own(), timeout=JOIN_S)
        except queue.Full:
            log.warning("inbox.left", extra={"inbox": self._name})
            return
        if self._thread.is_alive() and not self._own():
            self._thread.join(JOIN_S)

    def _own(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            while True:
                due_s = self._next_due_s()
                wait_s = None if due_s is None else max(0.0, due_s - self._clock.monotonic_s())
                if wait_s == 0:
                    self._tick()  # before the next event: a stream of them must not put it off
                try:
                    event = self._events.get(timeout=wait_s) if wait_s != 0 else self._events.get_nowait()
                except queue.Empty:
                    continue
                if event is None:
                    return
                self._take(event)
        except Exception as error:
            log.exception("inbox.broken", extra={"inbox": self._name})
            self._on_broken(error)
