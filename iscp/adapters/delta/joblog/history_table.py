"""`iscp_history`: the table of iterations, appended to in batches and without a fence.

An iteration that a deposed owner still writes down has taken place; nothing is decided by this table. So one that is
damaged is named and left as it is, and one that is gone begins again, empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from iscp.adapters.delta.joblog.appended_table import APPENDED_TABLE, AppendedTable
from iscp.adapters.delta.joblog.log_check import find_damage, is_there
from iscp.adapters.delta.joblog.log_format import format_of, history_schema, keep_up
from iscp.adapters.delta.joblog.log_opening import open_or_create
from iscp.adapters.delta.joblog.log_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    HISTORY_SCHEMA,
    history_entries,
    history_table,
)
from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage import files as storage
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.locations import local_path, place
from iscp.adapters.delta.storage.table_files import open_input
from iscp.core.job.iteration import HistoryEntry
from iscp.core.values.errors import ConfigurationError, HistoryDamaged, InvalidRequest, StorageError
from iscp.core.values.untrusted_values import error_text
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

USED = "iscp_history.used"
"""The file beside the table that says that there was one."""

RETAINED_S = 30 * 86_400
"""Seconds for which an entry of the history is retained; older ones are deleted with the next compaction."""


class HistoryTable:
    """Appends from one thread; reads from any.

    Raises StorageError, HistoryDamaged where a file of it is corrupt or missing, and InvalidRequest for what it cannot
    hold.
    """

    def __init__(self, uri: str, clock: Clock, made_of: Callable[[], int] = lambda: FORMAT) -> None:
        """`made_of`: the format that it is to have, if it is made."""
        self._uri = uri
        self._clock = clock
        self._made_of = made_of
        self._table = AppendedTable(
            uri,
            "history",
            self._open,
            not_compacted="history.not_compacted",
            conform=_conform,
            fault=self._fault,
            expired=self._expired,
        )

    def append(self, entries: Sequence[HistoryEntry]) -> None:
        if entries:
            self._table.append(_rows_of(entries))

    def read(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Return the newest `limit` entries of a job, newest first."""
        table = self._open()
        try:
            found = table.to_pyarrow_dataset().to_table(filter=pc.field("job_id") == job_id)
        except FOREIGN_ERRORS as error:
            raise self._fault(error, "cannot read the history", table) from error
        newest = found.sort_by([("end_at", "descending"), ("iteration_seq", "descending")])
        return history_entries(newest.slice(0, limit))

    def _open(self) -> DeltaTable:
        there = self._is_there()
        try:
            made_of = FORMAT if there else self._made_of()
            properties = {FORMAT_PROPERTY: str(made_of), **APPENDED_TABLE}
            table = open_or_create(self._uri, history_schema(made_of), properties)
        except StorageError as error:
            raise self._fault(error.__cause__ or error, "cannot open the history") from error
        self._mark(there)
        return table

    def _is_there(self) -> bool:
        """Raises HistoryDamaged: a reader of Delta takes an empty commit for one without rows."""
        try:
            if not is_there(self._uri):
                return False
            if fault := find_fault(self._uri, None):
                raise damaged(fault)
            return True
        except OSError as error:
            raise storage_error(error, f"cannot read {self._uri}") from error

    def _mark(self, there: bool) -> None:
        """Leave beside the table that there is one; where that says so already, and it was not there, it is gone."""
        used = f"{place(self._uri).rpartition('/')[0]}/{USED}"
        try:
            if not storage.exists(used):
                storage.create(used, b"")
            elif not there:
                log.error("history.lost", extra={"uri": self._uri})
        except OSError as error:
            raise storage_error(error, f"cannot write {used}") from error

    def _fault(self, error: BaseException, what: str, table: DeltaTable | None = None) -> StorageError:
        """Return the cause of `error` as one: a file that is damaged, by its name, or else the storage."""
        try:
            found = find_fault(self._uri, table)
        except OSError:
            found = ""
        return damaged(found) if found else storage_error(error, what)

    def _expired(self) -> str:
        before = datetime.fromtimestamp(self._clock.now_s() - RETAINED_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"end_at < '{before}'"


def _conform(table: DeltaTable, rows: pa.Table) -> pa.Table:
    keep_up(table, HISTORY_SCHEMA)
    return rows.select(history_schema(format_of(table)).names)


def damaged(fault: str) -> HistoryDamaged:
    return HistoryDamaged(
        f"{fault}: the history of iterations cannot be used; no job is affected",
        remedy="Restore the file from a backup, or stop all nodes and begin another history with `iscp log repair`",
    )


def find_fault(uri: str, table: DeltaTable | None) -> str:
    """The first file of the history at `uri` that is damaged, and why; of `table`'s rows if it is given. Empty: none.

    Raises OSError where it cannot be read.
    """
    if (found := find_damage(uri, history=True)) is not None:
        return f"{found.path} {found.why}"
    if table is None:
        return ""
    for name in add_actions_of(table).column("path").to_pylist():
        try:
            with open_input(uri, name, None) as file:
                pq.read_table(pa.BufferReader(file.read()))
        except FileNotFoundError:
            return f"{uri}/{name} is missing"
        except (OSError, pa.ArrowException) as error:
            return f"{uri}/{name} cannot be read ({error_text(error)})"
    return ""


def set_damaged_aside(uri: str) -> str:
    """Rename the directory of a history that is damaged; return its new name, or empty if nothing is wrong with it.

    No node may write it meanwhile. Raises StorageError; ConfigurationError on S3, which renames nothing.
    """
    try:
        if not is_there(uri) or not (fault := find_fault(uri, None) or find_fault(uri, open_delta(uri))):
            return ""
        path = local_path(uri)
        if path is None:
            raise ConfigurationError(fault, about="log.uri", remedy=f"Move all below {uri} away: another begins then")
        aside = next(to for n in range(1, 1_000_000) if not (to := Path(f"{path}.damaged-{n}")).exists())
        path.rename(aside)
        (path.parent / USED).unlink(missing_ok=True)
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot repair {uri}") from error
    return str(aside)


def _rows_of(entries: Sequence[HistoryEntry]) -> pa.Table:
    """Return the entries as rows, made before anything is written.

    Raises InvalidRequest for entries that no table could store: that is no fault of the storage, and no later attempt
    helps.
    """
    try:
        return history_table(entries)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidRequest(f"the history cannot hold {len(entries)} entries: {error_text(error)}") from error
