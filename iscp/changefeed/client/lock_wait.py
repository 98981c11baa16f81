"""Carries out what `iscp.changefeed.model.lock_queue` wants done, in the thread of the writer that waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import assert_never

from iscp.changefeed.model.feed_ports import FeedLocks, HeldLock
from iscp.changefeed.model.lock_queue import (
    Acquired,
    Began,
    CheckConnection,
    Counted,
    CountIncidents,
    GiveUp,
    GiveUpReason,
    LockTimedOut,
    Proceed,
    QueueEffect,
    QueueEvent,
    QueueLimits,
    RaiseIncidents,
    Sampled,
    SampleState,
    TryLock,
    Waiting,
)
from iscp.core.values.errors import FeedIncident, InvariantBroken, TemporaryError, TimedOut
from iscp.ports.system import Clock

log = logging.getLogger(__name__)


def wait_for_lock(
    locks: FeedLocks,
    clock: Clock,
    feed: str,
    shard: str,
    sample: Callable[[], Hashable],
    limits: QueueLimits | None = None,
) -> HeldLock:
    """Wait for the writer's turn; to be released after the commit.

    `sample` reads what the shard's last commit has left, such as its seq. Raises FeedIncident where the holder was
    found to be gone (the next attempt goes on without it), TimedOut after `limits.wait_max_s` in a queue that moves,
    and what `locks` and `sample` raise.
    """
    queue = _Queue(locks, feed, shard, sample)
    waiting = Waiting(limits or QueueLimits())
    event: QueueEvent | None = Began()
    try:
        while event is not None:
            for effect in waiting.step(event, clock.monotonic_s()):
                event = queue.carry_out(effect)
        return queue.lock
    except BaseException:
        queue.leave()
        raise


class _Queue:
    """One attempt's view of the world."""

    def __init__(self, locks: FeedLocks, feed: str, shard: str, sample: Callable[[], Hashable]) -> None:
        self._locks, self._feed, self._shard, self._sample = locks, feed, shard, sample
        self._lock: HeldLock | None = None

    @property
    def lock(self) -> HeldLock:
        if self._lock is None:
            raise InvariantBroken("a writer proceeds without its lock")
        return self._lock

    def leave(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def carry_out(self, effect: QueueEffect) -> QueueEvent | None:
        """Return the answer, if the effect has one; raises what ends the attempt."""
        match effect:
            case CountIncidents():
                return Counted(self._locks.incidents(self._feed, self._shard))
            case TryLock(incidents, wait_s):
                self._lock = self._locks.try_lock(self._feed, self._shard, incidents, wait_s)
                return LockTimedOut() if self._lock is None else Acquired()
            case SampleState():
                return Sampled(self._sample())
            case RaiseIncidents(seen):
                now = self._locks.raise_incidents(self._feed, self._shard, seen)
                extra = {"feed": self._feed, "shard": self._shard, "seen": seen.count, "incidents": now.count}
                log.warning("changefeed.incident", extra=extra)
                return None
            case CheckConnection():
                self._locks.check()
                return None
            case Proceed():
                return None
            case GiveUp():
                raise self._error(effect)
            case _:
                assert_never(effect)

    def _error(self, effect: GiveUp) -> TemporaryError:
        where = f"shard {self._shard} of feed {self._feed}"
        match effect.reason:
            case GiveUpReason.INCIDENT:
                return FeedIncident(
                    f"{where}: waited for {effect.waited_s:.2f} s, and nothing moved: the lock's holder is given up",
                    remedy="Try again at once: the queue goes on under another lock",
                )
            case GiveUpReason.LONG_LINE:
                return TimedOut(
                    f"{where}: this writer has waited for {effect.waited_s:.1f} s in a lock queue that moves",
                    remedy="Try again later, with fewer writers or larger transactions",
                )
            case _:
                assert_never(effect.reason)
