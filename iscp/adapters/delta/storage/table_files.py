"""The files of a table that this process writes itself: where they are, and that they outlive a power loss."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.locations import local_path


def files_of(uri: str) -> pafs.FileSystem:
    """With paths as the table's log has them."""
    path = local_path(uri)
    if path is not None:
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options=table_options(uri) or {}))


def sync(path: Path) -> None:
    """A file, or the names in a directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
