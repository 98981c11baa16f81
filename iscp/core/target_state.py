"""What was last seen of a job's target."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.job_row import JobRow
from iscp.core.start_rule import ProbeState


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """`state` is that of the log at `uri` when the target was found to hold what was applied to it.

    Without a URI there is nothing that can be probed at the cost of a `stat`.
    """

    uri: str = ""
    state: ProbeState | None = None


@dataclass(frozen=True, slots=True)
class TargetQuery:
    """A job's target is to be probed, going on from `seen` (None: for the first time)."""

    row: JobRow
    seen: TargetSeen | None
