"""Names what is recorded of a job's part in an iteration."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.job.iteration import JobOutcome
from iscp.core.values.errors import ErrorCode
from iscp.ports.source import SourceRange
from iscp.ports.tracing import Attribute, Span
from iscp.runtime.iteration.job_run import JobRun


def job_attributes(job_run: JobRun) -> Mapping[str, Attribute]:
    """Return what is known of a job before it is handed anything."""
    row = job_run.row
    return {
        "iscp.account": row.key.account,
        "iscp.table": row.table_name,
        "iscp.job": row.key.job_name,
        "iscp.job.id": row.job_id,
        "iscp.range": row.key.range_id,
        "iscp.kind": row.spec.consumer.kind,
    }


def read_attributes(uri: str, span: SourceRange, way: str) -> Mapping[str, Attribute]:
    """Return what is known of a read of `uri`: its range, and the way in which it is read."""
    return {
        "iscp.table": uri,
        "iscp.version.from": span.from_version,
        "iscp.version": span.to.version,
        "iscp.read": way,
        "iscp.bytes": span.bytes,
    }


def note_outcome(span: Span, outcome: JobOutcome) -> None:
    """Note what a job has committed, or why it has not."""
    if not outcome.ok:
        span.fail(_name_of(outcome.error_code), outcome.error_msg)
        return
    span.note(
        {
            "iscp.committed": outcome.committed,
            "iscp.seq": outcome.seq,
            "iscp.version": outcome.watermark.version,
            "iscp.data": outcome.data_type.value,
            "iscp.rows": outcome.rows,
            "iscp.bytes": outcome.bytes,
            **({"iscp.strategy": outcome.strategy} if outcome.strategy else {}),
            **({"iscp.reason": outcome.strategy_reason} if outcome.strategy_reason else {}),
            **{f"iscp.part.{part}.s": seconds for part, seconds in outcome.parts_s.items()},
        }
    )


def note_comparison(span: Span, outcome: JobOutcome) -> None:
    """Note what the comparison of a job's target with its source has found, and whether it was repaired."""
    if (report := outcome.verified) is None:
        return
    said = report.comparison
    span.note(
        {
            "iscp.version": report.version,
            "iscp.seq": report.seq,
            "iscp.equal": said.equal,
            "iscp.ranges": said.ranges,
            "iscp.ranges.differing": said.ranges_differing,
            "iscp.rows.missing": said.missing,
            "iscp.rows.extra": said.extra,
            "iscp.rows.different": said.different,
            "iscp.repaired": report.repaired,
            "iscp.rows": outcome.rows,
        }
    )


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:  # a consumer of others may have codes of its own
        return str(code)
