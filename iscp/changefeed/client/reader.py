"""Pages of a changefeed for one reader; which old rows may be purged; and how far stored cursors lag."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from iscp.changefeed.etcd.locks import EtcdFeedCursors
from iscp.changefeed.model.ulid import ULID_BYTES, Cursor, parse_ulid, slowest, ulid_text, ulid_time_ms
from iscp.changefeed.table.feed_table import FeedTable, read_purged
from iscp.changefeed.table.page_reader import FeedPage, PageReader
from iscp.delta.log.table_opening import bring_up, open_delta
from iscp.delta.source.change_source import DeltaProbe
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import InvalidRequest, StorageError, TableNotFound
from iscp.model.values.untrusted_values import require
from iscp.ports.system import Clock, Failpoints
from iscp.storage.delta_errors import delta_faults
from iscp.storage.locations import place
from iscp.system.recent_values import RecentValues

# --- pages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """`rows` in the order of their ulids, with all columns of the feed's table; `cursor`: to go on from."""

    rows: pa.Table
    cursor: Cursor


class FeedReader:
    """One reader's hold on the table; not to be used from several threads at once.

    A page has the rows behind a cursor, as of now; a probe that finds nothing new costs two `stat`s. `bytes_max` and
    `rows_bytes_max` are those of PageReader.
    """

    def __init__(self, table: FeedTable, bytes_max: int | None = None, rows_bytes_max: int | None = None) -> None:
        self._table = table
        self._pages = PageReader(table.uri, bytes_max, rows_bytes_max)
        self._probe = DeltaProbe()
        self._probed: ProbeState | None = None
        with delta_faults(f"open the feed {table.uri}"):
            self._delta = open_delta(place(table.uri))
        self._purged: dict[int, str] = {}

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of rows are held for the next page."""
        return self._pages.held_bytes

    def probe(self) -> bool:
        """Return whether there may be something new since the last page. Raises StorageError, TableNotFound."""
        return self._probed is None or self._probe.probe(self._table.uri, self._probed) != self._probed

    def first_cursor(self) -> Cursor:
        """The one behind which all is that is left."""
        self._bring_up()
        return Cursor(self._table.description.feed_id, self._purged)

    def last_cursor(self) -> Cursor:
        """Return the cursor behind which all rows come that will be appended."""
        return Cursor(self._table.description.feed_id, self._table.last_ulids())

    def page(self, cursor: Cursor | None, limit: int) -> Page:
        """Return the next rows, which may be none. Raises CursorBehind, InvalidRequest, StorageError,
        PermanentError.
        """
        self._bring_up()
        try:
            page = self._page(cursor, limit)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            # What a purge or a compaction took away has been vacuumed since the table was read.
            self._probed = None
            self._bring_up()
            page = self._page(cursor, limit)
        return Page(page.rows, Cursor(self._table.description.feed_id, page.cursor))

    def _page(self, cursor: Cursor | None, limit: int) -> FeedPage:
        if cursor is not None:
            cursor.refuse_behind(self._purged)
        return self._pages.page(self._delta, self._purged if cursor is None else cursor, limit)

    def _bring_up(self) -> None:
        uri, before = self._table.uri, self._probed
        probed = self._probe.probe(uri, before) if before else self._probe.first_probe(uri)
        if probed == before:
            return
        with delta_faults(f"read the feed {uri}"):
            bring_up(self._delta)
        # After the files: what was purged of those is known then.
        self._purged = read_purged(self._table)
        # Before the files: what came after it is seen by the next probe.
        self._probed = probed


# --- purges -----------------------------------------------------------------------------------------------------------
# Which old rows of a changefeed may be deleted.

_DRAWN_BITS = 80


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge's outcome: the number of files and rows that went, and the cursor behind which all the rest is."""

    files: int
    rows: int
    first_cursor: Cursor


def bounds_of(shards: int, now_ms: int, older_than_s: float | None, cursors: Iterable[Cursor] | None) -> dict[int, str]:
    """Return each shard's last ulid that may go, as text; without the shards of which all has to stay.

    A bound is older than `older_than_s` if that is given, and no one of `cursors` if these are given is before it.
    Raises InvalidRequest.
    """
    if older_than_s is None and cursors is None:
        raise InvalidRequest(
            "says neither how old nor how far read", field="purge", remedy="Give older_than_s, behind_cursors or both"
        )
    bounds = None if cursors is None else slowest(cursors)
    if older_than_s is None:
        return bounds or {}
    require(older_than_s, (int, float), "older_than_s", "a number of seconds")
    if not 0 <= older_than_s < math.inf:
        raise InvalidRequest(f"is {older_than_s}", field="older_than_s", remedy="Give 0 or more seconds")
    before_ms = max(0, now_ms - int(min(older_than_s, now_ms) * 1000))
    if not before_ms:
        return {}
    aged = ulid_text(((before_ms << _DRAWN_BITS) - 1).to_bytes(ULID_BYTES, "big"))
    if bounds is None:
        return dict.fromkeys(range(shards), aged)
    return {shard: min(ulid, aged) for shard, ulid in bounds.items()}


# --- lags of cursors --------------------------------------------------------------------------------------------------

FEEDS_OPEN_MAX = 200
"""Feeds whose tables stay open; for one more, the one that was unused for longest is opened again the next time."""

CURSORS_MAX = 1_000
"""Cursors of one feed whose lags are read, the first by name; there are no lags of the others."""


class CursorLags:
    """Reads the lags of any feed in one cluster's etcd, for whoever watches many feeds. Safe for threads.

    A lag says how far a stored cursor is behind the changefeed's newest rows.
    """

    def __init__(self, etcd: EtcdClient, keys: Keys, clock: Clock, failpoints: Failpoints) -> None:
        self._etcd = etcd
        self._keys = keys
        self._clock = clock
        self._failpoints = failpoints
        self._open: RecentValues[str, FeedTable] = RecentValues(FEEDS_OPEN_MAX)

    def read(self, uri: str) -> dict[str, float]:
        """Return the lags in seconds of the feed's stored cursors, by their names; of those for which they are known.

        A feed that is not there yet has none. Raises StorageError, Unavailable, InvalidRequest, and ConfigurationError
        for a table that is no feed or a cursor that cannot be read.
        """
        try:
            table = self._table(uri)
        except TableNotFound:
            return {}
        stored = EtcdFeedCursors(self._etcd, self._keys, self._clock, table.description.feed_id).list()[:CURSORS_MAX]
        if not stored:
            return {}
        newest = table.last_ulids()
        lags = {each.name: cursor_lag_s(each.cursor, newest) for each in stored}
        return {name: lag_s for name, lag_s in lags.items() if lag_s is not None}

    def _table(self, uri: str) -> FeedTable:
        return self._open.get(uri) or self._open.put(uri, FeedTable(uri, self._clock, self._failpoints))


def cursor_lag_s(cursor: Cursor, newest: Mapping[int, str]) -> float | None:
    """Return the time between a cursor's ulid and the newest one, in seconds, of the shard in which it is longest.

    In a shard that it has not begun the cursor counts as being where it is furthest behind in others. None: it has
    begun none, and there are rows.
    """
    behind = cursor.behind(newest)
    if not behind:
        return 0.0
    if not cursor:
        return None
    furthest = min(cursor.values())
    return max(0, *(_time_ms(newest[shard]) - _time_ms(cursor.get(shard, furthest)) for shard in behind)) / 1000


def _time_ms(ulid: str) -> int:
    return ulid_time_ms(parse_ulid(ulid, "cursor"))
