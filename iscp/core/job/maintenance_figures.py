"""The figures of a job's refreshes, and of the purges of its table, on the node that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iscp.core.values.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class MaintenanceFigures:
    """The figures of refreshes or purges; `running` and `waiting` are as of now, the other counts since the node took
    the job up.

    `hanging` is set while one runs that was given up as it took too long. With `quarantined` it keeps failing, or has
    failed for good, and is tried rarely. `error_code` and `error_msg` are the last one's, OK and empty after a success.
    `next_at_s` is Unix time, 0 while it runs or waits for a slot.
    """

    submitted: int = 0
    running: int = 0
    waiting: int = 0
    completed: int = 0
    failed: int = 0
    timeout: int = 0
    rejected: int = 0
    hanging: bool = False
    quarantined: bool = False
    error_code: int = ErrorCode.OK
    error_msg: str = ""
    next_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobMaintenance:
    """The figures of a job's maintenance, each None if its consumer offers no such thing, or if no node could be
    reached.
    """

    refresh: MaintenanceFigures | None = None
    purge: MaintenanceFigures | None = None


NO_MAINTENANCE = JobMaintenance()


def summed(of_ranges: Sequence[MaintenanceFigures]) -> MaintenanceFigures | None:
    """Return the figures of a job on a split table: the counts of all its ranges, and the fault of one that has any."""
    if not of_ranges:
        return None
    worst = max(of_ranges, key=lambda each: (each.quarantined, each.hanging, each.error_code != ErrorCode.OK))
    counts = {name: sum(getattr(each, name) for each in of_ranges) for name in _COUNTS}
    next_times = [each.next_at_s for each in of_ranges if each.next_at_s]
    return replace(worst, **counts, next_at_s=min(next_times, default=0.0))


_COUNTS = ("submitted", "running", "waiting", "completed", "failed", "timeout", "rejected")
