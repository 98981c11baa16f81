"""The bounds of accounts on a node: how many reads are carried out for users at a time and how long each may take,
whose work a read counts as, and in which places an account's tables may lie.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from iscp.model.access.authorization import AccountRoots, lies_below, places_around, places_of
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ACCOUNT_DEATHS_MAX, Deaths, TargetLog, killed, killed_by_account
from iscp.model.query_plan import QueryShape
from iscp.model.values.errors import (
    EngineError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    QueueFull,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.model.values.progress import TableSize
from iscp.model.values.untrusted_values import error_text
from iscp.ports.engine import JobDeaths
from iscp.ports.source import Catalog, TableDescription
from iscp.system.threads import THREADS

# --- turns of reads ---------------------------------------------------------------------------------------------------
# Reads for users are bounded, of all and of each account. Whatever a read hangs in (a pipe in the place of a file, a
# file system whose server is gone, a store that never answers), nobody can end its thread. So a read's turn ends at its
# deadline, and its thread is left: it goes on counting for its account, and for nobody else.

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


# --- reads as work of jobs --------------------------------------------------------------------------------------------
# Reads of targets count as work of their jobs: a file there may crash a library, and the node's process with it.


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


# --- the catalog of an account with roots -----------------------------------------------------------------------------
# It says nothing of what lies elsewhere than the account's tables may.


@dataclass(frozen=True, slots=True)
class RootedCatalog:
    """The port Catalog for an account with roots. A table outside them is refused before anything is read there.

    `require` raises for a place (1st) that is refused, as its user has written it (2nd); `outside` makes that error.
    """

    catalog: Catalog
    require: Callable[[str, str], None]
    outside: Callable[[str], InvalidRequest]

    def describe(self, table: str) -> TableDescription:
        return replace(self.catalog.describe(self.locate(table)), name=table)

    def locate(self, table: str) -> str:
        try:
            uri = self.catalog.locate(table)
        except (TableNotFound, EngineError) as error:
            # Of a name in a catalog: whether it is there may not be this account's to know.
            raise self.outside(table) from error
        self.require(uri, table)
        return uri

    def normalize(self, uri: str) -> str:
        found = self.catalog.normalize(uri)
        self.require(found, uri)
        return found

    def refuse_links(self, table: str) -> None:
        self.locate(table)
        self.catalog.refuse_links(table)

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        self.require(uri, uri)
        return self.catalog.logs_at(uri)

    def table_around(self, uri: str) -> str:
        self.require(uri, uri)
        found = self.catalog.table_around(uri)
        try:
            if found:
                self.require(found, found)
        except InvalidRequest:  # around a root: which table that is, is not this account's to know
            return uri
        return found

    def missing_parent(self, uri: str) -> str:
        self.require(uri, uri)
        return self.catalog.missing_parent(uri)

    def has_version(self, uri: str, version: int) -> bool:
        self.require(uri, uri)
        return self.catalog.has_version(uri, version)

    def newest_version(self, uri: str) -> int:
        self.require(uri, uri)
        return self.catalog.newest_version(uri)

    def size(self, uri: str) -> TableSize:
        self.require(uri, uri)
        return self.catalog.size(uri)

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        return self.catalog.query_shape(sql, schemas)

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        return self.catalog.condition_fault(condition, table)


# --- the guard of places ----------------------------------------------------------------------------------------------
# The tables of each account's jobs are held to its roots: when a job is registered, and again before each iteration.

FollowLinks = Callable[[str], tuple[str, ...]]
"""A table's place to where its files lie, once links are followed. Raises InvalidRequest for what is no place."""


class PlaceGuard:
    """The guard of places refuses all alike, whether there is a table or not. Safe for threads.

    Links are followed at each call: a place that became a link to elsewhere is refused from then on. `follow_root` does
    for a root what `follow` does for a place.
    """

    def __init__(self, roots: AccountRoots, follow: FollowLinks, follow_root: Callable[[str], str]) -> None:
        self._roots = roots
        self._follow = follow
        self._follow_root = follow_root

    def require(self, account: str, place: str, field: str, shown: str = "") -> None:
        """Raises InvalidRequest where the account may have no table there. `shown`: how its user has written it."""
        self._require(account, [(field, place, shown or place)])

    def require_target(self, account: str, target: str, field: str) -> None:
        """Require a target as `require` does, and what is stored beside it; an empty one passes."""
        self._require(account, ((field, place, target) for place in (places_around(target) if target else ())))

    def require_job(self, row: JobRow) -> None:
        """Require all places that the job names, as `require` does."""
        self._require(row.key.account, ((field, place, place) for field, place in places_of(row)))

    def _require(self, account: str, places: Iterable[tuple[str, str, str]]) -> None:
        """Require `places`, each with its field before it, and as it is shown behind it. Roots are followed once for
        all.
        """
        roots = self._roots.of(account)
        if roots is None:
            return
        tops = [self._follow_root(root) for root in roots]
        for field, place, shown in places:
            try:
                found = self._follow(place)
            except InvalidRequest as error:
                raise InvalidRequest.from_error(error, field=field, code=error.code) from error
            if not all(any(lies_below(each, top) for top in tops) for each in found):
                raise self._outside(account, shown, field)

    def catalog(self, account: str, catalog: Catalog) -> Catalog:
        """Return the catalog as the account may have it. Its refusals have the field `table`."""
        if self._roots.of(account) is None:
            return catalog
        outside = partial(self._outside, account, field="table")
        return RootedCatalog(catalog, lambda place, shown: self.require(account, place, "table", shown), outside)

    def _outside(self, account: str, shown: str, field: str) -> InvalidRequest:
        roots = self._roots.of(account)
        return InvalidRequest(
            f"{shown} does not lie below a root of the account {account!r}, with links followed",
            about=field,
            remedy=f"Choose a place below {' or '.join(roots)}"
            if roots
            else f"Have accounts.{account}.roots say, in the nodes' configuration, below which places its tables lie",
            code=ErrorCode.OUTSIDE_ROOTS,
        )


ANYWHERE = PlaceGuard(AccountRoots(), lambda place: (place,), lambda root: root)
"""The guard of an account without roots, which refuses nothing."""
