"""Caches files of word counts for all indexes of a process, within a bound: a file never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from iscp.index.lance.word_counts import CountFile, read_table

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""


class _CountCache:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str], CountFile] = OrderedDict()
        self._bytes = 0

    def get(self, root: str, name: str) -> CountFile:
        key = root, name
        with self._lock:
            if (found := self._files.get(key)) is not None:
                self._files.move_to_end(key)
                return found
        read = CountFile(read_table(root, name))
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
    return _CACHE.get(root, name)
