"""One commit to one shard of a changefeed, made by a thread of an application.

The writers of a shard wait in a lock queue, so that they do not fail each other; that a commit is right is up to its
compare-and-set alone.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from types import TracebackType

import pyarrow as pa

from iscp.changefeed.client.input_rows import OrderBy, Prepared, Rows, prepare
from iscp.changefeed.client.pool import Pool
from iscp.changefeed.client.ulid_ranges import Ulids
from iscp.changefeed.model.feed_ports import HeldLock
from iscp.changefeed.model.ulid import DRAWN_BYTES, NO_ULIDS, UlidPlace, begin
from iscp.changefeed.table.feed_table import FeedTable
from iscp.changefeed.table.file_writer import FeedDraft, FeedRows
from iscp.core.values.errors import InvalidRequest
from iscp.ports.system import Clock, Failpoints

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
    """A context manager, used once and by one thread: `with feed.transaction(0) as t: t.append(rows)`.

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
