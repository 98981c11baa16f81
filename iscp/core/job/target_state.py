"""The state of a job's target as last seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from iscp.core.job.job_row import JobRow
from iscp.core.job.start_rule import ProbeState


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """A target as last seen: `state` is that of the log at `uri` when the target had what was applied to it.

    Without a URI there is nothing that can be probed at the cost of a `stat`.
    """

    uri: str = ""
    state: ProbeState | None = None


class TargetQuery(NamedTuple):
    """A job's target is to be probed, going on from `seen` (None: for the first time).

    A named tuple, as one is made for each idle job at each probe.
    """

    row: JobRow
    seen: TargetSeen | None
