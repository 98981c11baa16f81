"""Reads of jobs' targets on threads of their own, as a storage that hangs must block no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import IscpError, PermanentError, QueueFull, TimedOut
from iscp.core.values.untrusted_values import error_text
from iscp.runtime.access.place_guard import PlaceGuard

T = TypeVar("T")

READERS_MAX = 4
"""Targets that are read at a time for one purpose. While so many reads hang, further ones are refused."""


class TargetReads:
    """Reads on threads whose names begin with `name`, each for up to `read_s` seconds. Safe for threads."""

    def __init__(self, places: PlaceGuard, read_s: float, name: str) -> None:
        self._places = places
        self._read_s = read_s
        self._free = threading.Semaphore(READERS_MAX)
        self._pool = ThreadPoolExecutor(READERS_MAX, name)

    def run(self, row: JobRow, read: Callable[[], T]) -> T:
        """Return what `read` returns of the job's target.

        Raises the IscpError that it raises, PermanentError for whatever else, InvalidRequest for a target that the
        account may not have, QueueFull and TimedOut.
        """
        if not self._free.acquire(blocking=False):
            raise QueueFull(
                f"they were not read: {READERS_MAX} other targets are being read", remedy="Try again in a moment"
            )
        future = self._pool.submit(self._read, row, read)
        future.add_done_callback(self._release)
        if not wait([future], self._read_s).done:
            raise TimedOut(f"they could not be read within {self._read_s:.3g} s", remedy="Is the storage slow?")
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, IscpError):
            raise error
        raise PermanentError(error_text(error), remedy="Read it yourself: its consumer cannot") from error

    def _read(self, row: JobRow, read: Callable[[], T]) -> T:
        # A link that was put there since the job was registered leads nowhere else.
        self._places.require_target(row.key.account, row.spec.consumer.target, "target")
        return read()

    def _release(self, future: Future[T]) -> None:
        self._free.release()
