"""What a sink is asked for while its source stands still: to say anew how far it has come, before its log forgets."""

from __future__ import annotations

from collections.abc import Callable

from iscp.core.iteration import JobOutcome
from iscp.core.watermark import later
from iscp.ports.consumer import ConsumeContext, RenewingConsumer
from iscp.ports.engine import Engine
from iscp.ports.source import SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.job_outcomes import unchanged
from iscp.runtime.iteration.job_run import JobRun


def renewing(
    engine: Engine, epoch: Callable[[], int], span: SourceRange, guard: Guard
) -> Callable[[JobRun], JobOutcome]:
    """What is done for each job of a range without rows: only its watermark moves. Raises what its commit raises."""

    def renew_position(work: JobRun) -> JobOutcome:
        position = work.position
        if isinstance(work.consumer, RenewingConsumer):
            columns = span.column_ids if position.column_ids is None else position.column_ids
            with engine.session() as session:
                context = ConsumeContext(session, work.row, position.source_id, epoch(), position, guard, columns)
                position = work.consumer.renew(context, later(position.watermark, span.to))
        return unchanged(work.row, position, span)

    return renew_position
