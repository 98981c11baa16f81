"""Find the jobs that nodes' processes have died of, by what these left when a native library crashed them.

A fault of Python is the iteration's own. A fault in a library of another language ends the whole process: it aborts, or
touches memory that is not its own. The same work would end it again as soon as it is back.
A job's deaths count at all nodes together, and those of an account's jobs too: there are always further jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import NodeKilled

DEATHS_MAX = 2
"""How often in a row nodes' processes crash while a job is at work, before no node runs the job."""

KILLS_FEARED = 2
"""How often in a row nodes' processes are killed while a job is at work, before it runs alone."""

KILLS_MAX = 5
"""How often in a row nodes' processes are killed while a job is at work, before no node runs the job."""

ACCOUNT_DEATHS_FEARED = 2
"""Of how many deaths within a day jobs of one account are suspected, before each job of it runs alone."""

ACCOUNT_DEATHS_MAX = 4
"""Of how many deaths within a day jobs of one account are suspected, before none of its jobs runs."""

ACCOUNT_DEATHS_S = 86_400.0
"""Seconds for which a death counts for an account."""

KILLED = "Killed"
"""The signal of a process that ended without a word."""

_SIGNAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_CURRENT = re.compile(r"^Current thread 0x([0-9a-f]+).*\n((?:  .*\n?)*)", re.MULTILINE)
# Of what helps a job's thread, as it reads files side by side; calls of others are answered in such threads too.
_OF_POOL, _OF_CALLS = "concurrent/futures/thread.py", "/grpc/"


class AtWork(NamedTuple):
    """Jobs on which a thread of Python was at work, by their job_ids, with their accounts and names."""

    thread: int
    table_uri: str
    jobs: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the process, with its `signal` in Python's words, as `Aborted`.

    `thread` is the thread of Python that crashed, with its `stack`; None: it was one of a library's own. With `helps`
    it is one of several among which a job's work is spread.
    """

    signal: str
    thread: int | None = None
    stack: str = ""
    helps: bool = False


@dataclass(frozen=True, slots=True)
class Deaths:
    """The deaths of one job in a row: how many crashes, and the last of all (Unix seconds, and by which signal).

    `kills` are the ends by SIGKILL, as of a process that takes too much memory. People send that as well, and whatever
    was at work then is suspected: so more of them count. `forgiven_at_s` is when the fault was reported that a person
    has had tried again since; 0: none was. `account` is the job's.
    """

    count: int = 0
    at_s: float = 0.0
    signal: str = ""
    forgiven_at_s: float = 0.0
    kills: int = 0
    account: str = ""

    @property
    def some(self) -> bool:
        return self.count + self.kills > 0

    @property
    def feared(self) -> bool:
        return self.count > 0 or self.kills >= KILLS_FEARED

    @property
    def too_many(self) -> bool:
        return self.count >= DEATHS_MAX or self.kills >= KILLS_MAX

    @property
    def described(self) -> str:
        at = datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="seconds")
        return f"{self.count + self.kills} times in a row, the last time at {at} ({self.signal})"


def parse_crash(dump: str) -> Crash | None:
    """Return the crash that Python's fault handler wrote down as the process died, or None if it did not die so."""
    found = _SIGNAL.search(dump)
    if found is None:
        return None
    current = _CURRENT.search(dump)
    if current is None:
        return Crash(found[1])
    stack = current[2].rstrip()
    return Crash(found[1], int(current[1], 16), stack, _OF_POOL in stack and _OF_CALLS not in stack)


def suspects(crash: Crash, at_work: Iterable[AtWork]) -> Sequence[AtWork]:
    """Return the work that may have crashed: that of the thread, or all where a thread works for any of them, or is
    unknown.
    """
    all_of_them = list(at_work)
    own = [each for each in all_of_them if each.thread == crash.thread]
    if own or not (crash.thread is None or crash.helps):
        return own
    return all_of_them


def counted_together(row: JobRow, own: Deaths, elsewhere: Iterable[Deaths]) -> Deaths:
    """Return a job's deaths in a row at a node and at others, whose own do not count once it has run well since."""
    forgotten_s = own.forgiven_at_s if row.status.error_code else max(row.status.end_at_s, own.forgiven_at_s)
    later = [each for each in elsewhere if each.some and each.at_s > forgotten_s]
    last = max((own, *later), key=lambda each: each.at_s)
    return replace(
        own,
        count=own.count + sum(each.count for each in later),
        kills=own.kills + sum(each.kills for each in later),
        at_s=last.at_s,
        signal=last.signal,
    )


def deaths_of_account(account: str, deaths: Iterable[Deaths], now_s: float) -> int:
    """Return of how many deaths jobs of the account are suspected; one of which several are suspected is one."""
    since_s = now_s - ACCOUNT_DEATHS_S
    return len({each.at_s for each in deaths if each.account == account and each.feared and each.at_s > since_s})


def killed(deaths: Deaths) -> NodeKilled:
    """Return the error that says why a job does not run any more."""
    return NodeKilled(
        f"the process of a node died while it worked for the job, {deaths.described}: no node runs it any more",
        remedy="Repair what a library crashes at (`node.crashed` in the node's log has the stack), then "
        "`iscp-admin job resume`",
    )


def killed_by_account(account: str, deaths: int) -> NodeKilled:
    """Return the error that says why no job of an account runs for a while."""
    return NodeKilled(
        f"processes of nodes died {deaths} times within a day while they worked for jobs of the account {account!r}: "
        "none of its jobs runs before the first of these is a day ago",
        remedy="Repair or drop the jobs of which they died (`node.crashed` in the nodes' logs names them and has the "
        "stack), then `iscp-admin job resume` for each of them",
    )
