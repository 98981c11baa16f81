"""The columns of `iscp_log` and `iscp_history`, and the way between their rows and the core's values.

Columnar both ways: a hundred thousand jobs are loaded while an owner takes over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa

from iscp.model.job.iteration import HistoryEntry, figures_of, refuse_absurd_row, split_figures
from iscp.model.job.job_row import JobRow, JobState, Reason
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import JobKey
from iscp.model.values.untrusted_values import error_text
from iscp.model.values.watermark import Watermark
from iscp.system.late_imports import pc

log = logging.getLogger(__name__)

FORMAT = 3
"""Format 1 has no ranges: its table gets the columns when it is claimed, and its rows are those of whole tables. The
history of format 2 says nothing of strategies.
"""
HISTORY_COLUMNS_SINCE = {"reason": 3, "rows_in": 3, "parts_s": 3}
"""Since which format the history has them."""
FORMAT_PROPERTY = "iscp.format"
# Sequence numbers follow from the commit's version, so that nobody has to read the last one first.
SEQUENCES_PER_COMMIT = 1 << 24
REQUESTS_KEPT_PER_JOB = 8
"""Request ids of a job that a compaction keeps. A client retries within seconds or minutes; an older id that is
repeated after a compaction counts as a new request.
"""

_STATES = {state.value: state for state in JobState}
_REASONS = {reason.value: reason for reason in Reason}
_TIME = pa.timestamp("us", tz="UTC")

LOG_SCHEMA = pa.schema(
    [
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("job_name", pa.string(), nullable=False),
        pa.field("job_id", pa.string(), nullable=False),
        pa.field("job_spec", pa.string(), nullable=False),
        pa.field("job_state", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("watermark", pa.int64(), nullable=False),
        pa.field("watermark_at", _TIME),
        pa.field("iteration_seq", pa.int64(), nullable=False),
        pa.field("job_status", pa.string(), nullable=False),
        pa.field("create_at", _TIME),
        pa.field("drop_at", _TIME),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("table_uri", pa.string(), nullable=False),
        pa.field("owner_rev", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        # One for an entry that a request made; a compacted row carries the job's last few.
        pa.field("request_ids", pa.list_(pa.string())),
        pa.field("range_id", pa.int64()),
        pa.field("origin", pa.string()),
    ]
)

HISTORY_SCHEMA = pa.schema(
    [
        pa.field("account_id", pa.string(), nullable=False),
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("job_name", pa.string(), nullable=False),
        pa.field("job_id", pa.string(), nullable=False),
        pa.field("iteration_seq", pa.int64(), nullable=False),
        pa.field("from_version", pa.int64(), nullable=False),
        pa.field("to_version", pa.int64(), nullable=False),
        pa.field("start_at", _TIME),
        pa.field("end_at", _TIME),
        pa.field("source_commit_at", _TIME),
        pa.field("error_code", pa.int64(), nullable=False),
        pa.field("error_msg", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("data_type", pa.string(), nullable=False),
        pa.field("node_id", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("rows_in", pa.int64()),
        # JSON: seconds by the parts' names, and the figures of `usage`. They have no column of their own: a node of the
        # release before appends to no table that has columns which it does not know.
        pa.field("parts_s", pa.string()),
    ]
)


def _micros(at_s: float) -> int | None:
    """Return Unix seconds as microseconds; null where there is no time yet."""
    return round(at_s * 1e6) if at_s else None


def _dropped(row: JobRow) -> int | None:
    return None if row.drop_at_s is None else round(row.drop_at_s * 1e6)


def _state(row: JobRow) -> str:
    return row.state.value


def _reason(row: JobRow) -> str:
    return row.reason.value


_LOG_VALUES: Mapping[str, Callable[[JobRow], Any]] = {
    "account_id": attrgetter("key.account"),
    "table_id": attrgetter("key.table_id"),
    "job_name": attrgetter("key.job_name"),
    "job_id": attrgetter("job_id"),
    "job_spec": attrgetter("spec_json"),
    "job_state": _state,
    "reason": _reason,
    "watermark": attrgetter("watermark.version"),
    "watermark_at": lambda row: _micros(row.watermark.at_s),
    "iteration_seq": attrgetter("seq"),
    "job_status": attrgetter("status_json"),
    "create_at": lambda row: _micros(row.create_at_s),
    "drop_at": _dropped,
    "table_name": attrgetter("table_name"),
    "table_uri": attrgetter("table_uri"),
    "range_id": attrgetter("key.range_id"),
    "origin": attrgetter("origin"),
}

_HISTORY_VALUES: Mapping[str, Callable[[HistoryEntry], Any]] = {
    "account_id": attrgetter("account"),
    "iteration_seq": attrgetter("seq"),
    "start_at": lambda entry: _micros(entry.start_at_s),
    "end_at": lambda entry: _micros(entry.end_at_s),
    "source_commit_at": lambda entry: _micros(entry.source_commit_at_s),
    "parts_s": lambda entry: _figures_json({**entry.parts_s, **figures_of(entry.usage)}),
}

_HISTORY_READ: Mapping[str, Callable[[Any], Any]] = {
    "reason": lambda text: text or "",
    "rows_in": lambda rows: rows or 0,
}
"""The functions that make the values of columns which an earlier format lacks."""


def _figures_json(figures: Mapping[str, float]) -> str | None:
    return json.dumps(figures) if figures else None


def _lists(texts: Sequence[Sequence[str]]) -> pa.Array:
    """Lists of texts, put together flat: a Python list for each row would put the garbage collector under load."""
    offsets = pa.array(accumulate(map(len, texts), initial=0), pa.int32(), size=len(texts) + 1)
    return pa.ListArray.from_arrays(offsets, pa.array(chain.from_iterable(texts), pa.string()))


def log_table(rows: Sequence[JobRow], request_ids: Sequence[Sequence[str]]) -> pa.Table:
    """Return rows for `iscp_log`, without the columns of `numbered`; `request_ids` run parallel to `rows`."""
    columns: dict[str, Any] = {name: list(map(value, rows)) for name, value in _LOG_VALUES.items()}
    columns["request_ids"] = _lists(request_ids)
    fields = [field for field in LOG_SCHEMA if field.name in columns]
    return pa.table([pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields))


def numbered(rows: pa.Table, owner_rev: int, version: int) -> pa.Table:
    """Return the rows of a commit of term `owner_rev` that goes to `version` or, after maintenance by others, to a
    later one.

    Their sequence numbers are above those of all commits before `version`. Raises InvariantBroken.
    """
    if len(rows) >= SEQUENCES_PER_COMMIT:
        raise InvariantBroken(f"{len(rows)} rows in one commit of the job log")
    first = version * SEQUENCES_PER_COMMIT
    rows = rows.append_column("owner_rev", pa.repeat(pa.scalar(owner_rev, pa.int64()), len(rows)))
    rows = rows.append_column("sequence", pa.array(range(first, first + len(rows)), pa.int64()))
    return rows.select(LOG_SCHEMA.names).cast(LOG_SCHEMA)


def history_table(entries: Sequence[HistoryEntry]) -> pa.Table:
    def column(field: pa.Field) -> pa.Array:
        value = _HISTORY_VALUES.get(field.name) or attrgetter(field.name)
        return pa.array(map(value, entries), field.type, size=len(entries))

    return pa.table([column(field) for field in HISTORY_SCHEMA], schema=HISTORY_SCHEMA)


def _seconds(column: pa.ChunkedArray) -> list[float | None]:
    return [None if micros is None else micros / 1e6 for micros in column.cast(pa.int64()).to_pylist()]


def _shared(column: pa.ChunkedArray) -> Iterable[str]:
    """Return the texts of a column whose values repeat, one object each: many jobs are on one table, of one account."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return map(texts.__getitem__, encoded.indices.to_pylist())


def last_entries(table: pa.Table) -> tuple[list[JobRow], dict[str, tuple[str, ...]]]:
    """Return the last row of each job_id in the order of their sequence numbers, and the last request ids by job_id."""
    table = table.sort_by("sequence").combine_chunks()
    job_ids = table.column("job_id").to_pylist()
    last: dict[str, int] = {}
    for index, job_id in enumerate(job_ids):
        last.pop(job_id, None)  # so that the order is that of the last entries
        last[job_id] = index
    requests: dict[str, tuple[str, ...]] = {}
    request_ids = table.column("request_ids")
    for index, request_id in zip(
        pc.list_parent_indices(request_ids).to_pylist(), pc.list_flatten(request_ids).to_pylist(), strict=True
    ):
        known = requests.get(job_ids[index], ())
        requests[job_ids[index]] = (*known, request_id)[-REQUESTS_KEPT_PER_JOB:]
    if len(last) < len(job_ids):
        table = table.take(pa.array(last.values(), pa.int64(), size=len(last)))
    return job_rows(table), requests


def job_rows(table: pa.Table) -> list[JobRow]:
    columns = table.column
    keys = map(
        JobKey,
        _shared(columns("account_id")),
        _shared(columns("table_id")),
        columns("job_name").to_pylist(),
        pc.fill_null(columns("range_id"), 1).to_pylist(),
    )
    at_s = (at or 0.0 for at in _seconds(columns("watermark_at")))
    watermarks = map(Watermark, columns("watermark").to_pylist(), at_s)
    rows = map(
        JobRow,
        keys,
        columns("job_id").to_pylist(),
        _shared(columns("job_spec")),
        _shared(columns("table_name")),
        _shared(columns("table_uri")),
        # What no version of iscp writes is no state to go by: the job is tried, and says how it is.
        (_STATES.get(state, JobState.ERROR) for state in columns("job_state").to_pylist()),
        (_REASONS.get(reason, Reason.RETRYING) for reason in columns("reason").to_pylist()),
        watermarks,
        columns("iteration_seq").to_pylist(),
        columns("job_status").to_pylist(),
        (at or 0.0 for at in _seconds(columns("create_at"))),
        _seconds(columns("drop_at")),
        _shared(pc.fill_null(columns("origin"), "")),
    )
    return [row for row in map(_repair_row, rows) if row is not None]


def _repair_row(row: JobRow) -> JobRow | None:
    """Return the row with what somebody else has damaged set to defaults, as sinks know how far jobs have come.

    None: nobody can say what it was the row of.
    """
    try:
        refuse_absurd_row(row)
        return row
    except ValueError as error:
        fields = {"job": row.key.job_name, "table": row.table_name, "error": error_text(error)}
    bare = row._replace(watermark=Watermark(), seq=0, create_at_s=0.0, drop_at_s=None if row.drop_at_s is None else 0.0)
    try:
        refuse_absurd_row(bare)
    except ValueError:
        log.error("joblog.row_left_out", extra=fields)
        return None
    log.error("joblog.row_repaired", extra=fields)
    return bare


def history_entries(table: pa.Table) -> list[HistoryEntry]:
    """Return entries in the table's order; the columns are those of HistoryEntry, in its order.

    The last of them has what its last two fields are made of.
    """
    columns: list[Iterable[Any]] = []
    there = set(table.column_names)
    for field in HISTORY_SCHEMA:
        column = table.column(field.name) if field.name in there else pa.chunked_array([pa.nulls(len(table))])
        if field.name == "parts_s":
            figures = [split_figures(json.loads(text) if text else {}) for text in column.to_pylist()]
            columns += [[parts_s for parts_s, _ in figures], [usage for _, usage in figures]]
        elif pa.types.is_timestamp(field.type):
            columns.append([at or 0.0 for at in _seconds(column)])
        else:
            columns.append(map(_HISTORY_READ.get(field.name, _as_it_is), column.to_pylist()))
    return list(map(HistoryEntry, *columns))


def _as_it_is(value: Any) -> Any:
    return value


def row_count_stats(rows: int) -> str:
    """Return the statistics of an `add` action."""
    return json.dumps({"numRecords": rows})
