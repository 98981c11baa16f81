"""Files below the job log's table that no version of it needs: replaced ones, and those of commits that failed."""

from __future__ import annotations

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.table_files import files_of

TIDY_FILES_MAX = 1_000_000
"""Files that one pass deletes; the next pass takes the others."""


class OrphanFiles:
    """Deletes the orphan files of one table; used by one thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._files = files_of(uri)
        self._unneeded: set[str] = set()

    def delete(self) -> int:
        """Delete the files that the call before this one found unneeded already, and return how many; commit
        nothing.
        """
        try:
            table = open_delta(self._uri)
            unneeded = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True))
            # Of the last two calls: a file that is new is that of a commit on its way, which no version names yet.
            doomed = sorted(unneeded & self._unneeded)[:TIDY_FILES_MAX]
            for name in doomed:
                self._files.delete_file(name)
        except FOREIGN_ERRORS as error:
            raise storage_error(error, "cannot tidy the job log") from error
        self._unneeded = unneeded.difference(doomed)
        return len(doomed)
