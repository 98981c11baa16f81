"""A transaction on one shard of a changefeed, the wait for its lock, and the pool of handles that transactions use."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from types import TracebackType
from typing import Generic, TypeVar, assert_never

import pyarrow as pa

from iscp.changefeed.client.input_rows import OrderBy, Prepared, Rows, Ulids, prepare
from iscp.changefeed.model.lock_queue import (
    Acquired,
    Began,
    CheckConnection,
    Counted,
    CountIncidents,
    FeedLocks,
    GiveUp,
    GiveUpReason,
    HeldLock,
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
from iscp.changefeed.model.ulid import DRAWN_BYTES, NO_ULIDS, UlidPlace, begin
from iscp.changefeed.table.feed_table import FeedTable
from iscp.changefeed.table.file_writer import FeedDraft, FeedRows
from iscp.model.values.errors import FeedIncident, InvalidRequest, InvariantBroken, TemporaryError, TimedOut
from iscp.ports.system import Clock, Failpoints
from iscp.system.child_process import Before, refuse_fork

log = logging.getLogger(__name__)

# --- the pool ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")

IDLE_MAX = 8
"""Idle handles on a feed's table that a process keeps; beyond them a returned handle is dropped."""


class Pool(Generic[T]):
    """Lends things that cost something to open and are used by one thread at a time, and pools them for the next one.
    From any thread.
    """

    def __init__(self, opened: Callable[[], T]) -> None:
        self._opened = opened
        self._idle: list[T] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[T]:
        """Lend one for the `with` block, which nobody else has meanwhile; it is dropped where the block raises.

        Raises InvalidRequest in a fork of a process that has read tables.
        """
        refuse_fork("changefeed", Before.TABLES)
        with self._lock:
            one = self._idle.pop() if self._idle else None
        if one is None:
            one = self._opened()
        yield one
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(one)


# --- the transaction --------------------------------------------------------------------------------------------------

FAILPOINT_TURN = "feed.turn"
"""A writer's turn has come; nothing is written yet."""

WaitForLock = Callable[[FeedTable, int], HeldLock]
"""Waits for a writer's turn in a shard."""


class _Phase(Enum):
    NEW = auto()
    OPEN = auto()
    ENDED = auto()


class _Inside(threading.local):
    """The (feed, shard) in whose transactions this thread is."""

    def __init__(self) -> None:
        self.places: set[tuple[str, int]] = set()


_inside = _Inside()


class Transaction:
    """One commit to one shard of a changefeed, made by a thread of an application.

    A context manager, used once and by one thread: `with feed.transaction(0) as t: t.append(rows)`. The writers of a
    shard wait in a lock queue, so that they do not fail each other; that a commit is right is up to its compare-and-set
    alone.

    The appended rows are committed at the end of the block, and not at all where the block raises. To enter raises
    TimedOut (a long queue), FeedIncident (again and again), Unavailable, StorageError; to leave: Conflict (another
    commit was first: nothing was written; begin again), StorageError and Unavailable (nothing was), OutcomeUnknown.
    """

    def __init__(
        self, tables: Pool[FeedTable], shard: int, wait: WaitForLock | None, clock: Clock, failpoints: Failpoints
    ) -> None:
        self._tables = tables
        self._shard = shard
        self._wait = wait
        self._clock = clock
        self._failpoints = failpoints
        self._phase = _Phase.NEW
        self._thread = 0
        self._failed: BaseException | None = None
        self._first = self._next = NO_ULIDS
        self.committed = False

    @property
    def ulids(self) -> Ulids:
        """Return the ulids of all rows appended so far."""
        return Ulids(self._first, self._next.low - self._first.low)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of what is appended, while the transaction goes on."""
        self._refuse_misuse()
        return self._table.description.row

    def __enter__(self) -> Transaction:
        if self._phase is not _Phase.NEW:
            raise InvalidRequest("the transaction was used before", about="transaction", remedy="Begin another one")
        self._thread = threading.get_ident()
        with ExitStack() as entered:
            self._table = entered.enter_context(self._tables.lend())
            entered.callback(self._table.tidy)  # when the queue has gone on
            entered.enter_context(_alone(self._table.description.feed_id, self._shard))
            if self._wait is not None:
                entered.callback(self._wait(self._table, self._shard).release)
            self._seen = self._table.state(self._shard)
            now_ms = int(self._clock.now_s() * 1000)
            self._first = self._next = begin(self._seen.place, now_ms, secrets.token_bytes(DRAWN_BYTES))
            self._draft: FeedDraft = entered.enter_context(self._table.draft())
            self._failpoints.reach(FAILPOINT_TURN)
            self._entered = entered.pop_all()
        self._phase = _Phase.OPEN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._phase = _Phase.ENDED
        with self._entered:
            if error is None:
                self._commit()

    def append(self, rows: Rows, order_by: OrderBy = (), operation: object = "insert") -> Ulids:
        """Add rows behind those of earlier appends, sorted by `order_by` or as they are; the ulids that they will have.

        `operation`: one text for all rows, or a pa.Array with one for each. Raises InvalidRequest (nothing was added,
        and the transaction goes on), StorageError (then it commits nothing).
        """
        return self.add(prepare(rows, self.schema, order_by, operation))

    def add(self, rows: Prepared) -> Ulids:
        """Append rows that were prepared before, as `append` does."""
        self._refuse_misuse()
        first = self._next
        try:
            self._next = self._write_rows(rows)
        except InvalidRequest:
            raise
        except BaseException as error:
            self._failed = error
            raise
        return Ulids(first, self._next.low - first.low)

    def _write_rows(self, rows: Prepared) -> UlidPlace:
        """Write the rows, and return the place at which the next ones begin."""
        if isinstance(rows, FeedRows):
            return self._draft.add(self._shard, self._next, rows) if len(rows.rows) else self._next
        from iscp.changefeed.spark.bulk_write import write_files  # loads Spark, as the frame has already

        table = self._table
        adds, count = write_files(
            rows.frame, table.uri, table.description, self._shard, self._next, rows.order_by, rows.operation
        )
        return self._draft.adopt(self._shard, self._next, count, adds) if count else self._next

    def _commit(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._next != self._first:
            self._table.commit(self._draft, {self._shard: self._seen})
            self.committed = True

    def _refuse_misuse(self) -> None:
        if self._phase is not _Phase.OPEN:
            raise InvalidRequest(
                "the transaction has not begun" if self._phase is _Phase.NEW else "the transaction has ended",
                about="transaction",
                remedy="Append within `with feed.transaction(shard) as t`",
            )
        if threading.get_ident() != self._thread:
            raise InvalidRequest(
                "the transaction belongs to another thread",
                about="transaction",
                remedy="Append from the thread that began it, or give each thread a transaction of its own",
            )


@contextmanager
def _alone(feed_id: str, shard: int) -> Iterator[None]:
    """Refuses a thread that is in a transaction of the shard already: it would wait for itself."""
    place = (feed_id, shard)
    if place in _inside.places:
        raise InvalidRequest(
            f"this thread is in a transaction of shard {shard} already", about="shard", remedy="Append to that one"
        )
    _inside.places.add(place)
    try:
        yield
    finally:
        _inside.places.discard(place)


# --- the wait for a lock ----------------------------------------------------------------------------------------------
# What `iscp.changefeed.model.lock_queue` wants done is carried out in the thread of the writer that waits.


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
