"""Renews a sink's position while its source does not change, before the sink's log forgets it."""

from __future__ import annotations

from iscp.core.job.iteration import JobOutcome
from iscp.core.values.watermark import later
from iscp.ports.consumer import ConsumeContext
from iscp.ports.source import SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_outcomes import unchanged
from iscp.runtime.iteration.job_run import JobRun


def renew_position(ports: IterationPorts, guard: Guard, job_run: JobRun, span: SourceRange) -> JobOutcome:
    """Return the outcome of a job for a range without rows, after its sink has repeated the position if need be.

    Only the watermark moves. Raises what the commit raises.
    """
    position = job_run.position
    if (renew := job_run.consumer.renew) is not None:
        columns = span.column_ids if position.column_ids is None else position.column_ids
        with ports.engine.session() as session:
            context = ConsumeContext(session, job_run.row, position.source_id, ports.epoch(), position, guard, columns)
            position = renew(context, later(position.watermark, span.to))
    return unchanged(job_run.row, position, span, renewed=position.seq != job_run.position.seq)
