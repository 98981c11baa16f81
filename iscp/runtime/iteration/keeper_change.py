"""Takes over a target that another keeper has kept under the same spec: a cluster one of a run, or a run a cluster's.

The target says by the job_id in its position whose it was, and which table and spec its rows are of. One empty commit
repeats the position under the id of the new registration, and the job goes on with the changes since. What the former
keeper has on its way then fails by its seq, and its next attempt finds the later registration.
"""

from __future__ import annotations

import logging

from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.registration_id import goes_on_from, parse_job_id
from iscp.core.job.report_validation import exact_position
from iscp.core.rows.key_ranges import WHOLE
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, Consumer
from iscp.ports.system import Guard
from iscp.ports.tracing import current_trace
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_run import JobRun

log = logging.getLogger(__name__)


def may_take_over(row: JobRow, consumer: Consumer) -> bool:
    """Return whether the job may begin with what another keeper has left: it was never built, and of a whole table."""
    fresh = row.watermark.version < 0 and row.spec.adopt_from is None and row.key.range_id == WHOLE
    return fresh and consumer.go_on_from is not None and parse_job_id(row.job_id).mark != ""


def take_over(ports: IterationPorts, table_uri: str, job_run: JobRun, guard: Guard) -> Position | None:
    """Return the position after the target was taken over, or None if the job is to build it, or has it already.

    Raises Conflict if another writer was first, and PermanentError if the target may not be built either.
    """
    row, former = job_run.row, job_run.position
    if not goes_on_from(row.job_id, former.job_id) or former.watermark.version < 0:
        return None
    about = logged_job(row, table_uri) | {"from": former.job_id}
    taken = None
    why = former.void or _replaced(ports, table_uri, former)
    if not why and (taken := _commit(ports, job_run, guard)) is None:
        why = "others have changed it so that it takes no commit without rows"
    if taken is not None:
        log.info("target.taken_over", extra=about | {"seq": taken.seq, "version": taken.watermark.version})
        return taken
    _refuse_loss(job_run, why)
    log.warning("target.rebuilt", extra=about | {"reason": why})
    return None


def _replaced(ports: IterationPorts, table_uri: str, position: Position) -> str:
    """Return which table is another one than that whose rows the target has; empty if none is."""
    followed = {uri: mark.table_id for uri, mark in position.sources.items()} | {table_uri: position.source_id}
    other = (uri for uri, table_id in followed.items() if ports.source.newest(uri).table_id != table_id)
    uri = next(other, "")
    return f"{uri} was replaced" if uri else ""


def _commit(ports: IterationPorts, job_run: JobRun, guard: Guard) -> Position | None:
    row, position = job_run.row, job_run.position
    assert job_run.consumer.go_on_from is not None  # the job is here by it
    columns = position.column_ids or {}
    with ports.engine.session() as session:
        context = ConsumeContext(
            session, row, position.source_id, ports.epoch(), position, guard, columns, current_trace()
        )
        taken = job_run.consumer.go_on_from(context)
    return None if taken is None else exact_position(taken)


def _refuse_loss(job_run: JobRun, why: str) -> None:
    """Raise PermanentError for a target without a key: it may hold rows that its source has lost."""
    if job_run.kind.refuse_occupied is None or job_run.row.spec.consumer.key:
        return
    raise PermanentError(
        f"the target cannot be taken over as it is ({why}), and an append-only target is not rebuilt unasked: it may "
        "hold what its source has lost",
        about="spec.iteration.consumer.target",
        remedy="Register the job with adopt_from (`--adopt --from-version`); or have the target rebuilt from what the "
        "source has by `iscp-admin job resync`",
        code=ErrorCode.TARGET_UNUSABLE,
    )
