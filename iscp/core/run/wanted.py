"""A job as a file or a program wants it."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.api.api_requests import RegisterRequest

TAGS_MAX = 100
"""Tags of one job in a job file; more are refused."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that is wanted, and where it is written (`jobs/sales.yaml[3]`).

    `rebuild`: the target may be rebuilt if the user agrees. `leave`: a job of this name that is there stays as it is.
    `tags`: names by which commands choose it; no job log has them.
    """

    request: RegisterRequest
    place: str
    rebuild: bool = False
    leave: bool = False
    tags: tuple[str, ...] = ()
