"""Services around what jobs maintain and read: pages of feeds, searches of indexes, the retention of sources, and the
release of what sources hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.engine.account_turns import (
    ANYWHERE,
    AccountTurns,
    PlaceGuard,
    TargetReads,
    TurnBounds,
    at_work_for,
)
from iscp.model.api.api_requests import ChangePage, FeedRequest, JobView, SearchAnswer, SearchRequest
from iscp.model.job.job_row import JobRow, further_tables
from iscp.model.job.registration_id import logged_job
from iscp.model.job.source_holds import holder_of, retention_s
from iscp.model.settings.config import SearchBounds
from iscp.model.spec.spec import INDEX_KINDS
from iscp.model.values.errors import (
    CursorBehind,
    InvalidRequest,
    IscpError,
    NotOwner,
    TableNotFound,
    Unavailable,
    no_index_at,
)
from iscp.model.values.ids import JobKey
from iscp.ports.admin import FeedPages, IndexSearch
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.source import Catalog, RetentionHold
from iscp.ports.system import Clock, Threads
from iscp.system.threads import THREADS, PacedThread

# --- pages of feeds ---------------------------------------------------------------------------------------------------
# The pages of the feeds that jobs write are read by whichever node is called (port FeedReading). A caller names a job,
# and never a place: what is read is the job's target, after the owner has said that there is such a job. The caller
# keeps the cursor.

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


# --- searches of indexes ----------------------------------------------------------------------------------------------
# A search is answered by who knows whose target an index is (port Searching): the owner, or a run. In a cluster a
# search goes to the owner as other calls do. Whoever needs more searches than one node can carry out reads the index by
# the library, which needs no node.

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


# --- the retention of sources -----------------------------------------------------------------------------------------
# The watch finds out for how long the sources of jobs that lag retain what these have yet to read. What a job has not
# read when VACUUM removes files, or the log is cleaned, can be had from all rows alone. So users are to see it before,
# while the job can still be repaired or the retention raised.

EVERY_S = 60.0
"""Seconds between two turns, at least."""

LAG_MIN_S = 3_600.0
"""Lag in seconds from which on the retention of a job's sources is read; of a shorter retention nobody is warned."""

TABLES_MAX = 200
"""Sources that are read in a turn, those of the jobs that lag most; of the others the retention is not known."""

READ_S = 5.0
"""Seconds that reading what a table says of its retention may take; it is not known then."""


class RetentionWatch:
    """Reads the retention of sources in turns, on a thread of its own. `retained_s` is for any thread.

    `lagging` returns a row of each job that lags by so many seconds at least, those that lag most first; where it
    raises NotOwner or Unavailable, nothing is known.
    """

    def __init__(
        self,
        lagging: Callable[[float], Sequence[JobRow]],
        catalog: Catalog,
        places: PlaceGuard,
        clock: Clock,
        threads: Threads = THREADS,
    ) -> None:
        self._lagging = lagging
        self._catalog = catalog
        self._places = places
        self._clock = clock
        self._reads = TargetReads(places, READ_S, "iscp-retention", "read of the retention")
        self._known: Mapping[str, float] = {}
        self._thread = PacedThread("iscp-retention-watch", self.turn, clock, EVERY_S, threads)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close()

    def retained_s(self, row: JobRow) -> float:
        """Return for how many seconds all of a job's sources retain what was removed; 0.0 where that is not known."""
        known = self._known
        found = [known[uri] for uri in (row.table_uri, *further_tables(row)) if uri in known]
        return min(found, default=0.0)

    def turn(self) -> None:
        """Read what tables say of their retention; what was known of others is forgotten."""
        try:
            lagging = self._lagging(LAG_MIN_S)
        except (NotOwner, Unavailable):
            self._known = {}
            return
        found: dict[str, float] = {}
        seen: set[str] = set()
        for row in lagging:
            for uri in (row.table_uri, *further_tables(row)):
                if self._thread.closed or len(seen) >= TABLES_MAX:
                    break
                if uri not in seen:
                    seen.add(uri)
                    self._read(row, uri, found)
        self._known = found

    def _read(self, row: JobRow, uri: str, found: dict[str, float]) -> None:
        catalog = self._places.catalog(row.key.account, self._catalog)
        try:
            known_s = retention_s(self._reads.run(row, lambda: catalog.describe(uri)).configuration)
        except IscpError as error:
            log.info("retention.not_read", extra={"job_id": row.job_id, "table": uri, "error": str(error)})
            return
        if known_s is not None:
            found[uri] = known_s


# --- the release of sources -------------------------------------------------------------------------------------------

RELEASES = TurnBounds(node_max=64, account_max=16, timeout_s=60.0, waits=False)
"""Bounds of the commits by which sources let go, each of which has a thread of a call meanwhile."""


class SourceReleases:
    """Lets go of what sources hold for a job, once it is dropped, or registered again without that."""

    def __init__(self, holds: RetentionHold, kinds: Callable[[str], ConsumerKind]) -> None:
        self._holds = holds
        self._kinds = kinds
        self._turns = AccountTurns(RELEASES, "iscp-release", "release of the source", "Is its storage slow?")

    def release(self, before: JobRow, after: JobRow | None = None) -> None:
        """Release the sources that the job no longer reads. `after` is what the job is now, or None if it was dropped.
        A source that cannot be reached retains its hold, which is logged.

        The caller does so once that is in the job log, so that no refresh begins any more which would hold the source
        again.
        """
        holder = holder_of(before.key)
        still = self._pinned(after) if after is not None and holder_of(after.key) == holder else frozenset()
        for uri in sorted(self._pinned(before) - still):
            about = logged_job(before, uri)
            try:
                self._turns.run(before.key.account, partial(self._holds.release, uri, holder))
                log.info("source.released", extra=about)
            except IscpError as error:
                log.warning("source.still_held", extra={**about, "error": str(error)})

    def _pinned(self, row: JobRow) -> frozenset[str]:
        try:
            consumer = row.spec.consumer
            return frozenset(self._kinds(consumer.kind).held(consumer))
        except IscpError:  # a spec that was damaged in the log, or of a consumer that is not installed any more
            return frozenset()
