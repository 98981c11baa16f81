"""Caches files of word counts for all indexes of a process, within a bound: a file never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from iscp.index.lance.word_counts import CountFile, find_table, read_table

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""


class _CountCache:
    def __init__(self) -> None:
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
            if key not in self._files and read.bytes <= CACHED_BYTES_MAX:
                self._files[key] = read
                self._bytes += read.bytes
            while self._bytes > CACHED_BYTES_MAX:
                self._bytes -= self._files.popitem(last=False)[1].bytes
        return read


_CACHE = _CountCache()


def cached_counts(root: str, name: str) -> CountFile:
    """Return a file of counts of the dataset at `root`. Raises StorageError."""
    return _CACHE.find(root, name) or _CACHE.keep(root, name, CountFile(read_table(root, name)))


def found_counts(root: str, name: str) -> CountFile | None:
    """Return a file of counts that may be missing; None where it is. Raises StorageError."""
    if (cached := _CACHE.find(root, name)) is not None:
        return cached
    table = find_table(root, name)
    return None if table is None else _CACHE.keep(root, name, CountFile(table))
