"""A Delta table that is appended to in batches, without a fence, and read now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.table_opening import bring_up
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.locations import local_path
from iscp.core.values.errors import StorageError

log = logging.getLogger(__name__)

APPENDED_TABLE = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}
"""Properties of the tables that are appended to all the time, and read now and then."""

SMALL_FILES_MAX = 200
"""Small files of the audit, or of the history, at which the node that appends merges them, and deletes old entries of
the history and files that are no longer needed. Entries of the audit are never deleted.
"""

SMALL_FILE_BYTES = 1 << 20
"""Bytes below which a file of them is a small one."""

ATTEMPTS_MAX = 8
"""Attempts to append to the audit, each after another node's commit was in the way; then it is tried again later."""


class AppendedTable:
    """Appends from one thread."""

    def __init__(
        self,
        uri: str,
        name: str,
        open_table: Callable[[], DeltaTable],
        *,
        not_compacted: str,
        shared: bool = False,
        conform: Callable[[DeltaTable, pa.Table], pa.Table] = lambda table, rows: rows,
        fault: Callable[[BaseException, str], StorageError] = storage_error,
        expired: Callable[[], str] | None = None,
    ) -> None:
        """`open_table` opens it, or makes it; raises StorageError. `not_compacted` is logged where compaction failed.

        `shared`: several nodes append to it at once. `conform` gives rows the columns that the table has. `fault`
        explains what the storage raised. `expired` gives the condition (SQL) of the rows to delete.
        """
        self._uri = uri
        self._name = name
        self._open_table = open_table
        self._not_compacted = not_compacted
        self._shared = shared
        self._conform = conform
        self._fault = fault
        self._expired = expired
        self._table: DeltaTable | None = None
        self._small_files = 0

    def append(self, rows: pa.Table) -> None:
        """Raises StorageError where nothing was written."""
        cause: BaseException | None = None
        for _ in range(ATTEMPTS_MAX if self._shared else 1):
            table = self._open()
            try:
                bring_up(table)
                write_deltalake(table, self._conform(table, rows), mode="append")
                break
            except FOREIGN_ERRORS as error:
                # What it has in memory may be of a directory that is gone, or of another node's files before a merge.
                self._table, cause = None, error
        else:
            raise self._fault(cause or OSError(), f"cannot write the {self._name}") from cause
        self._small_files += 1
        if self._small_files >= SMALL_FILES_MAX:
            self._small_files = 0
            self._compact(table)

    def _open(self) -> DeltaTable:
        path = local_path(self._uri)
        if self._table is None or (path is not None and not path.is_dir()):
            # With an open table deltalake would recreate the directories that are gone, the job log's own with them:
            # an owner that starts then would find no log there, and begin an empty one.
            self._table = None
            self._table = self._open_table()
            # Those of other nodes, and of this one's terms before, too: a cluster whose owners do not last for so many
            # appends would never merge them.
            self._small_files = small_files(self._table)
        return self._table

    def _compact(self, table: DeltaTable) -> None:
        """Merge small files, forget expired rows, delete files that are not needed. A failure costs nothing."""
        try:
            bring_up(table)
            if self._expired is not None:
                table.delete(self._expired())
            table.optimize.compact()
            table.vacuum(dry_run=False, full=True)
        except FOREIGN_ERRORS as error:
            self._table = None
            # Of several nodes that compact, whoever comes second has nothing to do, or fails.
            level = logging.INFO if self._shared else logging.WARNING
            log.log(level, self._not_compacted, extra={"error": str(self._fault(error, "cannot compact"))})


def small_files(table: DeltaTable) -> int:
    """Return how many files of the table's version have less than SMALL_FILE_BYTES."""
    sizes = add_actions_of(table).column("size_bytes").to_pylist()
    return sum(size < SMALL_FILE_BYTES for size in sizes)
