"""Notes in the directory of a Delta table, which are no part of it: small files about what lies there.

Their names begin with an underscore: such files are neither data to Spark, when it reads a directory without its log,
nor anything that VACUUM removes, whoever runs it.
"""

from __future__ import annotations

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import place
from iscp.core.values.errors import StorageError


def read_note(uri: str, name: str, bytes_max: int) -> bytes | None:
    """Return the content of a note; None: there is none.

    Raises StorageError, also for one that is larger, or no regular file, of which nothing is read.
    """
    path = _path(uri, name)
    try:
        with storage_faults(f"read {path}"):
            return files.read(path, bytes_max)[0]
    except FileNotFoundError:
        return None


def write_note(uri: str, name: str, content: bytes) -> None:
    """Write a note in the place of the one that is there. Raises StorageError."""
    path = _path(uri, name)
    try:
        with storage_faults(f"write {path}"):
            files.replace(path, content)
    except FileNotFoundError as error:
        raise StorageError(f"cannot write {path}: the directory is gone") from error


def _path(uri: str, name: str) -> str:
    return f"{place(uri)}/_iscp-{name}.json"
