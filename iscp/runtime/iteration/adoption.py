"""Runs the first iteration of a job that takes over a table which is there already.

The table's rows are compared with the source's at the version that the job names. If they are equal, one empty commit
makes the table the job's, and the next iteration takes the changes since then; if not, nothing is written.
"""

from __future__ import annotations

from dataclasses import replace

from iscp.core.job.iteration import DataType, Iteration, JobOutcome
from iscp.core.job.verification import Comparison
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import NO_DEAD_LETTERS
from iscp.ports.consumer import Adopting
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_run import JobRun

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
