"""The state of a job's target as last seen, and the kinds of logs that show whether somebody has written to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from iscp.core.job.job_row import JobRow
from iscp.core.job.start_rule import ProbeState


class TargetLog(StrEnum):
    """The kind of log that a target has: a Delta table's, a Lance dataset's, or none that can be probed."""

    NONE = "none"
    DELTA = "delta"
    LANCE = "lance"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """A target as last seen: `state` is that of the log at `uri` when the target had what was applied to it.

    Without a URI there is nothing that can be probed at the cost of a `stat`. With one this is a Delta table: nearly
    all targets are, a hundred thousand of them in one node, and nothing is stored of each that says so.
    """

    uri: str = ""
    state: ProbeState | None = None

    @property
    def log(self) -> TargetLog:
        """Return the kind of log that was seen."""
        return TargetLog.DELTA if self.uri else TargetLog.NONE


@dataclass(frozen=True, slots=True)
class OtherTargetSeen(TargetSeen):
    """A target as last seen that has a log of a kind other than Delta's."""

    kind: TargetLog = TargetLog.NONE

    @property
    def log(self) -> TargetLog:
        return self.kind


def seen_target(log: TargetLog, uri: str, state: ProbeState) -> TargetSeen:
    """Return a target with a log of that kind as last seen."""
    return TargetSeen(uri, state) if log is TargetLog.DELTA else OtherTargetSeen(uri, state, log)


class TargetQuery(NamedTuple):
    """A job's target is to be probed, going on from `seen` (None: for the first time).

    A named tuple, as one is made for each idle job at each probe.
    """

    row: JobRow
    seen: TargetSeen | None
