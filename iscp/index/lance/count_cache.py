"""Caches files of word counts for all indexes of a process, within a bound: a file never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from iscp.index.lance.word_counts import CountFile, find_table, read_table

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""

SMALL_BYTES_MAX = 128 * 1024
"""Bytes of a file of counts that is cached apart: one is read again in a fraction of a millisecond."""

SMALL_CACHED_BYTES_MAX = 8 * 1024**2
"""Bytes of such files that a process caches in addition, so that thousands of small indexes need no more."""


class _CountCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str], CountFile] = OrderedDict()
        self._bytes = 0

    def find(self, root: str, name: str) -> CountFile | None:
        with self._lock:
            if (found := self._files.get((root, name))) is not None:
                self._files.move_to_end((root, name))
            return found

    def keep(self, root: str, name: str, read: CountFile) -> CountFile:
        key = root, name
        with self._lock:
            if key not in self._files and read.bytes <= self._bytes_max:
                self._files[key] = read
                self._bytes += read.bytes
            while self._bytes > self._bytes_max:
                self._bytes -= self._files.popitem(last=False)[1].bytes
        return read


_LARGE, _SMALL = _CountCache(CACHED_BYTES_MAX), _CountCache(SMALL_CACHED_BYTES_MAX)


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
    return _LARGE.find(root, name) or _SMALL.find(root, name)


def _keep(root: str, name: str, read: CountFile) -> CountFile:
    cache = _SMALL if read.bytes <= SMALL_BYTES_MAX else _LARGE
    return cache.keep(root, name, read)
