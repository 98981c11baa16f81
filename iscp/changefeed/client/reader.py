"""Pages of a changefeed behind a cursor, as of now; a probe that finds nothing new costs two `stat`s."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from iscp.adapters.delta.log.table_opening import bring_up, open_delta
from iscp.adapters.delta.source.commit_probe import DeltaProbe
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.delta.storage.locations import place
from iscp.changefeed.model.cursor import Cursor
from iscp.changefeed.table.feed_purge import read_purged
from iscp.changefeed.table.feed_table import FeedTable
from iscp.changefeed.table.page_reader import FeedPage, PageReader
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.errors import StorageError


@dataclass(frozen=True, slots=True)
class Page:
    """`rows` in the order of their ulids, with all columns of the feed's table; `cursor`: to go on from."""

    rows: pa.Table
    cursor: Cursor


class FeedReader:
    """One reader's hold on the table; not to be used from several threads at once.

    `bytes_max` and `rows_bytes_max` are those of PageReader.
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
