"""Pages of the feeds that jobs write, read by whichever node is called (port FeedReading).

A caller names a job, and never a place: what is read is the job's target, after the owner has said that there is such a
job. The caller keeps the cursor.

Searches of indexes, answered by who knows whose target an index is (port Searching): the owner, or a run.

In a cluster a search goes to the owner as other calls do. Whoever needs more searches than one node can carry out reads
the index by the library, which needs no node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.engine.account_turns import (
    ANYWHERE,
    AccountTurns,
    PlaceGuard,
    TurnBounds,
    at_work_for,
)
from iscp.model.api.api_requests import ChangePage, FeedRequest, SearchAnswer, SearchRequest
from iscp.model.api.api_views import JobView
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import SearchBounds
from iscp.model.spec.spec import INDEX_KINDS
from iscp.model.values.errors import (
    CursorBehind,
    InvalidRequest,
    TableNotFound,
    Unavailable,
    no_index_at,
)
from iscp.model.values.ids import JobKey
from iscp.ports.admin import FeedPages, IndexSearch
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.source import Catalog
from iscp.ports.system import Clock

log = logging.getLogger(__name__)


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


VersionWait = Callable[[JobRow, int, float, Callable[[], bool]], object]
"""Return once the job has applied this version of its table, within so many seconds, as long as somebody waits.

Raises TimedOut, JobFailed, Unavailable.
"""


JobsAt = Callable[[str], Sequence[JobRow]]
"""Return the jobs whose target is at this place, as it is normalized."""


def owners_jobs_at(owner: OwnerLoop) -> JobsAt:
    """Return what finds jobs by their targets at the owner. It raises NotOwner, Unavailable."""

    def found(place: str) -> Sequence[JobRow]:
        return owner.current_writer().read(lambda book: _jobs_at(book, place))

    return found


def search_turns(bounds: SearchBounds, clock: Clock) -> AccountTurns:
    """Return the turns of a process's searches."""
    return AccountTurns(
        TurnBounds(bounds.node_max, bounds.account_max, bounds.timeout_s),
        "iscp-search",
        "search",
        "Retry, search for less, or raise `search.node_max` and `search.timeout_s`",
        clock.monotonic_s,
    )


class JobSearch:
    """Searches of what jobs maintain: no other place of this process's machine or stores is opened for a caller.

    Without `wait` nobody waits for a version: the index has it, or the search is refused.
    """

    def __init__(
        self,
        jobs_at: JobsAt,
        catalog: Catalog,
        search: IndexSearch,
        turns: AccountTurns,
        places: PlaceGuard = ANYWHERE,
        deaths: JobDeaths = NO_DEATHS,
        wait: VersionWait | None = None,
    ) -> None:
        self._jobs_at = jobs_at
        self._catalog = catalog
        self._wait = wait
        self._search = search
        self._turns = turns
        self._places = places
        self._deaths = deaths

    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        row = self._job_of(request.uri, account, alive)
        account, target = row.key.account, row.spec.consumer.target
        if request.min_version is not None and self._wait is not None:
            self._wait(row, request.min_version, request.wait_s, alive)
        # The job has applied the version: what the index says of itself has to agree at once.
        of_target = replace(request, uri=target, wait_s=0.0)
        return self._turns.run(account, lambda: self._search_alive(row, of_target), alive)

    def close(self) -> None:
        self._turns.close()

    def _search_alive(self, row: JobRow, request: SearchRequest) -> SearchAnswer:
        """Search an index, unless this node's process has died of its job before: a file there may crash a library."""
        # A link that was put there since leads nowhere else.
        self._places.require_target(row.key.account, request.uri, "uri")
        with at_work_for(row, self._deaths):
            return self._search(request, row.key.account)

    def _job_of(self, uri: str, account: str, alive: Callable[[], bool]) -> JobRow:
        """Return the job that maintains the index. Raises TableNotFound where the account (empty: any) has none."""
        found = self._jobs_at(uri)
        if not found:  # a place may lie where nothing answers
            found = self._jobs_at(self._turns.run(account, lambda: self._normalized(uri), alive))
        row = next((each for each in found if account in ("", each.key.account)), None)
        if row is None or row.spec.consumer.kind not in INDEX_KINDS:
            raise no_index_at(uri)
        return row

    def _normalized(self, uri: str) -> str:
        try:
            return self._catalog.normalize(uri)
        except InvalidRequest:
            # No job has such a place; why it is none is said to nobody who may not know what is there.
            return uri


def _jobs_at(book: JobBook, place: str) -> list[JobRow]:
    rows = map(book.by_id, book.targets().at(place))
    return [row for row in rows if row is not None]
