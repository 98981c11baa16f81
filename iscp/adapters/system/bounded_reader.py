"""Reading from a connection to which somebody else writes, for a bounded time and up to a bounded size."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class BoundedReader(io.RawIOBase):
    """Reads from a connection, until a time and up to a number of bytes, however slowly they come.

    Raises OSError beyond.
    """

    def __init__(self, connection: socket.socket, timeout_s: float, bytes_max: int) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + timeout_s
        self._left = bytes_max

    def readable(self) -> bool:
        return True

    def allow(self, more: int) -> None:
        """Allow `more` bytes besides."""
        self._left += more

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not come in time")
        if self._left <= 0:
            raise ConnectionAbortedError("it is too long")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
