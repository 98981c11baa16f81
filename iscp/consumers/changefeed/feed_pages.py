"""Reads pages of jobs' feeds for a node, by the library of changefeeds (port FeedPages)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from iscp.changefeed.client.reader import FeedReader
from iscp.changefeed.model.ulid import TEXT_CHARS, Cursor
from iscp.changefeed.table.feed_schema import FEED, KEY, NET, OPERATION, ROW, SHARD, ULID, ULID_TEXT, VERSION
from iscp.changefeed.table.feed_table import FeedTable
from iscp.model.api.api_requests import ChangePage, FeedChange
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError, StorageError
from iscp.model.values.untrusted_values import error_text, json_value
from iscp.ports.system import Clock, Failpoints
from iscp.storage.bounded_parquet import decoded_bytes
from iscp.system.recent_values import RecentValues

READ_BYTES_MAX = 256 * 1024**2
"""Bytes, decoded, that a node reads for a page of a feed; it ends early then, and what is only read at once and has
more is refused.
"""

ROWS_BYTES_MAX = 32 * 1024**2
"""Bytes of the rows that a node reads for a page of a feed, each with its own texts; the page ends before more."""

CHANGES_BYTES_MAX = 2 * 1024**2
"""Bytes of the changes of a page that a node reads, as JSON; the others follow in further pages, which have one each
at least.
"""

CHANGE_BYTES_MAX = 16 * 1024**2
"""Bytes of one change that a node reads, as JSON; a page that would begin with a larger one is refused."""

OPEN_FEEDS_MAX = 32
"""Feeds that a node has open for their next pages; the one that was read longest ago is closed for another."""

HELD_BYTES_MAX = 16 * 1024**2
"""Bytes of rows that a feed which a node has open may hold for its next page; one that holds more is closed."""

_BATCH_ROWS = 64
_VALUE_BYTES = 8


class JobFeedPages:
    """Reads the feeds of any jobs, which stay open for a while. Safe for threads."""

    def __init__(self, clock: Clock, failpoints: Failpoints) -> None:
        self._clock = clock
        self._failpoints = failpoints
        self._idle: RecentValues[tuple[str, str], _OpenFeed] = RecentValues(OPEN_FEEDS_MAX)

    def page(self, row: JobRow, cursor: str, limit: int) -> ChangePage:
        """Return up to `limit` changes behind the cursor. Raises what a port FeedPages does."""
        start = Cursor.parse(cursor) if cursor else None
        place = (row.job_id, row.spec.consumer.target)
        if (idle := self._idle.take(place)) is not None:
            with suppress(StorageError):  # its table may have been made again since it was opened
                return self._page(place, idle, start, limit)
        return self._page(place, _OpenFeed(FeedTable(place[1], self._clock, self._failpoints)), start, limit)

    def _page(self, place: tuple[str, str], feed: _OpenFeed, start: Cursor | None, limit: int) -> ChangePage:
        try:
            page = feed.page(start, limit)
        except InvalidRequest:
            self._keep(place, feed)  # it is the request that is wrong
            raise
        self._keep(place, feed)
        return page

    def _keep(self, place: tuple[str, str], feed: _OpenFeed) -> None:
        if feed.reader.held_bytes <= HELD_BYTES_MAX:
            self._idle.put(place, feed)


class _OpenFeed:
    """A feed's table, and one reader of it; for one thread at a time."""

    def __init__(self, table: FeedTable) -> None:
        self._table = table
        self.reader = FeedReader(table, READ_BYTES_MAX, ROWS_BYTES_MAX)

    def page(self, start: Cursor | None, limit: int) -> ChangePage:
        if start is not None:
            start.refuse_foreign(self._table.description.feed_id, self._table.description.shards)
        page = self.reader.page(start, limit)
        try:
            changes = tuple(_fitting(page.rows))
        except (ValueError, ArithmeticError, pa.ArrowException) as error:  # as a time that Python does not know
            raise PermanentError(
                f"a change of the feed has a value that cannot be shown: {error_text(error)}",
                remedy="Read the feed where it lies, by iscp.changefeed",
                code=ErrorCode.TABLE_UNREADABLE,
            ) from error
        if len(changes) == len(page.rows):
            return ChangePage(changes, page.cursor.text)
        # The cursor of the page lies behind changes that did not fit.
        first = self.reader.first_cursor() if start is None else start
        reached = {**first, **{change.shard: change.ulid for change in changes}}
        return ChangePage(changes, Cursor(page.cursor.feed, reached).text)


def _fitting(rows: pa.Table) -> Iterator[FeedChange]:
    """Yield the first rows as changes, as many as a page may have. Raises PermanentError where the first is too large.

    The rows become Python's values in batches: all of them at once might take many times their bytes.
    """
    left = CHANGES_BYTES_MAX
    for row in _python_rows(rows.drop_columns([ULID, FEED])):
        change = _change_of(row)
        size = _message_bytes(change)
        if size > left and left < CHANGES_BYTES_MAX:
            return
        if size > CHANGE_BYTES_MAX:
            raise _too_large(size)
        left -= size
        yield change


def _python_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows, so many at a time as have few bytes, up to one that has too many.

    Raises PermanentError where that is the first.
    """
    for begin in range(0, len(rows), _BATCH_ROWS):
        batch = rows.slice(begin, _BATCH_ROWS)
        at_once = 1 if _bytes_of(batch) > CHANGES_BYTES_MAX else _BATCH_ROWS
        for place in range(0, len(batch), at_once):
            part = batch.slice(place, at_once)
            if at_once == 1 and (size := _bytes_of(part)) > CHANGE_BYTES_MAX:
                if begin + place:
                    return
                raise _too_large(size)
            yield from part.to_pylist()


def _bytes_of(rows: pa.Table) -> int:
    return sum(map(decoded_bytes, rows.columns))


def _message_bytes(change: FeedChange) -> int:
    """Return how many bytes the change may take as a message: as JSON, with a tag and a length for each value."""
    text = json.dumps((change.ulid, change.key, change.row, change.operation))
    return len(text) + _VALUE_BYTES * (text.count(",") + text.count("["))


def _too_large(size: int) -> PermanentError:
    return PermanentError(
        f"a change of the feed has {size} bytes, more than {CHANGE_BYTES_MAX}",
        remedy="Read the feed where it lies: `iscp feed tail URI`, or iscp.changefeed",
        code=ErrorCode.TABLE_UNREADABLE,
    )


def _ulid_of(text: Any) -> str:
    """Return the text of a ulid, which callers get back as a cursor. Raises ValueError where it is none."""
    if not isinstance(text, str) or len(text) != TEXT_CHARS:
        raise ValueError("a ulid that is none")
    return text


def _change_of(row: Mapping[str, Any]) -> FeedChange:
    return FeedChange(
        ulid=_ulid_of(row[ULID_TEXT]),
        shard=row[SHARD],
        operation=row[OPERATION],
        row=json_value(row[ROW]),
        key=json_value(row.get(KEY) or {}),
        version=row[VERSION],
        net=row[NET],
    )
