"""The files of a table that this process writes itself: where they are, and that they outlive a power loss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler


def local_path(uri: str) -> Path | None:
    """The directory behind a path or file URI; None for an object store."""
    parts = urlsplit(uri)
    if len(parts.scheme) <= 1:  # none, or a drive letter
        return Path(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def files_of(uri: str, options: Mapping[str, str] | None) -> pafs.FileSystem:
    """With paths as the table's log has them."""
    path = local_path(uri)
    if path is not None:
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options=dict(options or {})))


def sync(path: Path) -> None:
    """A file, or the names in a directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
