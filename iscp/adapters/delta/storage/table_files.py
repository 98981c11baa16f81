"""The files of a table that this process writes itself: where they are, and that they outlive a power loss."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from iscp.adapters.delta.storage.action_paths import path_below, place_of_file
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.locations import S3, local_path
from iscp.adapters.delta.storage.regular_files import open_regular

UNSAID_BYTES_MAX = 1024**2
"""Bytes that a data file may have beyond those that the log says; a larger one is not read without Spark."""


def files_of(uri: str) -> pafs.FileSystem:
    """Return the file system of the table at `uri`, in which paths are those of the table's log."""
    path = local_path(uri)
    if path is not None:
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options=table_options(uri) or {}))


def open_input(uri: str, path: str, size: int | None) -> pa.NativeFile:
    """Open a data file that whoever writes the table has put there, by its path and size as the log has them.

    Raises FileNotFoundError, OSError, RefusedFile where it is no regular file, or a larger one, and StorageError where
    the path leads out of the table.
    """
    at = place_of_file(uri, path)
    if at.startswith(S3):
        return files_of(uri).open_input_file(path_below(path))
    with open_regular(at, None if size is None else size + UNSAID_BYTES_MAX) as (handle, _):
        return pa.PythonFile(os.fdopen(os.dup(handle), "rb", buffering=0), mode="r")


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
