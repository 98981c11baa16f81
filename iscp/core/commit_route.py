"""What becomes of a commit that lands on a table with jobs: the tail takes it, or its change rows are kept before."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto


class JobPhase(Enum):
    """`WAITING`: its build has not begun; `BUILDING`: it has, and its rows are not published; `BUILT`: it tails."""

    WAITING = auto()
    BUILDING = auto()
    BUILT = auto()


class CommitRoute(Enum):
    TAIL = auto()
    STAGING = auto()


def route_commit(phases: Collection[JobPhase]) -> CommitRoute:
    """`phases`: of the table's jobs.

    Staging never applies anything: two versions of a key may lie in different ranges of a build. It only keeps the
    change rows from being deleted (VACUUM, log cleanup) until every job that needs them has taken them, in order of
    version. What is committed before a build begins is for its snapshot, or for whoever tails already.
    """
    return CommitRoute.STAGING if JobPhase.BUILDING in phases else CommitRoute.TAIL
