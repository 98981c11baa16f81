"""Measure how far the stored cursors of a changefeed are behind its newest rows, for whoever watches many feeds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.changefeed.etcd.cursor_keys import EtcdFeedCursors
from iscp.changefeed.model.cursor import Cursor
from iscp.changefeed.model.ulid import parse_ulid, ulid_time_ms
from iscp.changefeed.table.feed_table import FeedTable
from iscp.core.values.errors import TableNotFound
from iscp.ports.system import Clock, Failpoints

FEEDS_OPEN_MAX = 200
"""Feeds whose tables stay open; for one more, the one that was unused for longest is opened again the next time."""

CURSORS_MAX = 1_000
"""Cursors of one feed whose lags are read, the first by name; there are no lags of the others."""


class CursorLags:
    """Reads the lags of any feed in one cluster's etcd. Safe for threads."""

    def __init__(self, etcd: EtcdClient, keys: Keys, clock: Clock, failpoints: Failpoints) -> None:
        self._etcd = etcd
        self._keys = keys
        self._clock = clock
        self._failpoints = failpoints
        self._open: OrderedDict[str, FeedTable] = OrderedDict()
        self._lock = threading.Lock()

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
        with self._lock:
            if (known := self._open.get(uri)) is not None:
                self._open.move_to_end(uri)
                return known
        table = FeedTable(uri, self._clock, self._failpoints)
        with self._lock:
            self._open[uri] = table
            while len(self._open) > FEEDS_OPEN_MAX:
                self._open.popitem(last=False)
        return table


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
