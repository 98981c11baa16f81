"""The retention of what jobs have yet to read: holds, by which a source retains removed files and old commits, and the
route of each commit that lands on a table with jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from enum import Enum, auto
from math import ceil

from iscp.model.values.ids import JobKey

# --- holds of jobs on their sources -----------------------------------------------------------------------------------
# A hold has a source retain removed files and old commits for the jobs that read them later: it is an open table's
# lease. Delta retains both for as long as two properties of the table say; VACUUM and the cleaning of logs, by whatever
# writer, follow them. A hold raises these properties, in the user's table. Further properties of the table say which
# jobs have a hold, for how long, and what the user had set, so that several jobs may have one and the last of them
# leaves the table as it was.

HOLD_MAX_S = 30 * 86_400.0
"""The longest hold of a job on its sources; a longer one is refused. What the job has not read by the end of its hold
goes with the next VACUUM, and the job is then computed from all rows.
"""

RETENTION_MIN_S = 1.0
"""Seconds as which a shorter retention counts, such as one of 0 hours: 0 is what is not known."""

_HOLDER, _BEFORE = "iscp.hold.", "iscp.before_hold."
_DEFAULTS_S = {"delta.deletedFileRetentionDuration": 7 * 86_400.0, "delta.logRetentionDuration": 30 * 86_400.0}
"""The properties, with the seconds that count where they are not set."""
_UNITS_S = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}
_PART = re.compile(rf"(\d+)\s+({'|'.join(_UNITS_S)})s?")
_INTERVAL = re.compile(rf"(?:interval\s+)?{_PART.pattern}(?:\s+{_PART.pattern})*")


def holder_of(key: JobKey) -> str:
    """Return the name of a job's hold, the same for all its registrations."""
    return f"{key.account}/{key.table_id}/{key.job_name}"


def hold_properties(configuration: Mapping[str, str], holder: str, hold_s: float) -> dict[str, str | None]:
    """Return what has to be set (None: unset) for `holder` to have a hold of `hold_s` (0: none any more); empty for
    nothing.

    A property whose value cannot be read is left alone.
    """
    holders = {name: _seconds(value) for name, value in configuration.items() if name.startswith(_HOLDER)}
    ours = {_written(each) for each in holders.values()}  # of two that came at once, the shorter may stand there
    holders.pop(_HOLDER + holder, None)
    wanted: dict[str, str | None] = {_HOLDER + holder: None}
    if hold_s > 0:
        holders[_HOLDER + holder] = hold_s
        wanted[_HOLDER + holder] = str(ceil(hold_s))
    longest = max(holders.values(), default=0.0)
    for name, default_s in _DEFAULTS_S.items():
        now = configuration.get(name, "")
        # What is neither of a hold nor from before it, the user has set since.
        own = configuration.get(_BEFORE + name, now) if now in ours else now
        own_s = interval_s(own) if own else default_s
        if own_s is None:
            continue
        raised = longest > own_s
        wanted[name] = _written(longest) if raised else own or None
        wanted[_BEFORE + name] = own if raised else None
    return {name: value for name, value in wanted.items() if configuration.get(name) != value}


def unread_property(configuration: Mapping[str, str]) -> str:
    """Return one of the properties whose value cannot be read, as `name = value`, or an empty text if all can."""
    given = ((name, configuration.get(name, "")) for name in _DEFAULTS_S)
    return next((f"{name} = {value}" for name, value in given if value and interval_s(value) is None), "")


def retention_s(configuration: Mapping[str, str]) -> float | None:
    """Return for how many seconds at least a table retains removed files and old commits, above 0.

    None if a property says so in a way that has no fixed length.
    """
    given = [(configuration.get(name, ""), default_s) for name, default_s in _DEFAULTS_S.items()]
    found = [interval_s(text) if text else default_s for text, default_s in given]
    return None if None in found else max(RETENTION_MIN_S, min(each for each in found if each is not None))


def interval_s(text: str) -> float | None:
    """Return the seconds of an interval as Delta's writers write it, as `interval 7 days`; None if it has no fixed
    length.
    """
    written = text.strip().lower()
    if not _INTERVAL.fullmatch(written):
        return None
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(written))


def _seconds(text: str) -> float:
    """Return the seconds of a hold, 0 for a text that no hold has written: whoever may change the table can put any
    there.
    """
    return float(text) if text.isascii() and text.isdigit() and float(text) <= HOLD_MAX_S else 0.0


def _written(seconds: float) -> str:
    return f"interval {ceil(seconds)} seconds"


# --- routes of commits ------------------------------------------------------------------------------------------------
# A commit that lands on a table with jobs is left to the tail, or its change rows are retained before.

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
