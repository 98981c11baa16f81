"""Route a commit that lands on a table with jobs: the tail takes it, or its change rows are retained before."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

REPAIR_MARK = "iscp.repair"
"""The user metadata of a commit marked as a repair; or, where that is a JSON object, a name in it that is true."""

_RESTORE = "RESTORE"


class JobPhase(Enum):
    """A job's phase: `WAITING` while its turn is not near, `BUILDING` while it is built or next, `BUILT` once it
    tails.
    """

    WAITING = auto()
    BUILDING = auto()
    BUILT = auto()


class CommitRoute(Enum):
    TAIL = auto()
    STAGING = auto()


def route_commit(phases: Collection[JobPhase], *, repair: bool = False) -> CommitRoute:
    """Route a commit by the `phases` of the table's jobs; `repair` says whether it is one (is_repair).

    Staging never applies anything: two versions of a key may lie in different ranges of a build. It only protects the
    change rows from deletion (VACUUM, log cleanup) until every job that needs them has taken them, in order of version.
    What is committed before a build begins is for its snapshot, or for whoever tails already. What a repair takes back
    is often deleted at once: so it is retained too where all jobs tail.
    """
    staged = JobPhase.BUILDING in phases or (repair and JobPhase.BUILT in phases)
    return CommitRoute.STAGING if staged else CommitRoute.TAIL


def is_repair(operation: str, user_metadata: str) -> bool:
    """Return whether a commit puts the table back to what it was or should have been.

    Its commitInfo says so: it is a RESTORE, or is marked by REPAIR_MARK.
    """
    if operation == _RESTORE or user_metadata == REPAIR_MARK:
        return True
    if REPAIR_MARK not in user_metadata:
        return False
    try:
        metadata = json.loads(user_metadata)
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and metadata.get(REPAIR_MARK) is True
