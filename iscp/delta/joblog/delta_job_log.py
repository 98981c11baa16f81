"""The job log on Delta tables, through deltalake: no JVM is on the control path.

`<uri>/iscp_log` holds the jobs, behind the fence of `FencedTable`; `<uri>/iscp_history` their iterations, and
`<uri>/iscp_audit` the audit: these two are appended to in batches, without a fence.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from iscp.delta.joblog.fenced_table import FencedTable
from iscp.delta.joblog.log_opening import (
    HISTORY_TABLE,
    LOG_TABLE,
    USED,
    Repaired,
    find_damage,
    format_of,
    history_schema,
    is_there,
    keep_up,
    open_or_create,
    refuse_others_table,
    repair,
    written_format,
)
from iscp.delta.joblog.log_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
    REQUESTS_KEPT_PER_JOB,
    history_entries,
    history_table,
    last_entries,
    log_table,
)
from iscp.delta.log.table_opening import add_actions_of, bring_up, open_delta
from iscp.model.access.authorization import AuditEntry, AuditQuery
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.values.errors import (
    ConfigurationError,
    HistoryDamaged,
    InvalidRequest,
    InvariantBroken,
    JobLogDamaged,
    OutcomeUnknown,
    StorageError,
)
from iscp.model.values.untrusted_values import error_text
from iscp.ports.system import Clock, Failpoints
from iscp.storage import files as storage
from iscp.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.storage.locations import local_path, place
from iscp.storage.table_files import open_input
from iscp.system.late_imports import pc, pq

log = logging.getLogger(__name__)


def refuse_other_cluster(uri: str, cluster: str) -> None:
    """Raise ConfigurationError if there is a job log at `uri` that belongs to another cluster."""
    refuse_others_table(f"{uri.rstrip('/')}/{LOG_TABLE}", cluster)


def repair_job_log(uri: str, reached: int) -> Repaired | None:
    """Repair the job log at `uri`, as `repair` does. Raises JobLogDamaged, StorageError."""
    table = f"{uri.rstrip('/')}/{LOG_TABLE}"
    try:
        return repair(table, reached)
    except OSError as error:
        raise storage_error(error, f"cannot repair {table}") from error


def set_damaged_history_aside(uri: str) -> str:
    """Set the history beside the job log at `uri` aside if it is damaged, as `set_damaged_aside` does."""
    return set_damaged_aside(f"{uri.rstrip('/')}/{HISTORY_TABLE}")


class DeltaJobLog:
    """Port JobLog; `uri` is a directory that exists, or a prefix of an object store.

    A directory that is missing is a StorageError, never a reason to begin a new log.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        failpoints: Failpoints,
        cluster: str = "",
        reached: Callable[[], int] = lambda: -1,
    ) -> None:
        """`cluster`: whose log it is, if it is made; raises ConfigurationError at the claim if it is another's.

        `reached`: a version that the log has reached, as far as anything outside its directory knows (0: there was
        one; -1: nothing is known); read at the claim.
        """
        self._base = base = uri.rstrip("/")
        self._reached = reached
        self._log = FencedTable(f"{base}/{LOG_TABLE}", LOG_SCHEMA, clock, failpoints, cluster=cluster)
        self._history = HistoryTable(f"{base}/{HISTORY_TABLE}", clock, lambda: written_format(f"{base}/{LOG_TABLE}"))
        self._requests: dict[str, tuple[str, ...]] = {}
        self._commits = 0
        self._doubtful: tuple[Sequence[LogEntry], str] | None = None

    @property
    def commits_since_compaction(self) -> int:
        return self._commits

    @property
    def version(self) -> int:
        return self._log.version

    def claim_term(self) -> int:
        self._refuse_damaged()
        term = self._log.claim()
        try:
            storage.create(f"{place(self._base)}/{USED}", b"")
        except OSError as error:
            raise storage_error(error, f"cannot write {self._base}/{USED}") from error
        return term

    def _refuse_damaged(self) -> None:
        """Raises JobLogDamaged, StorageError."""
        uri, base = f"{self._base}/{LOG_TABLE}", place(self._base)
        reached = self._reached()  # before the log is read: another owner may be writing
        try:
            if is_there(uri):
                if (damage := find_damage(uri, reached)) is not None:
                    raise damage.error()
                return
            signs = is_there(f"{self._base}/{HISTORY_TABLE}") or storage.exists(f"{base}/{USED}")
        except OSError as error:
            raise storage_error(error, f"cannot read {uri}") from error
        if signs or (storage.parent_is_there(f"{base}/{LOG_TABLE}") and reached >= 0):
            raise JobLogDamaged(
                f"the job log {uri} is gone, and this cluster has used one: all its registrations would be lost",
                remedy="Restore a backup by `iscp-admin backup restore`; to begin without its jobs, start a new "
                "cluster: another data directory, or other `log.uri` and `etcd.prefix`",
            )

    def load(self) -> list[JobRow]:
        table, files = self._log.read()
        rows, self._requests = last_entries(table)
        self._commits = files
        return rows

    def requests(self) -> Mapping[str, Sequence[str]]:
        return self._requests

    def append(self, entries: Sequence[LogEntry]) -> None:
        if not entries:
            return
        commit_id, self._doubtful = self._commit_id(entries), None
        rows = [entry.row for entry in entries]
        ids = [(entry.request_id,) if entry.request_id else () for entry in entries]
        try:
            self._log.commit(log_table(rows, ids), commit_id)
        except OutcomeUnknown:
            self._doubtful = (entries, commit_id)
            raise
        self._commits += 1
        for row, request_id in entries:
            if request_id:
                known = self._requests.get(row.job_id, ())
                self._requests[row.job_id] = (*known, request_id)[-REQUESTS_KEPT_PER_JOB:]

    def compact(self, rows: Sequence[JobRow]) -> None:
        requests = {row.job_id: ids for row in rows if (ids := self._requests.get(row.job_id))}
        table = log_table(rows, [requests.get(row.job_id, ()) for row in rows])
        self._log.commit(table, uuid.uuid4().hex, replace=True)
        self._requests = requests
        self._commits = 0

    def tidy(self) -> int:
        return self._log.tidy()

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        self._history.append(entries)

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        return self._history.read(job_id, limit)

    def _commit_id(self, entries: Sequence[LogEntry]) -> str:
        """Return a new id, or that of the commit in doubt, which this is then a repetition of."""
        if self._doubtful is None:
            return uuid.uuid4().hex
        doubtful, commit_id = self._doubtful
        if doubtful != entries:
            raise InvariantBroken("a commit whose outcome is not known must be repeated before another")
        return commit_id


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
    """A Delta table that is appended to in batches, without a fence, and read now and then. Appends from one thread."""

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


# --- the audit --------------------------------------------------------------------------------------------------------

AUDIT_TABLE = "iscp_audit"

AUDIT_FORMAT = 1
"""The format of the table's columns."""

ROWS_AT_ONCE = 2_000
"""Rows of the audit in memory while it is read, besides those that the answer has so far."""

BUFFER_BYTES = 1 << 20
"""Bytes that are read at a time of each column of the audit."""

_TEXTS_BEFORE = ("node_id", "account", "caller_account", "caller_role", "caller", "known_by", "peer")
_TEXTS_AFTER = ("method", "what", "request_id", "result")
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in (*_TEXTS_BEFORE, *_TEXTS_AFTER)),
        pa.field("error_code", pa.int64(), nullable=False),
    ]
)

_PROPERTIES = {FORMAT_PROPERTY: str(AUDIT_FORMAT), **APPENDED_TABLE}


class AuditTable:
    """`iscp_audit`: who changed what, a table that all nodes append to (port `AuditLog`), at the job log's `uri`.

    Appends from one thread; reads from any.
    """

    def __init__(self, uri: str) -> None:
        self._uri = f"{uri.rstrip('/')}/{AUDIT_TABLE}"
        self._table = AppendedTable(
            self._uri,
            "audit",
            lambda: open_or_create(self._uri, SCHEMA, _PROPERTIES),
            not_compacted="audit.not_compacted",
            shared=True,
        )

    def append(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            self._table.append(_audit_rows(entries))

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        try:
            found = _newest(open_delta(self._uri), query)
        except TableNotFoundError:
            return []  # nobody has changed anything yet
        except FOREIGN_ERRORS as error:
            raise storage_error(error, "cannot read the audit") from error
        return [_entry(row) for row in found.to_pylist()]


def _audit_rows(entries: Sequence[AuditEntry]) -> pa.Table:
    try:
        rows = [{**asdict(entry), "at": datetime.fromtimestamp(entry.at_s, UTC)} for entry in entries]
        return pa.Table.from_pylist(rows, schema=SCHEMA)
    except (ValueError, TypeError, OverflowError, OSError, pa.ArrowException) as error:  # OSError: of a date
        raise InvalidRequest(f"the audit cannot hold {len(entries)} entries: {error_text(error)}") from error


def _newest(table: DeltaTable, query: AuditQuery) -> pa.Table:
    """Return the rows of an answer, newest first. The table may be of any size: few of its rows are in memory at a
    time.
    """
    condition = _condition(query)
    newest, gathered, rows = SCHEMA.empty_table(), list[pa.Table](), 0

    def merged() -> pa.Table:
        return pa.concat_tables([newest, *gathered]).sort_by([("at", "descending")]).slice(0, query.limit)

    for batch in _batches(table, condition):
        found = pa.Table.from_batches([batch]).filter(condition).cast(SCHEMA)
        gathered.append(found)
        rows += found.num_rows
        if rows >= ROWS_AT_ONCE:
            newest, gathered, rows = merged(), [], 0
    return merged()


def _batches(table: DeltaTable, condition: Any) -> Iterator[pa.RecordBatch]:
    """Yield batches of the files that may have rows for which the condition is true.

    A scan of the dataset would read far ahead.
    """
    dataset = table.to_pyarrow_dataset()
    for fragment in dataset.get_fragments(condition):
        with fragment.open() as opened, pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            yield from file.iter_batches(ROWS_AT_ONCE, columns=SCHEMA.names, use_threads=False)


def _condition(query: AuditQuery) -> Any:
    condition = pc.field("at") >= pa.scalar(datetime.fromtimestamp(query.since_s, UTC), SCHEMA.field("at").type)
    if query.account:
        condition &= pc.field("account") == query.account
    if query.method:
        condition &= pc.ends_with(pc.field("method"), f"/{query.method}")
    return condition


def _entry(row: dict[str, Any]) -> AuditEntry:
    at = row.pop("at")
    return AuditEntry(at_s=at.timestamp(), **row)


# --- the history ------------------------------------------------------------------------------------------------------

HISTORY_USED = "iscp_history.used"
"""The file beside the table that says that there was one."""

RETAINED_S = 30 * 86_400
"""Seconds for which an entry of the history is retained; older ones are deleted with the next compaction."""


class HistoryTable:
    """`iscp_history`: the table of iterations. Appends from one thread; reads from any.

    An iteration that a deposed owner still writes down has taken place; nothing is decided by this table. So a damaged
    history is named and left as it is, and a history that is gone begins again, empty.

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
            self._table.append(_history_rows(entries))

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
        used = f"{place(self._uri).rpartition('/')[0]}/{HISTORY_USED}"
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
        (path.parent / HISTORY_USED).unlink(missing_ok=True)
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot repair {uri}") from error
    return str(aside)


def _history_rows(entries: Sequence[HistoryEntry]) -> pa.Table:
    """Return the entries as rows, made before anything is written.

    Raises InvalidRequest for entries that no table could store: that is no fault of the storage, and no later attempt
    helps.
    """
    try:
        return history_table(entries)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidRequest(f"the history cannot hold {len(entries)} entries: {error_text(error)}") from error
