"""Delta tables, opened by deltalake while others write to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

LISTINGS_MAX = 8
"""Listings of a table's log before a commit that is missing between two others counts as missing."""

_GAP = "found gap"

R = TypeVar("R")


def open_delta(uri: str, version: int | None = None) -> DeltaTable:
    """As of `version`, or of the newest. Raises what deltalake raises."""
    return list_again(partial(DeltaTable, uri, version=version))


def bring_up(table: DeltaTable) -> None:
    """Take in what was committed since. Raises what deltalake raises."""
    list_again(table.update_incremental)


def list_again(read: Callable[[], R]) -> R:
    """What `read` gives, which lists a log.

    A directory that is listed while others write to it may show a commit and not the one before it, so that deltalake
    finds a gap where there is none: half of all listings where 500 commits a second came to 6,000.
    """
    for _ in range(LISTINGS_MAX - 1):
        try:
            return read()
        except DeltaError as error:
            if _GAP not in str(error):
                raise
    return read()
