"""Iterations of one job and its target by itself: a table that is there already becomes the job's, or another keeper's
target does; a target is compared with its source, and repaired; or it is deleted with its job.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from iscp.engine.iteration_ports import IterationPorts, JobRun, job_attributes, note_comparison, same_log
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome, Purpose, exact_position
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import goes_on_from, logged_job, parse_job_id
from iscp.model.job.start_rule import Comparison, VerifyReport
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import ErrorCode, JobFailed, PermanentError
from iscp.model.values.watermark import NO_DEAD_LETTERS, Position, Watermark
from iscp.ports.consumer import Adopting, Check, ConsumeContext, Consumer
from iscp.ports.sink import Compared, DeletionOrder
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard, current_trace

log = logging.getLogger(__name__)

# --- adoption of a table ----------------------------------------------------------------------------------------------
# The first iteration of a job may take over a table which is there already. The table's rows are compared with the
# source's at the version that the job names. If they are equal, one empty commit makes the table the job's, and the
# next iteration takes the changes since then; if not, nothing is written.

FIELD = "spec.iteration.adopt_from"


def adopts(iteration: Iteration) -> bool:
    """Return whether its job is to take a table over; a job that was never built runs alone."""
    row, *more = iteration.jobs
    return not more and row.spec.adopt_from is not None and row.watermark.version < 0


class Adopter:
    """Takes over the target of an iteration's one job."""

    def __init__(self, ports: IterationPorts) -> None:
        self._ports = ports

    def adopt(self, iteration: Iteration, guard: Guard) -> JobOutcome | None:
        """Take over the target, and return the outcome, or None if the target is the job's already.

        Raises Conflict; PermanentError if the target is not as it should be.
        """
        (row,) = iteration.jobs
        job_run = self._ports.read_position(row)
        if job_run.position.job_id == row.job_id:
            return None
        if (adopting := job_run.kind.adopting) is None:
            raise PermanentError(f"a consumer {job_run.kind.name} takes over no table", about=FIELD)
        version = row.spec.adopt_from
        assert version is not None
        try:
            return self._compare_and_claim(iteration.table_uri, job_run, adopting, version, guard)
        except ChangesUnavailableError as gone:
            raise PermanentError(
                f"the source cannot be read any more as it was: {gone}",
                about=FIELD,
                remedy="Have the target built by `iscp-admin job resync`",
                code=ErrorCode.VERSION_GONE,
            ) from gone

    def _compare_and_claim(
        self, uri: str, job_run: JobRun, adopting: Adopting, version: int, guard: Guard
    ) -> JobOutcome:
        ports, row = self._ports, job_run.row
        span = ports.source.at(uri, version)
        check = adopting.check(row, ports.environment)
        with ports.engine.session() as session:
            # Rows that a former job has dead-lettered are not known to be those of this version.
            position = replace(job_run.position, dead=NO_DEAD_LETTERS)
            context = ports.context(session, job_run, span, guard, position)
            rows = ports.source.snapshot(session, uri, version)
            with check.compare(context, rows) as compared:
                said = compared.comparison
                # An append-only target may hold what its source has lost.
                unlike = not said.equal if row.spec.consumer.key else said.missing
                # Rows that share a key would be dead-lettered, which nobody has done yet.
                if unlike or said.shared:
                    raise _unlike(version, said)
                position = check.adopt(context, span.to)
        return JobOutcome(
            row=row,
            watermark=span.to,
            seq=position.seq,
            data_type=DataType.DIFFERENCE,
            source_id=position.source_id,
            committed=True,
        )


def _unlike(version: int, said: Comparison) -> PermanentError:
    shared = f"; {said.shared} keys of the source have several rows" if said.shared else ""
    return PermanentError(
        f"the target does not hold the source's rows at version {version}: {said}{shared}",
        about=FIELD,
        remedy="Nothing was written. Repair the target and resume the job; or delete it and register it with the right "
        "version; or have the target rebuilt by `iscp-admin job resync`",
        code=ErrorCode.ADOPT_DIFFERS,
    )


# --- change of the keeper ---------------------------------------------------------------------------------------------
# A job takes over a target that another keeper has kept under the same spec: a cluster that of a run, or a run that of
# a cluster. The target says by the job_id in its position whose it was, and which table and spec its rows are of. One
# empty commit repeats the position under the id of the new registration, and the job goes on with the changes since.
# What the former keeper has on its way then fails by its seq, and its next attempt finds the later registration.


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


# --- comparison and repair --------------------------------------------------------------------------------------------
# An iteration compares a job's target with its source (Purpose.VERIFY), and repairs what differs (REPAIR). The source
# is read as of the job's watermark, the target as of the version up to which its log was checked: both stand still,
# whatever else is written meanwhile. A repair is an ordinary commit at seq + 1 with the same watermark.

_CATCH_UP = "Bring the job up to date (`iscp-admin notify`, `iscp-admin job wait`), and verify then"

_UNBOUNDED = Bounds(sys.maxsize, sys.maxsize, sys.maxsize)


class Verifier:
    """Compares the target of an iteration's one job, and repairs it."""

    def __init__(self, ports: IterationPorts) -> None:
        self._ports = ports

    def verify(self, iteration: Iteration, guard: Guard) -> JobOutcome:
        """Compare the target with the source, and repair it if the iteration is to.

        Raises an IscpError for the caller: the job itself has no fault.
        """
        (row,) = iteration.jobs
        job_run = self._ports.read_position(row)
        version = job_run.position.watermark.version
        if job_run.position.job_id != row.job_id or version < 0:
            why = job_run.position.void or "not built yet"
            raise JobFailed(
                f"the target of {row.key.job_name!r} holds nothing of this job: {why}",
                remedy="Wait until it is built (`iscp-admin job wait`), and verify then",
            )
        if job_run.position.watermark.steps:
            raise JobFailed(
                f"the target is between two versions: of version {version + 1} a part is applied",
                remedy="Wait until the job has caught up (`iscp-admin job wait`), and verify then",
            )
        try:
            with self._ports.tracer.span("iscp.compare", job_attributes(job_run)) as recorded:
                span = self._ports.source.at(iteration.table_uri, version)
                outcome = self._compare(iteration, job_run, span, guard)
                note_comparison(recorded, outcome)
                return outcome
        except ChangesUnavailableError as gone:
            raise PermanentError(
                f"the source cannot be read any more as it was at version {version}, which the target shows: {gone}",
                remedy=_CATCH_UP,
                code=ErrorCode.VERSION_GONE,
            ) from gone

    def _compare(self, iteration: Iteration, job_run: JobRun, span: SourceRange, guard: Guard) -> JobOutcome:
        if not same_log([job_run.position], span):
            raise PermanentError(
                f"version {span.to.version} of the source is not the one that was applied: it was replaced or restored",
                remedy=_CATCH_UP,
                code=ErrorCode.SOURCE_REPLACED,
            )
        row, position = job_run.row, job_run.position
        if job_run.kind.check is None:
            raise PermanentError(f"a consumer {job_run.kind.name} cannot be compared with its source", about="job")
        check = job_run.kind.check(row, self._ports.environment)
        with self._ports.engine.session() as session:
            context = self._ports.context(session, job_run, span, guard)
            with self._comparing(iteration, job_run, span, check, context) as compared:
                said = compared.comparison
                self._refuse_undecided(iteration, job_run, said)
                seq, rows = position.seq, 0
                repairs = iteration.purpose is Purpose.REPAIR and not (said.equal and not position.void)
                if repairs:
                    done = check.repair(context, compared, position.watermark)
                    seq, rows = done.position.seq, done.rows
        report = VerifyReport(position.watermark.version, seq, said, position.void, repaired=repairs)
        return JobOutcome(
            row=row,
            watermark=position.watermark,
            seq=seq,
            rows=rows,
            data_type=DataType.DIFFERENCE,
            from_version=position.watermark.version,
            verified=report,
            committed=repairs,
        )

    def _comparing(
        self, iteration: Iteration, job_run: JobRun, span: SourceRange, check: Check, context: ConsumeContext
    ) -> AbstractContextManager[Compared]:
        where = iteration.table_uri, span.to.version
        rows = self._ports.source.snapshot(context.session, *where)
        if check.compare_small is not None and not job_run.position.void:
            small = self._ports.source.small_snapshot(*where)
            said = (
                None
                if small is None
                else check.compare_small(context.session, job_run.position, rows, small.rows.schema)
            )
            if said is not None:
                return nullcontext(Compared(said))
        return check.compare(context, rows)

    def _refuse_undecided(self, iteration: Iteration, job_run: JobRun, said: Comparison) -> None:
        """Raise PermanentError if nobody can know whether an append-only target is right.

        Such a target retains what the source has lost: only a source that lost nothing shows what is wrong.
        """
        if job_run.row.spec.consumer.key or said.equal or job_run.kind.refuse_occupied is None:
            return
        try:
            version = job_run.position.watermark.version
            span = self._ports.source.resolve(iteration.table_uri, Watermark(), version, _UNBOUNDED)
            if span.inserts_only and span.to.version == version:
                return
        except ChangesUnavailableError:
            pass
        raise PermanentError(
            f"it cannot be known whether the target is right: {said}; but without a key it keeps every row ever "
            "inserted, and rows of the source were changed or deleted, or its log no longer shows that none was",
            remedy="Give the job a key to be able to verify it",
            code=ErrorCode.JOB_FAILED,
        )


# --- deletion of a target ---------------------------------------------------------------------------------------------
# The last iteration of a job that ends with its target deletes the target, with what is stored beside it.

STRATEGY = "deletion"
"""The strategy that the history has of it."""


class TargetRemover:
    """Deletes the target of an iteration's one job."""

    def __init__(self, ports: IterationPorts) -> None:
        self._ports = ports

    def remove(self, iteration: Iteration, guard: Guard) -> JobOutcome:
        """Delete the target, and return the outcome, whose warning says what is left in its directory.

        Raises Conflict; InvalidRequest if the account may have no table there any more; PermanentError if the target is
        not the job's alone.
        """
        ports, (row,) = self._ports, iteration.jobs
        ports.require_places(row)
        kind = ports.kinds(row.spec.consumer.kind)
        if kind.delete_target is None:
            raise PermanentError(f"a consumer {kind.name} deletes no target", remedy="Unregister the job without it")
        deleted = kind.delete_target(DeletionOrder(row, ports.epoch(), guard), ports.environment)
        return JobOutcome(
            row=row,
            watermark=row.watermark,
            seq=max(row.seq, deleted.seq),
            from_version=row.watermark.version,
            warning=f"left where the target was: {'; '.join(deleted.left)}" if deleted.left else "",
            strategy=STRATEGY,
            strategy_reason="; ".join(deleted.left),
        )
