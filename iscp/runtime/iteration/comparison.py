"""Runs iterations that compare a job's target with its source (Purpose.VERIFY), and repair what differs (REPAIR).

The source is read as of the job's watermark, the target as of the version up to which its log was checked: both stand
still, whatever else is written meanwhile. A repair is an ordinary commit at seq + 1 with the same watermark.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

from iscp.core.job.iteration import Bounds, DataType, Iteration, JobOutcome, Purpose
from iscp.core.job.verification import Comparison, VerifyReport
from iscp.core.values.errors import ErrorCode, JobFailed, PermanentError
from iscp.core.values.watermark import Watermark
from iscp.ports.consumer import Check, ConsumeContext
from iscp.ports.sink import Compared
from iscp.ports.source import ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_run import JobRun
from iscp.runtime.iteration.job_spans import job_attributes, note_comparison
from iscp.runtime.iteration.read_policy import same_log

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
