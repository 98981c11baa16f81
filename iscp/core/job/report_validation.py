"""Check reports on jobs field by field: positions, reports and history that may be stored, or ValueError.

A sink's position comes from a consumer's own code, a report from another node. Either may have anything of any type in
it. Messages are made fit to be stored (`untrusted_values`); a number or a name that is wrong is refused, and with it
all that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport, JobRow, JobState, Reason, exact_status
from iscp.core.job.usage import exact_usage
from iscp.core.rows.key_ranges import RANGES_MAX, WHOLE
from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.exact_watermarks import exact_sources, exact_watermark
from iscp.core.values.ids import JobKey, ShardId
from iscp.core.values.totals import exact_totals
from iscp.core.values.untrusted_values import (
    AT_S_LEAST,
    AT_S_MOST,
    COUNT_MOST,
    Check,
    exact_code,
    exact_fields,
    exact_float,
    exact_int,
    exact_message,
    exact_name,
    exact_version,
    shown,
)
from iscp.core.values.watermark import DeadLetters, Position

PARTS_MAX = 32
"""Parts of an iteration whose times are stored; a report of more is refused."""


def exact_parts(value: object, name: str) -> dict[str, float]:
    """Return seconds by the names of an iteration's parts. Raises ValueError."""
    if not isinstance(value, Mapping) or len(value) > PARTS_MAX:
        raise ValueError(f"{name} is {shown(value)}, which is not the seconds of at most {PARTS_MAX} parts")
    return {exact_name(part, name): exact_float(took_s, name, 0.0) for part, took_s in value.items()}


_HISTORY: Mapping[str, Check] = {
    "account": exact_name,
    "table_id": exact_name,
    "job_name": exact_name,
    "job_id": exact_name,
    "seq": exact_int,
    "from_version": exact_version,
    "to_version": exact_version,
    "start_at_s": exact_float,
    "end_at_s": exact_float,
    "source_commit_at_s": exact_float,
    "error_code": exact_code,
    "error_msg": exact_message,
    "rows": exact_int,
    "bytes": exact_int,
    "data_type": exact_name,
    "node_id": exact_name,
    "reason": exact_message,
    "rows_in": exact_int,
    "parts_s": exact_parts,
    "usage": exact_usage,
}

exact_entry = exact_fields(HistoryEntry, _HISTORY)


def exact_range(value: object, name: str = "range_id") -> int:
    return exact_int(value, name, WHOLE, 2 * RANGES_MAX - 1)


def exact_shard(shard: ShardId) -> ShardId:
    if not shard.table_id:
        raise ValueError("table_id is empty")
    return ShardId(exact_name(shard.table_id, "table_id"), exact_range(shard.range_id))


def exact_position(found: object) -> Position:
    """Return the position that a sink reports. Raises ValueError."""
    if not isinstance(found, Position):
        raise ValueError(f"it is {shown(found)}, which is no Position")
    if not isinstance(found.dead, DeadLetters):
        raise ValueError(f"dead is {shown(found.dead)}, which is no DeadLetters")
    return Position(
        exact_int(found.seq, "seq"),
        exact_watermark(found.watermark),
        exact_name(found.job_id, "job_id"),
        exact_name(found.source_id, "source_id"),
        exact_message(found.void, "void"),
        exact_int(found.base_version, "base_version", -1),
        DeadLetters(exact_int(found.dead.seq, "dead.seq", -1), exact_int(found.dead.rows, "dead.rows")),
        _exact_columns(found.column_ids),
        exact_sources(found.sources),
        exact_float(found.as_of_s, "as_of_s"),
        exact_totals(found.totals),
    )


def _exact_columns(found: object) -> ColumnIds | None:
    if found is None:
        return None
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ValueError(f"column_ids is {shown(found)}, which does not map names to texts")
    return dict(found)


def exact_report(report: JobReport) -> JobReport:
    key = report.key
    texts = (key.account, key.table_id, key.job_name)
    account, table_id, job_name = map(exact_name, texts, ("account", "table_id", "job_name"))
    if report.state is not None and not isinstance(report.state, JobState):
        raise ValueError(f"state is {shown(report.state)}, which is none of a job")
    if report.reason is not None and not isinstance(report.reason, Reason):
        raise ValueError(f"reason is {shown(report.reason)}, which is none")
    return replace(
        report,
        key=JobKey(account, table_id, job_name, exact_range(key.range_id)),
        job_id=exact_name(report.job_id, "job_id"),
        watermark=exact_watermark(report.watermark),
        seq=exact_int(report.seq, "seq"),
        status=exact_status(report.status) if report.status is not None else None,
    )


def refuse_absurd_row(row: JobRow) -> None:
    """Raise ValueError for a row that no job can have; quick, as a node is handed a hundred thousand at a time."""
    mark, key = row.watermark, row.key
    if not (
        -1 <= mark.version <= COUNT_MOST
        and 0 <= mark.step <= mark.steps <= COUNT_MOST
        and 0 <= row.seq <= COUNT_MOST
        and AT_S_LEAST <= mark.at_s <= AT_S_MOST
        and AT_S_LEAST <= row.create_at_s <= AT_S_MOST
        and (row.drop_at_s is None or AT_S_LEAST <= row.drop_at_s <= AT_S_MOST)
        and WHOLE <= key.range_id < 2 * RANGES_MAX
        and key.table_id
        and row.job_id
    ):
        numbers = {"range_id": key.range_id, "seq": row.seq, "watermark": mark, "create_at_s": row.create_at_s}
        raise ValueError(f"no job can have {shown(numbers)}, dropped at {row.drop_at_s}, as {shown(row.job_id)}")
