"""The port to where jobs are written down, and who is given reports of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobRow, LogEntry


class JobLog(Protocol):
    """The Delta table that holds every job. One writer at a time, by the fence of its term.

    One instance serves one term. Whatever writes raises NotOwner once another term was seen; with it, with StorageError
    and with Unavailable nothing was committed, unless this repeats what was in doubt. OutcomeUnknown: it may have been,
    before the term ended, or may still be, or the storage could not be read.
    Writes come from one thread; history and `tidy` may be called from others.
    """

    @property
    def commits_since_compaction(self) -> int: ...

    @property
    def version(self) -> int:
        """Return the last version of the log that is known; -1 before it is claimed."""

    def claim_term(self) -> int:
        """Mint owner_rev, the last term + 1, by a claim commit; nothing may be read or done before."""

    def load(self) -> list[JobRow]:
        """Return the last row of every registration (`job_id`), oldest first, dropped ones too until they are
        collected.
        """

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Commit at exactly the next version.

        After OutcomeUnknown the next append must carry the same entries: it finds out, and commits them if need be.
        """

    def requests(self) -> Mapping[str, Sequence[str]]:
        """Return the request ids still in the log by the `job_id` that they were about, oldest first; known after
        `load`.
        """

    def compact(self, rows: Sequence[JobRow]) -> None:
        """Replace all entries by the last row of every registration that is still to be known."""

    def tidy(self) -> int:
        """Delete files that the call before found unneeded already; answers how many. Commits nothing to the log."""

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        """Append entries. Raises StorageError, and InvalidRequest if one of them cannot be stored: then none was
        written.
        """

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first."""
