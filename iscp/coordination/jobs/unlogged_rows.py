"""Rows of the book that the job log does not have yet, by their job_ids, in the order in which they first moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice


class UnloggedRows:
    """The rows that the log does not have yet. A row in which only a watermark has moved need not be written soon: it
    is due after `flush`.
    """

    def __init__(self) -> None:
        self._due: dict[str, None] = {}
        self._by_watermark: dict[str, None] = {}

    def add(self, job_id: str, *, due: bool) -> None:
        """Add a row; `due` says that more than its watermark has moved."""
        (self._due if due else self._by_watermark)[job_id] = None

    def remove(self, job_ids: Iterable[str]) -> None:
        """Remove rows that the log has, or whose jobs have gone."""
        for job_id in job_ids:
            self._due.pop(job_id, None)
            self._by_watermark.pop(job_id, None)

    def due(self, limit: int) -> Iterator[str]:
        return islice(self._due, limit)

    def flush(self) -> int:
        """Make all rows due from now on, and return how many there are."""
        self._due |= self._by_watermark
        self._by_watermark.clear()
        return len(self._due)
