"""A changefeed, for applications that append to it, read it and clean it up; with the stored cursors of its readers,
and the functions that make a changefeed or open one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, TracebackType
from typing import TypeAlias

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from iscp.changefeed.client.input_rows import OrderBy, Rows, Ulids, prepare
from iscp.changefeed.client.lock_wait import Pool, Transaction, wait_for_lock
from iscp.changefeed.client.reader import FeedReader, Page, Purged, bounds_of
from iscp.changefeed.etcd.locks import EtcdFeedCursors, EtcdFeedLocks
from iscp.changefeed.model.lock_queue import FeedLocks, HeldLock, IncidentReport, QueueLimits
from iscp.changefeed.model.ulid import Cursor, StoredCursor
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import FeedTable, PurgedFiles, purge_files
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import DEFAULT_PREFIX, EtcdSettings, Keys
from iscp.model.settings.config import EtcdConfig
from iscp.model.settings.config_faults import port_of
from iscp.model.values.errors import ConfigurationError, Conflict, FeedIncident, InvalidRequest
from iscp.model.values.untrusted_values import column_names, refuse_missing_parent, require, require_seconds
from iscp.ports.system import Clock, Failpoints
from iscp.storage.files import missing_parent
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

# --- stored cursors ---------------------------------------------------------------------------------------------------


class Cursors:
    """The stored cursors of one feed: how far its readers have come, by name in etcd. Any thread may use them.

    All methods raise Unavailable and OutcomeUnknown too.
    """

    def __init__(self, store: EtcdFeedCursors, feed_id: str, shards: int) -> None:
        self._store = store
        self._feed_id = feed_id
        self._shards = shards

    def get(self, name: str) -> StoredCursor | None:
        """Return the cursor that is stored under `name`, or None. Raises InvalidRequest for an invalid name."""
        return self._store.get(name)

    def list(self) -> tuple[StoredCursor, ...]:
        """Return all stored cursors, by name."""
        return self._store.list()

    def store(self, name: str, cursor: Cursor, expected: StoredCursor | None, *, rewind: bool = False) -> StoredCursor:
        """Put `cursor` in the place of `expected`, which `get` or `store` returned (None: there is none yet).

        Raises Conflict where another one is stored by now, InvalidRequest where the cursor is not of this feed, or
        would go back in a shard without `rewind`.
        """
        _refuse_no_stored(expected)
        require(cursor, Cursor, "cursor", "a Cursor")
        cursor.refuse_foreign(self._feed_id, self._shards)
        if expected is not None and expected.name != name:
            raise InvalidRequest(f"is cursor {expected.name}, not {name}", field="expected", remedy=f"Get {name}")
        return self._store.store(name, cursor, expected, rewind=rewind)

    def delete(self, name: str, expected: StoredCursor | None = None) -> bool:
        """Delete a stored cursor, and return whether there was one.

        Given `expected`, delete that one only, and raise Conflict where another is stored by now.
        """
        _refuse_no_stored(expected)
        return self._store.delete(name, expected)


def _refuse_no_stored(expected: StoredCursor | None) -> None:
    require(expected, (StoredCursor, NoneType), "expected", "what `get` or `store` returned, or None")


# --- the changefeed ---------------------------------------------------------------------------------------------------

INCIDENTS_MAX = 5
"""Locks in a row whose holders are gone, each of which costs a timeout; then the transaction fails with FEED_INCIDENT.
"""

APPEND_TRIES_MAX = 50
"""Attempts of an append without a lock, and of a purge, each after another commit was first; then it fails with a
Conflict.
"""

APPEND_WAIT_S = 0.01
"""Longest first pause between these attempts; it doubles up to APPEND_WAIT_MAX_S."""

APPEND_WAIT_MAX_S = 0.5
"""Longest pause between these attempts."""

PAGE_ROWS = 1_000
"""Rows of a page where no limit is given."""

POLL_S = 0.1
"""Pause between two reads of a reader that follows a changefeed."""


@dataclass(frozen=True, slots=True)
class Etcd:
    """The locks and cursors of a feed in etcd; `cursors` returns those of the feed with an id."""

    locks: FeedLocks
    cursors: Callable[[str], EtcdFeedCursors]
    close: Callable[[], None]


class Changefeed:
    """A changefeed that applications append to, read and clean up. From any thread. A context manager; made by
    `iscp.changefeed.open`.
    """

    def __init__(
        self,
        opened: Callable[[], FeedTable],
        clock: Clock,
        failpoints: Failpoints,
        etcd: Etcd | None,
        limits: QueueLimits,
    ) -> None:
        self._clock = clock
        self._failpoints = failpoints
        self._etcd = etcd
        self._limits = limits
        self._closed = threading.Event()
        # A reader's handle stays as of its last read: writers have others.
        self._tables = Pool(opened)
        self._readings = Pool(lambda: FeedReader(opened()))
        # Arrow loads pandas for its first array, if that is there; it would take up most of a writer's first turn.
        pa.array([0])
        with self._tables.lend() as table:
            self.uri = table.uri
            self._description = table.description

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def feed_id(self) -> str:
        return self._description.feed_id

    @property
    def shards(self) -> int:
        """Return how many shards there are: 0 to `shards` - 1."""
        return self._description.shards

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of what is appended, which readers find in the column `row`; as of when the feed was
        opened.
        """
        return self._description.row

    @property
    def key(self) -> tuple[str, ...]:
        return self._description.key

    def close(self) -> None:
        """Give up all locks, and leave etcd."""
        self._closed.set()
        if self._etcd is not None:
            self._etcd.close()

    def __enter__(self) -> Changefeed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing ---------------------------------------------------------------------------------------------------

    def transaction(self, shard: int) -> Transaction:
        """Return a transaction: one commit to a shard, made of what is appended in a `with` block. Raises
        InvalidRequest.

        The writers wait for each other if etcd was given; if not, only one of several at a time commits.
        """
        self._refuse(shard)
        wait = None if self._etcd is None else self._wait_for_lock
        return Transaction(self._tables, shard, wait, self._clock, self._failpoints)

    def append(self, shard: int, rows: Rows, order_by: OrderBy = (), operation: object = "insert") -> Ulids:
        """Append rows in one transaction, without waiting in the lock queue; repeat it where another commit was first.

        The method suits few writers of a shard. Raises InvalidRequest, Conflict (after all tries: nothing was written),
        StorageError and Unavailable (neither was it then), OutcomeUnknown.
        """
        self._refuse(shard)
        wanted: pa.Schema | None = None
        for attempt in _retrying():
            with attempt, Transaction(self._tables, shard, None, self._clock, self._failpoints) as transaction:
                if transaction.schema != wanted:  # at first, and where the feed was given columns meanwhile
                    wanted = transaction.schema
                    given = prepare(rows, wanted, order_by, operation)
                ulids = transaction.add(given)
        return ulids

    def _wait_for_lock(self, table: FeedTable, shard: int) -> HeldLock:
        """Return the writer's lock. An incident ends another writer's turn, and the queue goes on under another lock at
        once.
        """
        etcd = self._require_etcd("wait for a lock")
        for attempt in Retrying(
            retry=retry_if_exception_type(FeedIncident), stop=stop_after_attempt(INCIDENTS_MAX), reraise=True
        ):
            with attempt:
                return wait_for_lock(
                    etcd.locks, self._clock, self.feed_id, str(shard), lambda: table.state(shard).seq, self._limits
                )
        raise AssertionError("tenacity gives up by raising")

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, cursor: Cursor | str | None = None, limit: int = PAGE_ROWS) -> Page:
        """Return the first `limit` rows behind the cursor, as of now; none where there is nothing new.

        Without a cursor the page begins with the first row that is left. Raises InvalidRequest, CursorBehind (some of
        what comes next was purged), StorageError.
        """
        start = self._usable(cursor)
        with self._readings.lend() as reading:
            return reading.page(start, limit)

    def follow(
        self,
        cursor: Cursor | str | None = None,
        limit: int = PAGE_ROWS,
        poll_s: float = POLL_S,
        stop: threading.Event | None = None,
    ) -> Iterator[Page]:
        """Yield pages with rows, one after the other, as they come; end when `stop` is set, or the feed is closed.

        New commits are probed for every `poll_s` seconds. Raises what `read` does.
        """
        start = self._usable(cursor)
        require(stop, (threading.Event, NoneType), "stop", "a threading.Event")
        require(limit, int, "limit", "a number of rows")
        if not require_seconds(poll_s, "poll_s") > 0:
            raise InvalidRequest(f"is {poll_s}", field="poll_s", remedy="Give more than 0 seconds")
        return self._pages(start, limit, poll_s, stop or threading.Event())

    def first_cursor(self) -> Cursor:
        """The one behind which all is that is left."""
        with self._reading() as reading:
            return reading.first_cursor()

    def last_cursor(self) -> Cursor:
        """Return the cursor behind which all rows come that will be appended from now on."""
        with self._reading() as reading:
            return reading.last_cursor()

    def _pages(self, cursor: Cursor | None, limit: int, poll_s: float, stop: threading.Event) -> Iterator[Page]:
        with self._reading() as reading:
            while not (stop.is_set() or self._closed.is_set()):
                page = reading.page(cursor, limit)
                cursor = page.cursor
                if len(page.rows):
                    yield page
                while len(page.rows) < limit and not reading.probe():
                    if stop.wait(poll_s) or self._closed.is_set():
                        break

    @contextmanager
    def _reading(self) -> Iterator[FeedReader]:
        self._refuse_closed()
        with self._readings.lend() as reading:
            yield reading

    # --- cursors and incidents in etcd, and purges -----------------------------------------------------------------

    @property
    def cursors(self) -> Cursors:
        """Return the stored cursors of readers, by name. Raises ConfigurationError where the feed was opened without
        etcd.
        """
        return Cursors(self._require_etcd("keep cursors").cursors(self.feed_id), self.feed_id, self.shards)

    def incidents(self) -> tuple[IncidentReport, ...]:
        """Return for each shard that has had any how many incidents, and the last one. Raises ConfigurationError
        without etcd.
        """
        return self._require_etcd("count incidents").locks.list_incidents(self.feed_id)

    def purge(
        self, older_than_s: float | None = None, behind_cursors: bool = False, *, dry_run: bool = False
    ) -> Purged:
        """Take away whole files of which all rows are old enough, or read by all whose cursor is stored; or both.

        Nothing goes where no cursor is stored, nor from a shard that one of them has not begun. The files are freed by
        a vacuum. Raises InvalidRequest, ConfigurationError, Conflict, StorageError, Unavailable, OutcomeUnknown.
        """
        self._refuse_closed()
        cursors = [stored.cursor for stored in self.cursors.list()] if behind_cursors else None
        now_ms = int(self._clock.now_s() * 1000)
        bounds = bounds_of(self.shards, now_ms, older_than_s, cursors)
        files, rows = 0, 0
        while True:
            once = self._purge_batch(bounds, now_ms, dry_run)
            files, rows = files + once.files, rows + once.rows
            if dry_run or not once.more:
                return Purged(files, rows, Cursor(self.feed_id, once.purged))

    def _purge_batch(self, bounds: dict[int, str], now_ms: int, dry_run: bool) -> PurgedFiles:
        for attempt in _retrying():
            with attempt, self._tables.lend() as table:
                return purge_files(table, bounds, now_ms, dry_run=dry_run)
        raise AssertionError("tenacity gives up by raising")

    # --- what is refused -------------------------------------------------------------------------------------------

    def _refuse(self, shard: int) -> None:
        self._refuse_closed()
        if not isinstance(shard, int) or isinstance(shard, bool):
            raise InvalidRequest(f"{shard!r} is no shard", about="shard", remedy=f"Use 0 to {self.shards - 1}")
        self._description.refuse_shard(shard)

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise InvalidRequest("the changefeed is closed", about="feed", remedy="Open it again")

    def _usable(self, cursor: Cursor | str | None) -> Cursor | None:
        self._refuse_closed()
        if cursor is None:
            return None
        found = Cursor.of(cursor)
        found.refuse_foreign(self.feed_id, self.shards)
        return found

    def _require_etcd(self, what: str) -> Etcd:
        self._refuse_closed()
        if self._etcd is None:
            raise ConfigurationError(
                f"the changefeed was opened without etcd, and cannot {what}",
                about="etcd",
                remedy='Open it with etcd="HOST:PORT"',
            )
        return self._etcd


def _retrying() -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(Conflict),
        stop=stop_after_attempt(APPEND_TRIES_MAX),
        wait=wait_random_exponential(multiplier=APPEND_WAIT_S, max=APPEND_WAIT_MAX_S),
        reraise=True,
    )


# --- making and opening -----------------------------------------------------------------------------------------------
# A changefeed that is there is put together with the machine's clock and with etcd.

EtcdAddress: TypeAlias = str | Sequence[str] | EtcdSettings | EtcdConfig
"""HOST:PORT, several of them with commas or as a list, or settings with TLS and a user."""

_LIMITS = QueueLimits()


def create(
    uri: str | Path,
    schema: pa.Schema,
    *,
    shards: int = 1,
    key: Sequence[str] = (),
) -> None:
    """Make a new changefeed, a Delta table, for rows with the columns of `schema`; the number of shards stays.

    `key`: the columns that say what a row is about, in a column of its own for readers. The directory that is to hold
    the feed has to be there. Raises InvalidRequest (nothing was written then), StorageError.
    """
    place, names = _path(uri), column_names(key, "key")
    if not isinstance(schema, pa.Schema):
        raise InvalidRequest(f"is a {type(schema).__name__}", field="schema", remedy="Give a pa.Schema")
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise InvalidRequest("names a column twice, but for capitals", field="schema", remedy="Give each its own name")
    refuse_missing_parent(missing_parent(place), "uri")
    create_feed_table(place, schema, shards, names)


def open_feed(
    uri: str | Path,
    etcd: EtcdAddress | None = None,
    *,
    etcd_prefix: str = DEFAULT_PREFIX,
    timeout_s: float = _LIMITS.timeout_s,
    wait_max_s: float = _LIMITS.wait_max_s,
    name: str = "",
) -> Changefeed:
    """The changefeed that is there.

    Without `etcd` there are no lock queues, no stored cursors and no incidents. `timeout_s`: much longer than
    a transaction takes; an abandoned one costs the others that. `wait_max_s`: the longest wait in a queue that moves.
    `name`: the name of this writer, in a lock queue or an incident (otherwise host and process).
    Raises TableNotFound, ConfigurationError, InvalidRequest, StorageError.
    """
    place, clock, limits = _path(uri), SystemClock(), _limits(timeout_s, wait_max_s)
    require(name, str, "name", "a text")
    require(etcd_prefix, str, "etcd_prefix", "a text")
    owner = name or f"{socket.gethostname()}:{os.getpid()}"
    at = None if etcd is None else connect_etcd(settings_of(etcd), Keys(etcd_prefix), clock, owner)
    try:
        return compose(place, clock, EnvironmentFailpoints(), at, limits)
    except BaseException:
        if at is not None:
            at.close()
        raise


def compose(uri: str, clock: Clock, failpoints: Failpoints, etcd: Etcd | None, limits: QueueLimits) -> Changefeed:
    return Changefeed(lambda: FeedTable(uri, clock, failpoints), clock, failpoints, etcd, limits)


def connect_etcd(settings: EtcdSettings, keys: Keys, clock: Clock, name: str) -> Etcd:
    """Return the locks and cursors in etcd, to which no request is sent yet."""
    client = EtcdClient(settings, clock)
    locks = EtcdFeedLocks(client, keys, clock, name=name)

    def close() -> None:
        locks.close()
        client.close()

    return Etcd(locks, lambda feed_id: EtcdFeedCursors(client, keys, clock, feed_id), close)


def _path(uri: str | Path) -> str:
    require(uri, (str, Path), "uri", "a path or a URI")
    if not (path := os.fspath(uri)):
        raise InvalidRequest("is empty", field="uri", remedy="Give a path or a URI")
    return path


def _limits(timeout_s: float, wait_max_s: float) -> QueueLimits:
    for field, span_s in (("timeout_s", timeout_s), ("wait_max_s", wait_max_s)):
        if not require_seconds(span_s, field) > 0:
            raise InvalidRequest(f"is {span_s}", field=field, remedy="Give more than 0 seconds")
    return QueueLimits(timeout_s, wait_max_s)


def settings_of(etcd: EtcdAddress) -> EtcdSettings:
    """Raises InvalidRequest where a member is not HOST:PORT."""
    if isinstance(etcd, EtcdSettings):
        return etcd
    if isinstance(etcd, EtcdConfig):
        return EtcdSettings.of(etcd)
    require(etcd, Sequence, "etcd", "HOST:PORT, a list of such, or EtcdSettings")
    endpoints = etcd.split(",") if isinstance(etcd, str) else list(etcd)
    for endpoint in endpoints:
        require(endpoint, str, "etcd", "HOST:PORT, a list of such, or EtcdSettings")
        if port_of(endpoint.removeprefix("http://").removeprefix("https://")) is None:
            raise InvalidRequest(f"{endpoint!r} is not an address", about="etcd", remedy="Write HOST:PORT")
    if not endpoints:
        raise InvalidRequest("names no member", field="etcd", remedy="Write HOST:PORT")
    return EtcdSettings(tuple(endpoints))
