"""Pages of the feeds that jobs write, read by whichever node is called (port FeedReading).

A caller names a job, and never a place: what is read is the job's target, after the owner has said that there is such a
job. The caller keeps the cursor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from iscp.core.api.api_views import JobView
from iscp.core.api.feed_views import ChangePage, FeedRequest
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import CursorBehind, InvalidRequest, TableNotFound, Unavailable
from iscp.core.values.ids import JobKey
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.system import Clock
from iscp.ports.target_reading import FeedPages
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
from iscp.runtime.reads.work_for_jobs import at_work_for

FEED_READS_MAX = 4
"""Pages of feeds that a node reads at a time; others wait for their turn."""

FEED_READS_OF_ACCOUNT_MAX = 2
"""Pages of feeds of one account that a node reads at a time; others wait for their turn."""

FEED_READ_S = 30.0
"""Seconds that a page of a feed may take, with the wait for its turn; then the call fails with TIMEOUT."""

POLL_FIRST_S = 0.1
"""Pause before a call that waits for changes reads its feed again for the first time; it doubles up to POLL_MAX_S."""

POLL_MAX_S = 2.0
"""Longest pause before a call that waits for changes reads its feed again."""

FEED_KIND = "changefeed"
"""The kind of jobs whose targets are feeds."""

FIRST_CURSOR_CHARS_MAX = 600
"""Characters of the first cursor that is left in an error's remedy; a longer one is left out."""


def feed_turns(clock: Clock) -> AccountTurns:
    """Return the turns of a node's reads of feeds."""
    bounds = TurnBounds(FEED_READS_MAX, FEED_READS_OF_ACCOUNT_MAX, FEED_READ_S)
    remedy = "Retry, or call another node"
    return AccountTurns(bounds, "iscp-feed-read", "read of the feed", remedy, clock.monotonic_s)


class NodeFeeds:
    """Reads the feeds of any jobs. Safe for threads; the thread of a call waits for changes, and holds no turn then."""

    def __init__(
        self,
        pages: FeedPages,
        turns: AccountTurns,
        clock: Clock,
        places: PlaceGuard = ANYWHERE,
        deaths: JobDeaths = NO_DEATHS,
    ) -> None:
        self._pages = pages
        self._turns = turns
        self._clock = clock
        self._places = places
        self._deaths = deaths
        self._closed = threading.Event()

    def read(self, job: JobView, request: FeedRequest, alive: Callable[[], bool]) -> ChangePage:
        row, account = _row_of(job), job.account
        _refuse_other_kind(row)
        until_s = self._clock.monotonic_s() + request.wait_s
        pause_s = POLL_FIRST_S
        while True:
            page = self._turns.run(account, lambda: self._read_alive(row, request), alive)
            left_s = until_s - self._clock.monotonic_s()
            if page.changes or left_s <= 0:
                return page
            if self._closed.wait(min(pause_s, left_s)) or not alive():
                raise Unavailable("the wait was given up: the node stops, or the caller is gone")
            pause_s = min(2 * pause_s, POLL_MAX_S)

    def close(self) -> None:
        self._closed.set()
        self._turns.close()

    def _read_alive(self, row: JobRow, request: FeedRequest) -> ChangePage:
        """Read a page, unless this node's process has died of its job before: a file there may crash a library."""
        # A link that was put there since the job was registered leads nowhere else.
        self._places.require_target(row.key.account, row.spec.consumer.target, "target")
        with at_work_for(row, self._deaths):
            try:
                return self._pages(row, request.cursor, request.limit)
            except TableNotFound:
                if request.cursor:
                    raise  # it was there
                return ChangePage((), "")
            except CursorBehind as error:
                raise _behind(error) from error


def _row_of(job: JobView) -> JobRow:
    return JobRow(JobKey(job.account, job.table_id, job.name), job.job_id, job.spec_json, job.table, job.table)


def _refuse_other_kind(row: JobRow) -> None:
    kind = row.spec.consumer.kind
    if kind != FEED_KIND:
        raise InvalidRequest(
            f"the job {row.key.job_name!r} is of the kind {kind}, and writes no feed",
            about="job",
            remedy="Name a job of the kind changefeed; see `iscp-admin job list`",
        )


def _behind(error: CursorBehind) -> CursorBehind:
    """Return the error with a remedy that fits into an answer: the cursor of many shards does not."""
    first = f", or behind {error.first_cursor}" if len(error.first_cursor) <= FIRST_CURSOR_CHARS_MAX else ""
    return CursorBehind(
        error.message,
        about=error.field,
        remedy=f"Begin again from what is left: without a cursor{first}",
        first_cursor=error.first_cursor,
    )
