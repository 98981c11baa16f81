"""Caches the decoded rows of small data files between the changes of their tables, as a data file never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import pyarrow as pa

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of decoded rows in a node's cache, of all tables together; the longest unused are dropped, and read again."""

CACHED_FILE_BYTES_MAX = 4 * 1024**2
"""Bytes of a data file whose rows are cached; of a larger one only what a change needs is read, each time."""


class RowCache:
    """Caches the rows of data files; threads may share it."""

    def __init__(self, bytes_max: int = CACHED_BYTES_MAX, file_bytes_max: int = CACHED_FILE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.file_bytes_max = file_bytes_max
        self._rows: OrderedDict[Hashable, pa.Table] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def rows(self, file: Hashable, read: Callable[[], pa.Table]) -> pa.Table:
        """Return the rows of `file`, which names a file and the columns of it; if they are not cached, `read` returns
        them, or raises.
        """
        with self._lock:
            if file in self._rows:
                self._rows.move_to_end(file)
                return self._rows[file]
        rows = read()
        with self._lock:
            if file not in self._rows:
                self._rows[file] = rows
                self._bytes += rows.nbytes
            while self._bytes > self._bytes_max:
                self._bytes -= self._rows.popitem(last=False)[1].nbytes
        return rows


ROW_CACHE = RowCache()
"""The cache of this process."""
