"""Bounds the reads that are carried out at a time for users, of all and of each account, and how long each may take."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from iscp.core.values.errors import TimedOut, Unavailable
from iscp.ports.system import Clock

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a caller who waits for a turn is still there."""


class TurnBounds(NamedTuple):
    """The reads that there may be at a time, of all accounts and of one, and how long one may take with its wait."""

    node_max: int
    account_max: int
    timeout_s: float


class AccountTurns:
    """Carries reads out on threads of its own, so that one which hangs blocks no other call.

    `threads` is how the names of its threads begin, `what` what errors call a read, and `remedy` what helps where there
    are too many. Invariant: at most `node_max` reads are under way, and `account_max` of one account. A read whose
    caller has given it up keeps its turn until it ends.
    """

    def __init__(self, bounds: TurnBounds, clock: Clock, threads: str, what: str, remedy: str) -> None:
        self._bounds = bounds
        self._clock = clock
        self._what = what
        self._remedy = remedy
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self._closed = False
        self._pool = ThreadPoolExecutor(bounds.node_max, threads)

    def run(self, account: str, read: Callable[[], T], alive: Callable[[], bool]) -> T:
        """Return what `read` returns, once it is the account's turn.

        Raises what it raises; TimedOut where its turn and itself take longer than `timeout_s`; Unavailable where the
        caller is gone, or the node stops.
        """
        until_s = self._clock.monotonic_s() + self._bounds.timeout_s
        self._take_turn(account, until_s, alive)
        try:
            future = self._pool.submit(read)
        except RuntimeError as error:  # the pool was closed meanwhile
            self._end_turn(account)
            raise self._given_up() from error
        future.add_done_callback(lambda _: self._end_turn(account))
        return self._result(future, until_s, alive)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take_turn(self, account: str, until_s: float, alive: Callable[[], bool]) -> None:
        with self._changed:
            while not self._is_turn_of(account):
                self._wait_until(until_s, alive)
            if self._closed:
                raise self._given_up()
            self._running[account] += 1

    def _is_turn_of(self, account: str) -> bool:
        if self._closed:
            return True
        bounds = self._bounds
        return self._running.total() < bounds.node_max and self._running[account] < bounds.account_max

    def _wait_until(self, until_s: float, alive: Callable[[], bool]) -> None:
        """Wait, under the lock, for a turn to end. Raises TimedOut, and Unavailable where the caller is gone."""
        if not alive():
            raise self._given_up()
        if (left_s := until_s - self._clock.monotonic_s()) <= 0:
            raise self._late("did not get its turn")
        self._changed.wait(min(left_s, ALIVE_LOOK_S))

    def _end_turn(self, account: str) -> None:
        with self._changed:
            self._running[account] -= 1
            self._running = +self._running  # accounts without a read leave no entry
            self._changed.notify_all()

    def _result(self, future: Future[T], until_s: float, alive: Callable[[], bool]) -> T:
        while True:
            left_s = until_s - self._clock.monotonic_s()
            try:
                return future.result(max(0.0, min(left_s, ALIVE_LOOK_S)))
            except CancelledError:  # the pool was closed before it began
                raise self._given_up() from None
            except TimeoutError:
                if future.done():  # it has just ended, or the error is its own
                    return future.result()
                if left_s <= 0:
                    raise self._late("took too long") from None
                if not alive():
                    raise self._given_up() from None

    def _late(self, what: str) -> TimedOut:
        return TimedOut(f"the {self._what} {what} within {self._bounds.timeout_s:.3g} s", remedy=self._remedy)

    def _given_up(self) -> Unavailable:
        return Unavailable(f"the {self._what} was given up: the node stops, or the caller is gone")
