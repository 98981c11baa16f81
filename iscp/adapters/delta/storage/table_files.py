"""The files of a table: the one way to open one that others may have written, and what this process writes itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from iscp.adapters.delta.storage.action_paths import path_below
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.locations import S3, local_path, place
from iscp.adapters.delta.storage.regular_files import open_below

UNSAID_BYTES_MAX = 1024**2
"""Bytes that a data file may have beyond those that the log says; a larger one is not read without Spark."""


def files_of(uri: str) -> pafs.FileSystem:
    """Return the file system of the table at `uri`, in which paths are those of the table's log."""
    path = local_path(uri)
    if path is not None:
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options=table_options(uri) or {}))


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table that is open; `read_at` returns so many bytes (2nd) from a place on (1st), fewer at its end."""

    path: str
    size: int
    read_at: Callable[[int, int], bytes]

    def read(self) -> bytes:
        """Return all of it, as much as it had when it was opened."""
        parts, at = [], 0
        while at < self.size and (part := self.read_at(at, self.size - at)):
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_input(uri: str, path: str, size: int | None) -> Iterator[TableFile]:
    """Open a file that whoever writes the table has put there, by its path and size as the log has them.

    This is the one way to such a file (`tests/unit/test_table_files_only.py`): a regular one, below the table, to which
    no link leads. Raises FileNotFoundError, OSError, RefusedFile where it is no such file, or a larger one, and
    StorageError where the path leads out of the table.
    """
    named, top = path_below(path), place(uri)
    if top.startswith(S3):
        with files_of(uri).open_input_file(named) as opened:
            yield TableFile(f"{top}/{named}", opened.size(), lambda begin, length: opened.read_at(length, begin))
        return
    with open_below(top, named, None if size is None else size + UNSAID_BYTES_MAX) as (handle, about):
        yield TableFile(f"{top}/{named}", about.st_size, lambda begin, length: os.pread(handle, length, begin))


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
