"""The loop around a machine: one thread takes events in turn, and wakes when the machine is due.

The module also has what loops use: reads of a loop's state, a notifier, a timer, and the subscriptions to what a
machine has decided.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from iscp.model.values.errors import InvariantBroken, QueueFull
from iscp.ports.system import Clock, Threads
from iscp.system.threads import THREADS

# --- the inbox --------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)
E = TypeVar("E")

T = TypeVar("T")

EVENTS_MAX = 100_000
"""Events from others that wait for a machine; one more waits for PUT_WAIT_S. Events that must not get lost are always
taken.
"""

PUT_WAIT_S = 10.0
"""Seconds that a sender waits for room in an inbox; then it gets QueueFull."""

JOIN_S = 10.0
"""Seconds that the end waits for the thread of an inbox; then it is left (`inbox.left`)."""


class Gathered(Generic[T]):
    """News that are gathered for one event that has yet to be taken: newer news join what waits.

    An inbox that does not keep up therefore has one such event, however often it is posted.
    """

    def __init__(self, join: Callable[[T, T], T]) -> None:
        """`join`: what came before, with what comes now."""
        self._join = join
        self._lock = threading.Lock()
        self._waiting: list[T] = []

    def add(self, news: T) -> bool:
        """Add news, and return whether nothing waited: then the event has to be posted."""
        with self._lock:
            if first := not self._waiting:
                self._waiting.append(news)
            else:
                self._waiting[0] = self._join(self._waiting[0], news)
            return first

    def take(self) -> T:
        """Return all news since the event was posted."""
        with self._lock:
            return self._waiting.pop()


@dataclass(frozen=True, slots=True)
class Turns(Generic[E]):
    """The `Turns` of an inbox's thread: it takes an event, and ticks when `next_due_s` has come (None: nothing is
    due).
    """

    take: Callable[[E], None]
    tick: Callable[[], None]
    next_due_s: Callable[[], float | None]


@dataclass(frozen=True, slots=True)
class InboxLimits:
    events_max: int = EVENTS_MAX
    put_wait_s: float = PUT_WAIT_S


class Inbox(Generic[E]):
    """An inbox takes events from many threads, one at a time, and ticks when something is due.

    Both run on the one thread of the inbox, so what is behind them needs no lock. An exception there is a broken
    machine: `on_broken` is called, and no further event is taken.

    Events from elsewhere (`put`) are bounded and may be refused: the sender repeats them. The process's own events
    (`post`) are given once, and a full inbox must not lose them: they are never refused, and their givers bound them.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        turns: Turns[E],
        on_broken: Callable[[Exception], None],
        limits: InboxLimits = InboxLimits(),
        threads: Threads = THREADS,
    ) -> None:
        self._name = name
        self._clock = clock
        self._turns = turns
        self._on_broken = on_broken
        self._limits = limits
        self._events: deque[E] = deque()
        self._closing = False
        # On one lock: the inbox's thread waits for `_arrived`, and who found it full for `_room`.
        self._arrived, self._room = threads.conditions(2)
        self._thread = threads.thread(name, self._run)

    def start(self) -> None:
        self._thread.start()

    def put(self, event: E) -> None:
        """Raises QueueFull if the thread does not keep up for a long time; its own thread never waits."""
        with self._room:
            if not self._own() and not self._room.wait_for(self._has_room, self._limits.put_wait_s):
                raise QueueFull(f"the inbox {self._name} does not keep up", remedy="Try again later")
            self._append(event)

    def post(self, event: E) -> None:
        """Submit what must not get lost, without waiting."""
        with self._arrived:
            self._append(event)

    def close(self) -> None:
        """Take what is there already, then end; what broke or hangs is left as it is, after a bounded time."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        if self._thread.is_alive() and not self._own():
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                log.warning("inbox.left", extra={"inbox": self._name})

    def turn(self) -> bool:
        """Take one turn of the thread: tick if one is due, and take an event if there is one.

        Return False if there was no event to take.
        """
        due_s = self._turns.next_due_s()
        if due_s is not None and due_s <= self._clock.monotonic_s():
            self._turns.tick()  # before the next event: a stream of them must not put it off
        return self._take_next()

    def _take_next(self) -> bool:
        with self._room:
            if not self._events:
                return False
            event = self._events.popleft()
            self._room.notify()
        # Without the lock: what it leads to may be posted here again.
        self._turns.take(event)
        return True

    def _append(self, event: E) -> None:
        if not self._closing:
            self._events.append(event)
            self._arrived.notify()

    def _has_room(self) -> bool:
        return len(self._events) < self._limits.events_max

    def _own(self) -> bool:
        return self._thread.is_current()

    def _run(self) -> None:
        try:
            while self.turn() or self._wait():
                self._take_next()  # what woke it goes before what became due meanwhile
        except Exception as error:
            log.exception("inbox.broken", extra={"inbox": self._name})
            self._on_broken(error)

    def _wait(self) -> bool:
        """Sleep until there is an event or a tick is due; False: it was closed, and all is taken."""
        due_s = self._turns.next_due_s()
        wait_s = None if due_s is None else max(0.0, due_s - self._clock.monotonic_s())
        with self._arrived:
            self._arrived.wait_for(lambda: self._events or self._closing, wait_s)
            return bool(self._events) or not self._closing


# --- reads of a loop's state ------------------------------------------------------------------------------------------
# The loop's own thread makes the read, while the caller waits.


def query_loop(
    put: Callable[[Callable[[], None]], None], read: Callable[[], T], timeout_s: float, threads: Threads
) -> T:
    """Return what `read` finds, on the thread of the loop to which `put` gives it.

    Raises what either of them raises, and TimeoutError if there is no answer by then: `read` may still be called.
    """
    answer: Future[T] = Future()
    (answered,) = threads.conditions(1)

    def answer_caller() -> None:
        with answered:
            try:
                answer.set_result(read())
            except Exception as error:  # noqa: BLE001  (it belongs to the caller)
                answer.set_exception(error)
            answered.notify_all()

    put(answer_caller)
    with answered:
        if not answered.wait_for(answer.done, timeout_s):
            raise TimeoutError
    return answer.result()


# --- notifiers and timers ---------------------------------------------------------------------------------------------


class Notifier:
    """The one primitive that wakes a loop (after TiDB MVS's Notifier).

    Many may call `notify`, one waits; calls before the waiter comes count as one, and none is missed.
    """

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


# --- effects ----------------------------------------------------------------------------------------------------------

S = TypeVar("S")


class Subscriptions:
    """The register of who carries out what a machine has decided.

    Each effect is given to all that have subscribed to its type, in the order in which they have. All subscribe before
    the loop that publishes is started; from then on it is only read.
    """

    def __init__(self) -> None:
        self._takers: dict[type, list[Callable[[Any], None]]] = {}

    def subscribe(self, take: Callable[[S], None], *kinds: type[S]) -> None:
        """Subscribe `take`, which is called on the thread that publishes; what it raises is raised there."""
        for kind in kinds:
            self._takers.setdefault(kind, []).append(take)

    def publish(self, effect: object) -> None:
        """Raises InvariantBroken where nobody has subscribed: what was decided would be done by nobody."""
        takers = self._takers.get(type(effect))
        if takers is None:
            raise InvariantBroken(f"nobody has subscribed to {type(effect).__name__}")
        for take in takers:
            take(effect)
