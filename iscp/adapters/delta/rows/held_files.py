"""Rows of small data files, held decoded between the changes of their tables, as a data file never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import pyarrow as pa

HELD_BYTES_MAX = 64 * 1024**2
"""Bytes of decoded rows that a node holds, of all tables together; the longest unused are dropped, and read again."""

HELD_FILE_BYTES_MAX = 4 * 1024**2
"""Bytes of a data file whose rows are held; of a larger one only what a change needs is read, each time."""


class HeldFiles:
    """Safe for threads."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX, file_bytes_max: int = HELD_FILE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.file_bytes_max = file_bytes_max
        self._rows: OrderedDict[Hashable, pa.Table] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def rows(self, file: Hashable, read: Callable[[], pa.Table]) -> pa.Table:
        """Of the file, and the columns of it, that `file` names. If they are not here `read` gives them, or raises."""
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


HELD_FILES = HeldFiles()
"""Of this process."""
