"""What is told of a job after its part in an iteration."""

from __future__ import annotations

import logging

from iscp.core.errors import Conflict, ErrorCode, IscpError, StorageError
from iscp.core.iteration import DataType, JobOutcome
from iscp.core.job import JobRow
from iscp.core.watermark import Position, later
from iscp.ports.pipeline import ChangesUnavailable, Consumed, SourceRange

log = logging.getLogger(__name__)

MESSAGE_LENGTH_MAX = 4_000
"""Of what a job's status says of a fault, in characters."""


def applied(
    row: JobRow, consumed: Consumed, data_type: DataType, from_version: int, at_s: float, warning: str
) -> JobOutcome:
    """Its sink has committed, at `at_s` (Unix seconds)."""
    return JobOutcome(
        row=row,
        watermark=consumed.position.watermark,
        seq=consumed.position.seq,
        rows=consumed.rows,
        bytes=consumed.bytes,
        data_type=data_type,
        from_version=from_version,
        target_commit_at_s=at_s,
        dead_letters=consumed.position.dead.rows,
        warning=warning,
        source_id=consumed.position.source_id,
    )


def unchanged(row: JobRow, position: Position, span: SourceRange) -> JobOutcome:
    """Nothing to apply: only the watermark moves, in memory."""
    return JobOutcome(
        row=row,
        watermark=later(position.watermark, span.to),
        seq=position.seq,
        from_version=span.from_version,
        dead_letters=position.dead.rows,
        source_id=position.source_id,
    )


def failed(row: JobRow, position: Position | None, error: Exception) -> JobOutcome:
    """`position`: where its sink stood, if that was seen."""
    if isinstance(error, ChangesUnavailable):  # the whole table was to be read instead, which needed them too
        error = StorageError(str(error), remedy="Restore what is gone, or resync the job")
    known = isinstance(error, IscpError)
    level = logging.INFO if isinstance(error, Conflict) else logging.WARNING if known else logging.ERROR
    log.log(level, "iteration.failed", exc_info=not known, extra={"job": row.key.job_name, "error": str(error)})
    seq, watermark = row.seq, row.watermark
    if position is not None and watermark.version < 0:
        seq = position.seq
    # Never back: the owner would take it for an old report, and nobody would hear of the fault.
    ours = position if position is not None and position.job_id == row.job_id else None
    if ours is not None and ours.watermark.version >= watermark.version:
        seq, watermark = ours.seq, ours.watermark
    return JobOutcome(
        row=row,
        watermark=watermark,
        seq=seq,
        error_code=error.code if isinstance(error, IscpError) else ErrorCode.INTERNAL,
        error_msg=str(error)[:MESSAGE_LENGTH_MAX] or type(error).__name__,
        dead_letters=position.dead.rows if position is not None else 0,
        source_id=ours.source_id if ours is not None else "",
    )
