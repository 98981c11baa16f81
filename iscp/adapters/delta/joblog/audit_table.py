"""`iscp_audit`: who changed what, a Delta table beside the job log that all nodes append to, without a fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from iscp.adapters.delta.joblog.appended_table import APPENDED_TABLE, AppendedTable
from iscp.adapters.delta.joblog.log_opening import open_or_create
from iscp.adapters.delta.joblog.log_schema import FORMAT_PROPERTY
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.core.access.audit_entry import AuditEntry, AuditQuery
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import error_text

AUDIT_TABLE = "iscp_audit"

FORMAT = 1
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

_PROPERTIES = {FORMAT_PROPERTY: str(FORMAT), **APPENDED_TABLE}


class AuditTable:
    """The port `AuditLog`, at the job log's `uri`. Appends from one thread; reads from any."""

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
            self._table.append(_rows_of(entries))

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        try:
            found = _newest(open_delta(self._uri), query)
        except TableNotFoundError:
            return []  # nobody has changed anything yet
        except FOREIGN_ERRORS as error:
            raise storage_error(error, "cannot read the audit") from error
        return [_entry(row) for row in found.to_pylist()]


def _rows_of(entries: Sequence[AuditEntry]) -> pa.Table:
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
