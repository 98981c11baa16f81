"""The ports to what carries iterations out, to the log of jobs and to a node's own log; and the charging of a thread's
work to the jobs that it works for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol, TypeVar

from iscp.model.api.api_requests import LogPage, LogQuery
from iscp.model.job.iteration import SECONDS_MOST, HistoryEntry, Iteration, JobOutcome, SparkNeed, Usage, UsagePart
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.job.start_rule import Deaths
from iscp.model.values.progress import StageWork
from iscp.model.values.untrusted_values import COUNT_MOST, printable
from iscp.ports.system import Clock, Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# --- engines, deaths and runners --------------------------------------------------------------------------------------


class HeapSize(NamedTuple):
    """The heap of the engine's JVM, in bytes: what is in use, garbage included, and what may be."""

    used: int
    limit: int


class Engine(Protocol):
    """Spark, as the runner uses it: sessions to borrow, and work that can be cancelled by its label."""

    def session(self) -> AbstractContextManager[SparkSession]:
        """Return a session with SQL settings of its own, given back at the end."""

    def label(self, label: str) -> None:
        """Put what this thread does from now on under `label`."""

    def spent_s(self) -> tuple[float, float]:
        """Return for how many seconds this thread has waited for Spark, and has read and written data itself, in
        all.
        """

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        """Return the frame's rows, in its order, in tables of 1 to `rows_max` rows; one without rows if there are none.

        Read while they are taken: never more than a partition of Spark's is in memory.
        """

    def stages(self, label: str) -> dict[int, StageWork]:
        """Return what the stages of the Spark jobs under `label` have done, by number, as far as Spark remembers
        them.
        """

    def cancel(self, label: str) -> None:
        """Stop all Spark jobs under `label`, running or still to come; they raise Canceled."""


class DeathBoard(Protocol):
    """The deaths that nodes have seen, by job_ids. Safe for threads."""

    def put(self, own: Mapping[str, Deaths]) -> None:
        """Replace this node's; where that cannot be done now, it is later."""

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        """Return those of each other node, as they were lately."""


class NoBoard:
    """The board of a node that knows of no others (port DeathBoard)."""

    def put(self, own: Mapping[str, Deaths]) -> None:
        """Nobody reads it."""

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        return ()


NO_BOARD = NoBoard()


class JobDeaths(Protocol):
    """The jobs that nodes' processes have died of. Safe for threads; costs what files in memory cost."""

    def at_work(self, rows: Sequence[JobRow]) -> AbstractContextManager[None]:
        """Mark that this thread works for these jobs, of one table; within it may be narrowed to some of them."""

    def of(self, row: JobRow) -> Deaths:
        """Return the job's deaths in a row, at this node and at those of which it is known."""

    def of_account(self, account: str) -> int:
        """Return of how many deaths within a day jobs of the account are suspected."""

    def forget(self, job_id: str) -> None:
        """Forget the job's deaths at this node: it has run well since."""

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        """Forgive the death, as a person has the job tried again, who saw the fault that was reported then."""


class NodeDeaths(JobDeaths, Protocol):
    """The deaths as a node has them."""

    def share(self, board: DeathBoard) -> None:
        """Count with those of other nodes from now on, and have these count with those of this one."""


class NoDeaths:
    """The deaths at a node that stores nothing from one start to the next (port NodeDeaths)."""

    def at_work(self, rows: Sequence[JobRow]) -> AbstractContextManager[None]:
        return nullcontext()

    def of(self, row: JobRow) -> Deaths:
        return Deaths()

    def of_account(self, account: str) -> int:
        return 0

    def forget(self, job_id: str) -> None:
        """There are none."""

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        """There are none."""

    def share(self, board: DeathBoard) -> None:
        """There are none."""


NO_DEATHS = NoDeaths()


class IterationRunner(Protocol):
    """Runs one iteration to its end, on a thread of the executor."""

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        """Run the iteration, and return one outcome a job; faults of one job are its own. Raises only if the whole
        iteration failed.
        """

    def cancel(self, iteration: Iteration) -> None:
        """Make the Spark work of `iteration` stop; returns at once, `run` ends by itself soon."""


# --- the job log ------------------------------------------------------------------------------------------------------
# The port to where jobs are written down, and who is given reports of them.


class JobLog(Protocol):
    """The Delta table that holds every job. One writer at a time, by the fence of its term.

    One instance serves one term. Whatever writes raises NotOwner once another term was seen; with it, with StorageError
    and with Unavailable nothing was committed, unless this repeats what was in doubt. OutcomeUnknown: it may have been,
    before the term ended, or may still be, or the storage could not be read.
    Writes come from one thread; history and `tidy` may be called from others.
    """

    @property
    def commits_since_compaction(self) -> int: ...

    @property
    def version(self) -> int:
        """Return the last version of the log that is known; -1 before it is claimed."""

    def claim_term(self) -> int:
        """Mint owner_rev, the last term + 1, by a claim commit; nothing may be read or done before."""

    def load(self) -> list[JobRow]:
        """Return the last row of every registration (`job_id`), oldest first, dropped ones too until they are
        collected.
        """

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Commit at exactly the next version.

        After OutcomeUnknown the next append must carry the same entries: it finds out, and commits them if need be.
        """

    def requests(self) -> Mapping[str, Sequence[str]]:
        """Return the request ids still in the log by the `job_id` that they were about, oldest first; known after
        `load`.
        """

    def compact(self, rows: Sequence[JobRow]) -> None:
        """Replace all entries by the last row of every registration that is still to be known."""

    def tidy(self) -> int:
        """Delete files that the call before found unneeded already; answers how many. Commits nothing to the log."""

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        """Append entries. Raises StorageError, and InvalidRequest if one of them cannot be stored: then none was
        written.
        """

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first."""


# --- the log of a node ------------------------------------------------------------------------------------------------
# The port to what a node stores of its own log.


class NodeLog(Protocol):
    """Safe to use from several threads; never waits."""

    def read(self, query: LogQuery) -> LogPage: ...


# --- the work of threads ----------------------------------------------------------------------------------------------
# A thread's time, what it reads and writes, and its need of Spark, are charged to the jobs that it works for. The
# runner says for whom a thread works; what reads for jobs, or commits for them, says so where it does. Nobody passes
# anything on for that, and where a thread works for nobody, nothing is measured. The part that is innermost counts.

P = ParamSpec("P")
R = TypeVar("R")


class UsageTally:
    """The sums of one job's part in an iteration, as Usage has them; one thread at a time adds to them.

    `spark` says why it needed Spark; None: it did not, or Spark is one whose uses are not seen.
    """

    __slots__ = ("bytes_read", "bytes_written", "conflicts", "rows_read", "seconds", "spark")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(UsagePart, 0.0)
        self.rows_read = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.conflicts = 0
        self.spark: SparkNeed | None = None

    def usage(self, rows_written: int) -> Usage:
        """Return what is known by now.

        The runner knows how long the job waited within its iteration, the schedule how long the iteration has waited.
        """
        return Usage(
            read_s=min(self.seconds[UsagePart.READ], SECONDS_MOST),
            compute_s=min(self.seconds[UsagePart.COMPUTE], SECONDS_MOST),
            commit_s=min(self.seconds[UsagePart.COMMIT], SECONDS_MOST),
            rows_read=min(self.rows_read, COUNT_MOST),
            rows_written=rows_written,
            bytes_read=min(self.bytes_read, COUNT_MOST),
            bytes_written=min(self.bytes_written, COUNT_MOST),
            conflicts=self.conflicts,
        )


class _WorkTimer:
    """A thread's work for the jobs of `tallies`, of which `part` is done now (None: none of them).

    `spark_reason` says why it is left to Spark, if it is; empty: nobody has said so.
    """

    __slots__ = ("clock", "part", "since_s", "spark_reason", "tallies", "thread")

    def __init__(self, clock: Clock, tallies: Sequence[UsageTally], part: UsagePart) -> None:
        self.clock = clock
        self.tallies = tallies
        self.part: UsagePart | None = part
        self.since_s = clock.monotonic_s()
        self.spark_reason = ""
        self.thread = get_ident()

    def switch(self, part: UsagePart | None) -> UsagePart | None:
        """Charge what was done until now, and go on with another part; return the one before."""
        now_s, before = self.clock.monotonic_s(), self.part
        if before is not None:
            for tally in self.tallies:
                tally.seconds[before] += now_s - self.since_s
        self.part, self.since_s = part, now_s
        return before


_current: ContextVar[_WorkTimer | None] = ContextVar("work_timer", default=None)


def _own_timer() -> _WorkTimer | None:
    """Return the timer of this thread. One that a thread has got with another's context, as `asyncio.to_thread` gives
    it, stays that other's.
    """
    timer = _current.get()
    return timer if timer is not None and timer.thread == get_ident() else None


@contextmanager
def working_for(clock: Clock, tallies: Sequence[UsageTally], part: UsagePart = UsagePart.COMPUTE) -> Iterator[None]:
    """Charge this thread's work to these, and to none that it worked for before; without tallies, to nobody.

    It is `part` as long as nothing else is said.
    """
    outer = _own_timer()
    before = None if outer is None else outer.switch(None)
    timer = _WorkTimer(clock, tallies, part)
    token = _current.set(timer)
    try:
        yield
    finally:
        timer.switch(None)
        _current.reset(token)
        if outer is not None:
            outer.switch(before)


@contextmanager
def charging(part: UsagePart) -> Iterator[None]:
    """Charge what happens within as `part` of the work."""
    timer = _own_timer()
    if timer is None:
        yield
        return
    before = timer.switch(part)
    try:
        yield
    finally:
        timer.switch(before)


def charged_as(part: UsagePart) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have the calls of a function charged as `part` of the work; it must be no generator."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            timer = _own_timer()
            if timer is None or timer.part is part:
                return function(*args, **kwargs)
            before = timer.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                timer.switch(before)

        return call

    return decorate


def charge_rest_as(part: UsagePart) -> None:
    """Charge the rest of the work as `part`, or, within a part, what is left of that."""
    if (timer := _own_timer()) is not None:
        timer.switch(part)


def charge_by_now() -> None:
    """Charge what was done until now, so that the tallies have it."""
    if (timer := _own_timer()) is not None:
        timer.switch(timer.part)


def count_work(*, rows_read: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
    """Count what was read or written for each job that this thread works for; a number below 0 is not known."""
    timer = _own_timer()
    for tally in timer.tallies if timer is not None else ():
        tally.rows_read += max(0, rows_read)
        tally.bytes_read += max(0, bytes_read)
        tally.bytes_written += max(0, bytes_written)


class _Invested(threading.local):
    seconds = 0.0


_invested = _Invested()


@contextmanager
def investing(clock: Clock) -> Iterator[None]:
    """Take the time of what happens within for an investment: whichever work is the first in a process, or of its kind,
    pays it for all that follows, as Spark's start or what is stored for later changes.
    """
    began_s, before_s = clock.monotonic_s(), _invested.seconds
    try:
        yield
    finally:
        _invested.seconds = before_s + clock.monotonic_s() - began_s  # with what is invested within


def invested_s() -> float:
    """Return the seconds that this thread has invested since it began: no measure of how long its work takes."""
    return _invested.seconds


def leave_to_spark(reason: str, *, unless_known: bool = False) -> None:
    """Say why what this thread goes on with takes Spark, which need not have started; the reason that was said last
    counts.

    Whoever decides that work takes Spark says it where it decides so. `unless_known`: it knows no more than that, and
    what was said before is the better reason.
    """
    timer = _own_timer()
    if timer is None or (unless_known and (timer.spark_reason or any(each.spark for each in timer.tallies))):
        return
    timer.spark_reason = printable(reason)


def note_spark(*, started: bool = False) -> None:
    """Note for each job that this thread works for that it uses Spark, and with `started` that it has started Spark."""
    timer = _own_timer()
    for tally in timer.tallies if timer is not None else ():
        need = (tally.spark or SparkNeed()).and_for(timer.spark_reason if timer is not None else "")
        tally.spark = replace(need, started=True) if started else need
