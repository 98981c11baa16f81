"""Pages of the feeds that jobs write, read by whichever node is called (port FeedReading).

A caller names a job, and never a place: what is read is the job's target, after the owner has said that there is such a
job. The caller keeps the cursor.

Searches of indexes, answered by who knows whose target an index is (port Searching): the owner, or a run.

In a cluster a search goes to the owner as other calls do. Whoever needs more searches than one node can carry out reads
the index by the library, which needs no node.

Bounds the reads that are carried out at a time for users, of all and of each account, and how long each may take.

Whatever a read hangs in (a pipe in the place of a file, a file system whose server is gone, a store that never
answers), nobody can end its thread. So a read's turn ends at its deadline, and its thread is left: it goes on counting
for its account, and for nobody else.

Reads of targets count as work of their jobs: a file there may crash a library, and the node's process with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.api.api_requests import ChangePage, FeedRequest, SearchAnswer, SearchRequest
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobRow
from iscp.core.job.start_rule import ACCOUNT_DEATHS_MAX, Deaths, killed, killed_by_account
from iscp.core.settings.config import SearchBounds
from iscp.core.spec.spec import INDEX_KINDS
from iscp.core.values.errors import (
    CursorBehind,
    InvalidRequest,
    IscpError,
    PermanentError,
    QueueFull,
    TableNotFound,
    TimedOut,
    Unavailable,
    no_index_at,
)
from iscp.core.values.ids import JobKey
from iscp.core.values.untrusted_values import error_text
from iscp.ports.admin import FeedPages, IndexSearch
from iscp.ports.catalog import Catalog
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.ports.system import Clock
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.owner.owner_loop import OwnerLoop

log = logging.getLogger(__name__)

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a caller who waits for a turn is still there."""

HANGING_MAX = 256
"""Threads of reads that hang beyond their deadline and take nobody's turn; further ones keep theirs until they end."""

READERS_MAX = 8
"""Targets that are read at a time for one purpose; further ones are refused meanwhile."""

READERS_OF_ACCOUNT_MAX = 4
"""Targets of one account that are read at a time for one purpose, with those whose reads hang; further ones are
refused meanwhile.
"""


_ALL: WeakSet[AccountTurns] = WeakSet()


class TurnBounds(NamedTuple):
    """The reads that there may be at a time, of all accounts and of one, and how long one may take with its wait.

    `waits`: one more waits for its turn; otherwise it is refused at once. `hanging_max` is HANGING_MAX but for tests.
    """

    node_max: int
    account_max: int
    timeout_s: float
    waits: bool = True
    hanging_max: int = HANGING_MAX


class _Read:
    """A read that is under way; it hangs from `due_s` on."""

    __slots__ = ("account", "due_s")

    def __init__(self, account: str, due_s: float) -> None:
        self.account = account
        self.due_s = due_s


class AccountTurns:
    """Carries reads out on threads of its own, so that one which hangs blocks no other call.

    `threads` is how its threads are called, `what` what errors call a read, and `remedy` what helps where there are too
    many. Invariant: at most `node_max` reads are under way that are not beyond `timeout_s`, and `account_max` of one
    account, hanging ones included. A read whose caller has given it up keeps its turn until it ends or hangs.
    """

    def __init__(
        self,
        bounds: TurnBounds,
        threads: str,
        what: str,
        remedy: str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = bounds
        self._now_s = monotonic_s
        self._threads = threads
        self._what = what
        self._remedy = remedy
        self._changed = threading.Condition()
        self._reads: set[_Read] = set()
        self._closed = False
        _ALL.add(self)

    def run(self, account: str, read: Callable[[], T], alive: Callable[[], bool] = lambda: True) -> T:
        """Return what `read` returns, once it is the account's turn. It has the caller's context.

        Raises what it raises; TimedOut where its turn and itself take longer than `timeout_s`; QueueFull where it would
        wait for reads that hang, or may not wait; Unavailable where the caller is gone, or the node stops.
        """
        until_s = self._now_s() + self._bounds.timeout_s
        turn = self._take_turn(account, until_s, alive)
        future: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            try:
                found = context.run(read)
            except BaseException as error:  # noqa: BLE001  (whatever it is, the caller raises it)
                self._end_turn(turn)
                future.set_exception(error)
            else:
                self._end_turn(turn)
                future.set_result(found)

        try:
            THREADS.thread(self._threads, work).start()
        except RuntimeError as error:  # the machine has no more threads
            self._end_turn(turn)
            raise QueueFull(f"the {self._what} got no thread: {error_text(error)}", remedy="Retry later") from error
        return self._result(future, account, until_s, alive)

    def hanging(self) -> int:
        """Return how many reads go on beyond their deadline."""
        with self._changed:
            return len(self._hanging())

    def close(self) -> None:
        """Begin nothing more; what hangs ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take_turn(self, account: str, until_s: float, alive: Callable[[], bool]) -> _Read:
        with self._changed:
            while not self._is_turn_of(account):
                self._wait_until(account, until_s, alive)
            if self._closed:
                raise self._given_up()
            turn = _Read(account, self._now_s() + self._bounds.timeout_s)
            self._reads.add(turn)
            return turn

    def _is_turn_of(self, account: str) -> bool:
        if self._closed:
            return True
        counted = len(self._reads) - min(len(self._hanging()), self._bounds.hanging_max)
        return counted < self._bounds.node_max and self._count_of(account) < self._bounds.account_max

    def _hanging(self) -> list[_Read]:
        now_s = self._now_s()
        return [each for each in self._reads if now_s >= each.due_s]

    def _count_of(self, account: str) -> int:
        return sum(each.account == account for each in self._reads)

    def _wait_until(self, account: str, until_s: float, alive: Callable[[], bool]) -> None:
        """Wait, under the lock, for a turn to end. Raises TimedOut and QueueFull, and Unavailable where the caller is
        gone.
        """
        if not alive():
            raise self._given_up()
        if sum(each.account == account for each in self._hanging()) >= self._bounds.account_max:
            raise QueueFull(
                f"the {self._what} was not begun: {self._bounds.account_max} others of the account hang",
                remedy="Find out why their storage does not answer: a pipe in the place of a file, a file system or a "
                "store that is gone?",
            )
        if not self._bounds.waits:
            whose = " of the account" if self._count_of(account) >= self._bounds.account_max else ""
            raise QueueFull(f"the {self._what} was not begun: too many others{whose} are", remedy=self._remedy)
        if (left_s := until_s - self._now_s()) <= 0:
            raise self._late("did not get its turn")
        self._changed.wait(min(left_s, ALIVE_LOOK_S))

    def _end_turn(self, turn: _Read) -> None:
        with self._changed:
            self._reads.discard(turn)
            self._changed.notify_all()

    def _result(self, future: Future[T], account: str, until_s: float, alive: Callable[[], bool]) -> T:
        while True:
            left_s = until_s - self._now_s()
            try:
                return future.result(max(0.0, min(left_s, ALIVE_LOOK_S)))
            except TimeoutError:
                if future.done():  # it has just ended, or the error is its own
                    return future.result()
                if left_s <= 0:
                    log.warning("read.given_up", extra={"what": self._what, "account": account})
                    raise self._late("took too long") from None
                if not alive():
                    raise self._given_up() from None

    def _late(self, what: str) -> TimedOut:
        return TimedOut(f"the {self._what} {what} within {self._bounds.timeout_s:.3g} s", remedy=self._remedy)

    def _given_up(self) -> Unavailable:
        return Unavailable(f"the {self._what} was given up: the node stops, or the caller is gone")


def hanging_reads() -> dict[str, int]:
    """Return how many reads of this process, by whatever turns, go on beyond their deadline."""
    return {"reads_hanging": sum(each.hanging() for each in list(_ALL))}


class TargetReads:
    """Reads of jobs' targets for one purpose, each for up to `read_s` seconds, or refused at once. Safe for threads.

    `threads` and `what` are as AccountTurns has them.
    """

    def __init__(self, places: PlaceGuard, read_s: float, threads: str, what: str) -> None:
        self._places = places
        bounds = TurnBounds(READERS_MAX, READERS_OF_ACCOUNT_MAX, read_s, waits=False)
        self._turns = AccountTurns(bounds, threads, what, "Try again in a moment; is the storage slow?")

    def run(self, row: JobRow, read: Callable[[], T]) -> T:
        """Return what `read` returns of the job's target.

        Raises the IscpError that it raises, PermanentError for whatever else, InvalidRequest for a target that the
        account may not have, QueueFull and TimedOut.
        """
        return self._turns.run(row.key.account, lambda: self._read(row, read))

    def _read(self, row: JobRow, read: Callable[[], T]) -> T:
        # A link that was put there since the job was registered leads nowhere else.
        self._places.require_target(row.key.account, row.spec.consumer.target, "target")
        try:
            return read()
        except IscpError:
            raise
        except BaseException as error:  # a library's panic is no Exception
            raise PermanentError(error_text(error), remedy="Read it yourself: its consumer cannot") from error


@contextmanager
def at_work_for(row: JobRow, deaths: JobDeaths) -> Iterator[None]:
    """Count what is done within as work for the job. Raises NodeKilled if nodes' processes died of it too often."""
    refuse_deadly(row, deaths.of(row), deaths)
    with deaths.at_work([row]):
        yield


def refuse_deadly(row: JobRow, own: Deaths, deaths: JobDeaths) -> None:
    """Raise NodeKilled if nodes' processes died too often of the job, of which these are the `own` deaths, or of those
    of its account.
    """
    if own.too_many:
        raise killed(own)
    of_account = deaths.of_account(row.key.account)
    if of_account >= ACCOUNT_DEATHS_MAX:
        raise killed_by_account(row.key.account, of_account)


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
