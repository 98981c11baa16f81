"""Charges a thread's time, what it reads and writes, and its need of Spark, to the jobs that it works for.

The runner says for whom a thread works; what reads for jobs, or commits for them, says so where it does. Nobody passes
anything on for that, and where a thread works for nobody, nothing is measured. The part that is innermost counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from threading import get_ident
from typing import ParamSpec, TypeVar

from iscp.model.job.iteration import SECONDS_MOST, SparkNeed, Usage, UsagePart
from iscp.model.values.untrusted_values import COUNT_MOST, printable
from iscp.ports.system import Clock

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
