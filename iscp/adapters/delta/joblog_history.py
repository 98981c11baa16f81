"""`iscp_history`: the table of iterations, appended to in batches and without a fence.

An iteration that a deposed owner still writes down has taken place; nothing is decided by this table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.joblog_opening import FOREIGN_ERRORS, open_or_create, storage_error
from iscp.adapters.delta.joblog_schema import FORMAT, FORMAT_PROPERTY, HISTORY_SCHEMA, history_entries, history_table
from iscp.adapters.delta.table_files import local_path
from iscp.core.errors import InvalidRequest
from iscp.core.foreign import error_text
from iscp.core.iteration import HistoryEntry
from iscp.ports.system import Clock

APPENDS_PER_COMPACTION = 200
KEPT_S = 30 * 86_400
TABLE_PROPERTIES = {
    FORMAT_PROPERTY: str(FORMAT),
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}


class HistoryTable:
    """Appends from one thread; reads from any. Raises StorageError, and InvalidRequest for what it cannot hold."""

    def __init__(self, uri: str, clock: Clock, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = uri
        self._clock = clock
        self._options = storage_options
        self._table: DeltaTable | None = None
        self._appends = 0

    def append(self, entries: Sequence[HistoryEntry]) -> None:
        if not entries:
            return
        rows = _rows_of(entries)
        path = local_path(self._uri)
        if path is not None and not path.is_dir():
            self._table = None
        if self._table is None:
            # With an open table deltalake would make the directories anew that are away, the job log's own with them:
            # an owner that starts then would find no log there, and begin an empty one.
            self._table = self._open()
        try:
            self._table.update_incremental()
            write_deltalake(self._table, rows, mode="append")
            self._appends += 1
            if self._appends % APPENDS_PER_COMPACTION == 0:
                self._compact(self._table)
        except FOREIGN_ERRORS as error:
            self._table = None  # what it has in memory may be of a directory that is gone
            raise storage_error(error, "cannot write the history") from error

    def read(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """The newest `limit` entries of a job, newest first."""
        table = self._open()
        try:
            found = table.to_pyarrow_dataset().to_table(filter=pc.field("job_id") == job_id)
        except FOREIGN_ERRORS as error:
            raise storage_error(error, "cannot read the history") from error
        newest = found.sort_by([("end_at", "descending"), ("iteration_seq", "descending")])
        return history_entries(newest.slice(0, limit))

    def _open(self) -> DeltaTable:
        return open_or_create(self._uri, HISTORY_SCHEMA, TABLE_PROPERTIES, self._options)

    def _compact(self, table: DeltaTable) -> None:
        """Put small files together, forget old iterations, delete files that are no longer needed."""
        table.update_incremental()
        before = datetime.fromtimestamp(self._clock.now_s() - KEPT_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        table.delete(f"end_at < '{before}'")
        table.optimize.compact()
        table.vacuum(dry_run=False, full=True)


def _rows_of(entries: Sequence[HistoryEntry]) -> pa.Table:
    """Made before the storage is asked: what cannot be kept is no fault of its, and no later attempt helps."""
    try:
        return history_table(entries)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidRequest(f"the history cannot hold {len(entries)} entries: {error_text(error)}") from error
