"""What a sink has to do while its source does not change: to write its position again, before its log forgets it."""

from __future__ import annotations

from iscp.core.job.iteration import JobOutcome
from iscp.core.values.watermark import later
from iscp.ports.consumer import ConsumeContext, RenewingConsumer
from iscp.ports.source import SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_outcomes import unchanged
from iscp.runtime.iteration.job_run import JobRun


def renew_position(ports: IterationPorts, guard: Guard, job_run: JobRun, span: SourceRange) -> JobOutcome:
    """For a job of a range without rows: only its watermark moves. Raises what its commit raises."""
    position = job_run.position
    if isinstance(job_run.consumer, RenewingConsumer):
        columns = span.column_ids if position.column_ids is None else position.column_ids
        with ports.engine.session() as session:
            context = ConsumeContext(session, job_run.row, position.source_id, ports.epoch(), position, guard, columns)
            position = job_run.consumer.renew(context, later(position.watermark, span.to))
    return unchanged(job_run.row, position, span, renewed=position.seq != job_run.position.seq)
