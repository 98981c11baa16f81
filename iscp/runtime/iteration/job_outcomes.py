"""Makes the reports of a job's part in an iteration."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from iscp.core.build.build_request import BuildRequest
from iscp.core.job.iteration import DataType, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.report_validation import exact_parts, exact_position
from iscp.core.job.usage import UsagePart
from iscp.core.values.errors import Conflict, ErrorCode, FileLost, IscpError, PermanentError, StorageError
from iscp.core.values.untrusted_values import (
    error_code,
    error_text,
    exact_float,
    exact_int,
    exact_name,
    named_error,
    printable,
)
from iscp.core.values.watermark import Position, SourceMarks, later
from iscp.ports.consumer import Consumed
from iscp.ports.refreshing import Refreshed
from iscp.ports.source import ChangesUnavailableError, SourceRange

log = logging.getLogger(__name__)


def applied(
    row: JobRow, consumed: Consumed, data_type: DataType, from_version: int, warning: str, reason: str = ""
) -> JobOutcome:
    """Return the outcome of a job whose sink has committed.

    `reason` says why all rows were compared or replaced, where changes would have done. Raises ValueError if the
    consumer answers what cannot be.
    """
    position = exact_position(consumed.position)
    return JobOutcome(
        row=row,
        watermark=position.watermark,
        seq=position.seq,
        rows=exact_int(consumed.rows, "rows"),
        bytes=exact_int(consumed.bytes, "bytes"),
        data_type=data_type,
        from_version=from_version,
        dead_letters=position.dead.rows,
        warning=printable(warning),
        source_id=position.source_id,
        committed=True,
        sources=position.sources,
        strategy_reason=printable(reason),
        target_version=position.base_version,
    )


def refreshed(row: JobRow, done: Refreshed, data_type: DataType, from_version: int, warning: str) -> JobOutcome:
    """Return the outcome of a job whose consumer has read its tables itself. Raises as `applied` does."""
    outcome = applied(row, done.consumed, data_type, from_version, warning)
    return replace(
        outcome,
        strategy=exact_name(done.strategy, "strategy"),
        strategy_reason=printable(done.reason),
        rows_in=exact_int(done.rows_in, "rows_in"),
        parts_s=exact_parts(done.parts_s, "parts_s"),
        committed=bool(done.committed),
        due_at_s=exact_float(done.due_at_s, "due_at_s"),
        waits_for=printable(done.waits_for),
        wait_s=exact_float(done.wait_s, "wait_s"),
    )


def awaiting_build(row: JobRow, position: Position, request: BuildRequest) -> JobOutcome:
    """Return the outcome of a job whose sink is claimed, and whose first rows are built by ranges.

    If it has requested another build before, its status says so: what that was to read is gone.
    """
    outcome = JobOutcome(row=row, watermark=row.watermark, seq=position.seq, data_type=DataType.SNAPSHOT, build=request)
    before = row.build
    if before is None or before.reading == request.reading:
        return outcome
    gone = f"version {before.version} of the source, or what was committed since, was cleaned away (VACUUM)"
    if before.pin != request.pin:
        gone = f"a version of a table that it reads was cleaned away (VACUUM), or {gone}"
    return replace(outcome, warning=f"the build was begun again at version {request.version}: {gone}")


def unchanged(row: JobRow, position: Position, span: SourceRange, *, renewed: bool = False) -> JobOutcome:
    """Return the outcome of a job with nothing to apply.

    Only the watermark moves, in memory, or in the sink too if its position was `renewed`.
    """
    return JobOutcome(
        row=row,
        watermark=later(position.watermark, span.to),
        seq=position.seq,
        from_version=span.from_version,
        dead_letters=position.dead.rows,
        source_id=position.source_id,
        committed=renewed,
        sources=position.sources,
    )


def longest_parts(outcomes: Iterable[JobOutcome]) -> dict[str, float]:
    """Return a log line's fields: the seconds of each part of the work, of the job for which it took longest."""
    usages = [outcome.usage for outcome in outcomes if outcome.usage is not None]
    parts = (UsagePart.READ, UsagePart.COMPUTE, UsagePart.COMMIT)
    return {f"{part}_s": round(max((usage.seconds()[part] for usage in usages), default=0.0), 4) for part in parts}


def record_failure(row: JobRow, position: Position | None, error: BaseException) -> JobOutcome:
    """Log why a job's part failed, and return its outcome, which can be stored whatever `error` is and says.

    `position` is that of its sink, if it was read.
    """
    if isinstance(error, ChangesUnavailableError) and isinstance(error.__cause__, PermanentError):
        error = error.__cause__  # no reading of the whole table gets around it
    if isinstance(error, ChangesUnavailableError):  # the whole table was to be read instead, which needed them too
        code = ErrorCode.FILE_LOST if isinstance(error.__cause__, FileLost) else ErrorCode.STORAGE
        error = StorageError(error_text(error), remedy="Restore what is gone, or resync the job", code=code)
    known = isinstance(error, IscpError)
    level = logging.INFO if isinstance(error, Conflict) else logging.WARNING if known else logging.ERROR
    message = (error_text(error) if known else "") or named_error(error)
    # What iscp itself has found is in its words; of what others raised the stack shows where.
    traced = not known or (error.__cause__ is not None and not isinstance(error, Conflict))
    place = {"range_id": row.key.range_id, "seq": row.seq, "code": int(error_code(error)), "error": message}
    log.log(level, "iteration.failed", exc_info=error if traced else None, extra=logged_job(row) | place)
    seq, watermark = row.seq, row.watermark
    if position is not None and watermark.version < 0:
        seq = position.seq
    # Never back: the owner would take it for an old report, and nobody would hear of the fault.
    ours = position if position is not None and position.job_id == row.job_id else None
    sources: SourceMarks = {}
    if ours is not None and ours.watermark.version >= watermark.version:
        if ours.seq > seq:  # else its rows may be known to be those of later versions
            sources = ours.sources
        seq, watermark = ours.seq, ours.watermark
    return JobOutcome(
        row=row,
        watermark=watermark,
        seq=seq,
        error_code=error_code(error),
        error_msg=message,
        dead_letters=position.dead.rows if position is not None else 0,
        source_id=ours.source_id if ours is not None else "",
        sources=sources,
    )
