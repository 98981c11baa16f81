"""Makes the tag that a commit of a Delta target carries, whatever it is for."""

from __future__ import annotations

import uuid

from iscp.core.values.totals import NO_TOTALS
from iscp.core.values.trace_context import is_sampled
from iscp.core.values.watermark import SourceMarks, Watermark
from iscp.ports.consumer import ConsumeContext
from iscp.ports.sink import CommitTag


def commit_tag(
    context: ConsumeContext,
    kind: str,
    from_version: int,
    watermark: Watermark,
    sources: SourceMarks | None = None,
    as_of_s: float = 0.0,
) -> CommitTag:
    """Return the tag of the commit that follows the position of `context`.

    If `sources` is None, they stay as they were, and so do instant and totals.
    """
    marks = context.position.sources if sources is None else sources
    return CommitTag(
        seq=context.position.seq + 1,
        job_id=context.row.job_id,
        source_id=context.source_id,
        from_version=from_version,
        watermark=watermark,
        epoch=context.epoch,
        base_version=context.position.base_version,
        attempt=uuid.uuid4().hex[:12],
        kind=kind,
        dead=context.position.dead,
        column_ids=context.column_ids,
        sources=marks,
        as_of_s=context.position.as_of_s if sources is None else as_of_s,
        totals=context.position.totals if sources is None else NO_TOTALS,
        trace=context.trace if is_sampled(context.trace) else "",
        table_uri="" if marks else context.row.table_uri,
    )


def takeover_tag(context: ConsumeContext) -> CommitTag:
    """Return the tag of a commit that repeats the position of another registration under the job's own id."""
    watermark = context.position.watermark
    return commit_tag(context, "takeover", watermark.version, watermark)
