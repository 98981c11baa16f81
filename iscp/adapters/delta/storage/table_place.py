"""Whether there is a place for a table: nobody creates the directories above it, which may be a volume's."""

from __future__ import annotations

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import place
from iscp.core.errors import StorageError


def require_place(uri: str) -> None:
    """Raises StorageError where the directory in which the table is to lie is not there."""
    if not files.parent_is_there(place(uri)):
        raise StorageError(f"the directory of the target {uri} is not there", remedy="Mount or create it")
