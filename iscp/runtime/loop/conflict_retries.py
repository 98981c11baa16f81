"""Attempts that are repeated after a conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from iscp.core.values.errors import Conflict

T = TypeVar("T")


def retry_conflicts(attempt: Callable[[], T], tries: int) -> T:
    """Do all of it again, and at once, if another was first: what there is by now decides what is to be done.

    Raises the last Conflict, and whatever else `attempt` raises.
    """
    for _ in range(tries - 1):
        try:
            return attempt()
        except Conflict:
            continue
    return attempt()
