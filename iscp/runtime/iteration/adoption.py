"""Runs the first iteration of a job that takes over a table which is there already.

The table's rows are compared with the source's at the version that the job names. If they are equal, one empty commit
makes the table the job's, and the next iteration takes the changes since then; if not, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from iscp.core.errors import Conflict, ErrorCode, PermanentError
from iscp.core.iteration import DataType, Iteration, JobOutcome
from iscp.core.job_row import JobRow
from iscp.core.verification import Comparison
from iscp.core.watermark import NO_DEAD_LETTERS
from iscp.ports.consumer import Adopting, ConsumeContext, ConsumerEnvironment
from iscp.ports.engine import Engine, IterationRunner
from iscp.ports.source import ChangeSource, ChangesUnavailableError
from iscp.ports.system import Clock, Guard
from iscp.runtime.iteration.job_run import JobRun
from iscp.runtime.iteration.runner import CONFLICT_TRIES_MAX, Runner

FIELD = "spec.iteration.adopt_from"


@dataclass(frozen=True, slots=True)
class Adopter:
    """Port IterationRunner: `others` runs what takes over nothing. A job that was never built runs alone."""

    runner: Runner
    others: IterationRunner
    engine: Engine
    source: ChangeSource
    environment: ConsumerEnvironment
    clock: Clock
    epoch: Callable[[], int]

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        row, *more = iteration.jobs
        version = row.spec.adopt_from
        if more or version is None or row.watermark.version >= 0:
            return self.others.run(iteration, guard)
        self.engine.label(iteration.label)
        for _ in range(CONFLICT_TRIES_MAX - 1):
            try:
                return self._attempt(iteration, row, version, guard)
            except Conflict:
                continue
        return self._attempt(iteration, row, version, guard)

    def cancel(self, iteration: Iteration) -> None:
        self.others.cancel(iteration)

    def _attempt(self, iteration: Iteration, row: JobRow, version: int, guard: Guard) -> tuple[JobOutcome, ...]:
        work = self.runner.read_position(row)
        if work.position.job_id == row.job_id:
            # It is the job's already: a node died before it could say so, or the job log is older.
            return self.others.run(iteration, guard)
        return (self._adopt(iteration.table_uri, work, version, guard),)

    def _adopt(self, uri: str, work: JobRun, version: int, guard: Guard) -> JobOutcome:
        """Raises PermanentError where the target is not what it is said to be."""
        kind = work.kind
        if not isinstance(kind, Adopting):
            raise PermanentError(f"a consumer {kind.name} takes over no table", field=FIELD)
        try:
            return self._compare_and_claim(uri, work, kind, version, guard)
        except ChangesUnavailableError as gone:
            raise PermanentError(
                f"the source cannot be read any more as it was: {gone}",
                field=FIELD,
                remedy="Have the target built by `iscp-admin job resync`",
                code=ErrorCode.VERSION_GONE,
            ) from gone

    def _compare_and_claim(self, uri: str, work: JobRun, kind: Adopting, version: int, guard: Guard) -> JobOutcome:
        row, span = work.row, self.source.at(uri, version)
        check = kind.check(row, self.environment)
        with self.engine.session() as session:
            # Rows that a former job has set aside are not known to be those of this version.
            position = replace(work.position, dead=NO_DEAD_LETTERS)
            context = ConsumeContext(session, row, span.table_id, self.epoch(), position, guard, span.column_ids)
            rows = self.source.snapshot(session, uri, version)
            with check.compare(context, rows) as compared:
                said = compared.comparison
                # An append-only target may hold what its source has lost.
                unlike = not said.equal if row.spec.consumer.key else said.missing
                # Rows that share a key would be set aside, which nobody has done yet.
                if unlike or said.shared:
                    raise _unlike(version, said)
                position = check.adopt(context, span.to)
        return JobOutcome(
            row=row,
            watermark=span.to,
            seq=position.seq,
            data_type=DataType.DIFFERENCE,
            target_commit_at_s=self.clock.now_s(),
            source_id=position.source_id,
        )


def _unlike(version: int, said: Comparison) -> PermanentError:
    shared = f"; {said.shared} keys of the source have several rows" if said.shared else ""
    return PermanentError(
        f"the target does not hold the source's rows at version {version}: {said}{shared}",
        field=FIELD,
        remedy="Nothing was written. Mend the target and resume the job; or delete it and register it with the right "
        "version; or have the target built by `iscp-admin job resync`",
        code=ErrorCode.ADOPT_DIFFERS,
    )
