"""The port by which jobs have tables retain what they have yet to read, and release it."""

from __future__ import annotations

from typing import Protocol


class RetentionHold(Protocol):
    """Has a table retain removed files and old commits for a job, for so many seconds after they have gone.

    A holder is named by `holder_of` (iscp.core.job.source_holds); several may hold a table, and the longest hold
    counts. Both methods raise Conflict if another writer was first, and StorageError, EngineError or InvalidRequest
    where the table cannot be read or altered.
    """

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        """Have the table retain both; return whether it was altered for it, which gives it a version without a row."""

    def release(self, uri: str, holder: str) -> None:
        """Leave the table as it would be without this holder."""


class NothingHeld:
    """The port RetentionHold where no table is ever altered."""

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        return False

    def release(self, uri: str, holder: str) -> None:
        pass
