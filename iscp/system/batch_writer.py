"""A thread that writes entries in batches, from a queue that nobody waits for.

Appends a batch of which some entries can be refused for what they are, without holding up their neighbours.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.ports.system import Clock, Threads
from iscp.system.inbox import Timer
from iscp.system.threads import THREADS

log = logging.getLogger(__name__)

T = TypeVar("T")


def append_in_halves(
    batch: Sequence[T], append: Callable[[Sequence[T]], object], refuse: Callable[[T, InvalidRequest], object]
) -> None:
    """Append all but the entries that no table can hold (InvalidRequest), each of which goes to `refuse`, in order.

    Halves of halves, so that the neighbours are written in few commits. Raises what else `append` does.
    """
    try:
        append(batch)
    except InvalidRequest as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            append_in_halves(batch[:middle], append, refuse)
            append_in_halves(batch[middle:], append, refuse)
            return
        refuse(batch[0], error)


E = TypeVar("E")

DELAY_S = 1.0
"""Seconds that entries of the audit, or of the history, are gathered before they are written together; a node that is
killed loses these.
"""

STOPS = "the node stops"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds in counts, pauses in seconds. The pause after a failure is `retry_s`, and doubles up to `retry_max_s`.

    `weight_max` bounds what `Outlet.weigh` says of all entries together; None: there is no bound.
    """

    batch_max: int
    retry_s: float
    retry_max_s: float
    close_s: float
    queue_max: int | None = None
    weight_max: int | None = None


@dataclass(frozen=True, slots=True)
class Outlet(Generic[E]):
    """An `Outlet` decides what becomes of the entries.

    `append` raises InvalidRequest if it cannot store one of them as it is: each such entry goes to `refuse`.
    `on_failure` takes any other IscpError, and returns the least pause (seconds). `lose` takes entries that will never
    be written, and why; `doubt` takes those that are still being written as the writer closes.
    """

    append: Callable[[Sequence[E]], object]
    refuse: Callable[[E, InvalidRequest], None]
    on_failure: Callable[[IscpError], float]
    lose: Callable[[Sequence[E], str], None] = lambda entries, why: None
    doubt: Callable[[Sequence[E], str], None] = lambda entries, why: None
    weigh: Callable[[E], int] = lambda entry: 0


@dataclass(frozen=True, slots=True)
class Chore:
    """Further work of the same thread, every `every_s`. `run` raises IscpError."""

    run: Callable[[], None]
    every_s: float
    clock: Clock


class BatchWriter(Generic[E]):
    """Gathers entries for about a second, and appends them in order. While `append` fails they wait."""

    def __init__(
        self,
        name: str,
        outlet: Outlet[E],
        limits: BatchLimits,
        chore: Chore | None = None,
        threads: Threads = THREADS,
    ) -> None:
        """`name` says of what the entries are, in the thread's name and in the log."""
        self._name = name
        self._outlet = outlet
        self._limits = limits
        self._chore = chore
        self._chore_timer = Timer(chore.every_s, chore.clock.monotonic_s()) if chore else None
        # The first `_taken` of the queue are being written.
        self._queue: deque[E] = deque()
        self._taken = self._weight = 0
        # How many entries were ever added, and how many of these have left the queue.
        self._added = self._done = 0
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._delayed = False
        self._pause_s = self._retry_s = limits.retry_s
        self._closing = self._closed = False
        (self._wake,) = threads.conditions(1)
        self._thread = threads.thread(f"iscp-{name}", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what waits, once, and end; what cannot be written is lost then."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._limits.close_s)
        with self._wake:
            self._closed = True
            uncertain, left = list(islice(self._queue, self._taken)), list(islice(self._queue, self._taken, None))
            self._queue = deque(uncertain)
        # If the storage answers before the process ends, these are written, or lost.
        self._outlet.doubt(uncertain, f"{STOPS} while it is being written")
        self._outlet.lose(left, STOPS)

    def add(self, entries: Sequence[E], on_done: Callable[[], None] | None = None) -> None:
        """Take entries without waiting; those for which there is no room are lost.

        `on_done` is called, from any thread, once these and all before them have left the queue.
        """
        with self._wake:
            ended = self._closed or (self._closing and not self._thread.is_alive())
            refused = [entry for entry in entries if ended or not self._admit(entry)]
            if on_done is not None:
                self._waiters.append((self._added, on_done))
            self._wake.notify_all()
        self._outlet.lose(refused, STOPS if ended else "the queue is full")
        self._call_waiters()

    def waiting(self) -> list[E]:
        """Return the entries that have not left the queue, in order."""
        with self._wake:
            return list(self._queue)

    def waiting_count(self) -> int:
        with self._wake:
            return len(self._queue)

    def delay(self, entries_max: int) -> int:
        """Let nobody wait until the next batch is written: call every `on_done`, and drop all but the newest entries.

        Return how many were dropped. Called from `on_failure` alone.
        """
        with self._wake:
            self._delayed = True
            dropped = max(0, len(self._queue) - entries_max)
            for _ in range(dropped):
                self._pop()
        self._call_waiters()
        return dropped

    def turn(self) -> bool:
        """Write one batch, and do the chore if it is due; return False if one of them failed."""
        with self._wake:
            self._taken = min(len(self._queue), self._limits.batch_max)
            batch = list(islice(self._queue, self._taken))
        try:
            if batch:
                append_in_halves(batch, self._append, self._refuse)
            if self._chore and self._chore_timer and self._chore_timer.fires(self._chore.clock.monotonic_s()):
                self._chore.run()
        except IscpError as error:
            self._back_off(self._outlet.on_failure(error))
            return False
        finally:
            self._put_back()
        self._retry_s = self._limits.retry_s
        return True

    def _admit(self, entry: E) -> bool:
        weight, limits = self._outlet.weigh(entry), self._limits
        if limits.queue_max is not None and len(self._queue) >= limits.queue_max:
            return False
        if limits.weight_max is not None and self._weight + weight > limits.weight_max:
            return False
        self._queue.append(entry)
        self._weight += weight
        self._added += 1
        return True

    def _append(self, batch: Sequence[E]) -> None:
        self._outlet.append(batch)
        self._delayed = False
        self._forget(len(batch))

    def _refuse(self, entry: E, error: InvalidRequest) -> None:
        self._outlet.refuse(entry, error)
        self._forget(1)

    def _forget(self, count: int) -> None:
        """Forget entries only now: until they are written, `waiting` has to show them."""
        with self._wake:
            self._taken -= count
            for _ in range(count):
                self._pop()
        self._call_waiters()

    def _pop(self) -> None:
        self._weight -= self._outlet.weigh(self._queue.popleft())
        self._done += 1

    def _put_back(self) -> None:
        """Put back what could not be written, before all others; once the writer has closed nobody writes it."""
        with self._wake:
            self._taken, left = 0, list(self._queue) if self._closed else []
            if self._closed:
                self._queue.clear()
        self._outlet.lose(left, STOPS)

    def _back_off(self, least_s: float = 0.0) -> None:
        self._pause_s = max(self._retry_s, least_s)
        self._retry_s = min(self._limits.retry_max_s, 2 * self._retry_s)

    def _call_waiters(self) -> None:
        with self._wake:
            done, called = self._added if self._delayed else self._done, []
            while self._waiters and self._waiters[0][0] <= done:
                called.append(self._waiters.popleft()[1])
        # Without the lock: what it leads to may come back here.
        for on_done in called:
            on_done()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._queue and not self._closing:
                    self._wake.wait(self._until_chore_s())
                # Gather what else comes; only closing cuts this short.
                self._wake.wait_for(lambda: self._closing, DELAY_S)
                closing = self._closing
            try:
                written = self.turn()
            except Exception:
                log.exception(f"{self._name}.broken")
                self._back_off()
                written = False
            with self._wake:
                if closing and (not written or not self._queue):
                    return
                if not written:
                    self._wake.wait_for(lambda: self._closing, self._pause_s)

    def _until_chore_s(self) -> float | None:
        if self._chore is None or self._chore_timer is None:
            return None
        return max(DELAY_S, self._chore_timer.due_s - self._chore.clock.monotonic_s())
