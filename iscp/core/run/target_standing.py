"""Decide how a target stands to a run that wants to keep it: the id of its last commit says whose it is."""

from __future__ import annotations

from enum import StrEnum

from iscp.core.job.registration_id import marked_job_id, parse_job_id
from iscp.core.values.ids import next_job_id
from iscp.core.values.watermark import Position


class TargetStanding(StrEnum):
    """A target stands to a run in one of these ways.

    NEW: nobody has claimed it. SAME: a run keeps it under the wanted spec, and this one goes on under its id.
    KEPT_BY_CLUSTER: a job of a cluster keeps it, or it does not say who does; a run only takes it over if its user says
    so. OTHER_SPEC: a run keeps it under another spec, and its rows have to be built.
    """

    NEW = "new"
    SAME = "same"
    KEPT_BY_CLUSTER = "kept_by_cluster"
    OTHER_SPEC = "other_spec"


def standing_for_run(position: Position, mark: str) -> TargetStanding:
    """Return how the target at `position` stands to a run whose job has this mark."""
    if position.seq == 0 and not position.job_id:
        return TargetStanding.NEW
    found = parse_job_id(position.job_id)
    if not found.run:
        return TargetStanding.KEPT_BY_CLUSTER
    return TargetStanding.SAME if found.mark == mark else TargetStanding.OTHER_SPEC


def job_id_for_run(position: Position, mark: str, now_s: float, *, full: bool) -> str:
    """Return the id under which a run begins with the target at `position`, or builds it again.

    It is later than the one there, also where a clock is behind. `full`: the target is built from nothing.
    """
    return marked_job_id(next_job_id(now_s, parse_job_id(position.job_id).time), mark, run=True, full=full)
