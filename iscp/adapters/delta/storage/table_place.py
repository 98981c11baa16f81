"""Checks that there is a place for a table: nobody creates the directories above it, which may be a volume's."""

from __future__ import annotations

import posixpath

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import place
from iscp.core.values.argument_checks import unwritten_sign
from iscp.core.values.errors import ErrorCode, InvalidRequest, StorageError


def require_place(uri: str) -> None:
    """Raises StorageError where the directory in which the table is to lie is not there, and as `missing_parent`."""
    if missing_parent(uri):
        raise StorageError(f"the directory of the target {uri} is not there", remedy="Mount or create it")


def missing_parent(uri: str) -> str:
    """The directory that is to hold a table, where it is not there; empty: it is, or the store has none.

    Raises StorageError where that cannot be seen, InvalidRequest where no table can be written.
    """
    at = place(uri)
    if fault := unwritten_sign(at):
        raise InvalidRequest(fault[0], about="target", remedy=fault[1], code=ErrorCode.TARGET_UNUSABLE)
    with storage_faults(f"look for the directory of {uri}"):
        return "" if files.parent_is_there(at) else posixpath.dirname(at)
