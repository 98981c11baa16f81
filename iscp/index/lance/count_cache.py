"""Caches files of word counts for all indexes of a process, within a bound: a file never changes."""

from __future__ import annotations

import pyarrow as pa

from iscp.index.lance.recent_values import RecentValues
from iscp.index.lance.word_counts import CountFile, find_table, read_table

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""

SMALL_BYTES_MAX = 128 * 1024
"""Bytes of a file of counts that is cached apart: one is read again in a fraction of a millisecond."""

SMALL_CACHED_BYTES_MAX = 8 * 1024**2
"""Bytes of such files that a process caches in addition, so that thousands of small indexes need no more."""


def _bytes(file: CountFile) -> int:
    return file.bytes


_Files = RecentValues[tuple[str, str], CountFile]
_LARGE: _Files = RecentValues(CACHED_BYTES_MAX, _bytes)
_SMALL: _Files = RecentValues(SMALL_CACHED_BYTES_MAX, _bytes)


def cache_counts(root: str, name: str, table: pa.Table) -> None:
    """Cache what was written to a file of counts now, as searches of this process read it next."""
    _keep(root, name, CountFile(table))


def cached_counts(root: str, name: str) -> CountFile:
    """Return a file of counts of the dataset at `root`. Raises StorageError."""
    return _find(root, name) or _keep(root, name, CountFile(read_table(root, name)))


def found_counts(root: str, name: str) -> CountFile | None:
    """Return a file of counts that may be missing; None where it is. Raises StorageError."""
    if (cached := _find(root, name)) is not None:
        return cached
    table = find_table(root, name)
    return None if table is None else _keep(root, name, CountFile(table))


def _find(root: str, name: str) -> CountFile | None:
    return _LARGE.get((root, name)) or _SMALL.get((root, name))


def _keep(root: str, name: str, read: CountFile) -> CountFile:
    cache = _SMALL if read.bytes <= SMALL_BYTES_MAX else _LARGE
    return cache.put((root, name), read)
