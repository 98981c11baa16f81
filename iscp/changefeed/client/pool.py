"""Lends things that cost something to open and are used by one thread at a time, and pools them for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from iscp.adapters.system.process_fork import Before, refuse_fork

T = TypeVar("T")

IDLE_MAX = 8
"""Idle handles on a feed's table that a process keeps; beyond them a returned handle is dropped."""


class Pool(Generic[T]):
    """From any thread."""

    def __init__(self, opened: Callable[[], T]) -> None:
        self._opened = opened
        self._idle: list[T] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[T]:
        """Lend one for the `with` block, which nobody else has meanwhile; it is dropped where the block raises.

        Raises InvalidRequest in a fork of a process that has read tables.
        """
        refuse_fork("changefeed", Before.TABLES)
        with self._lock:
            one = self._idle.pop() if self._idle else None
        if one is None:
            one = self._opened()
        yield one
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(one)
