"""Runs one iteration that applies changes: it hands data to consumers, and takes their answers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iscp.core.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.usage import SECONDS_MOST, UsagePart
from iscp.core.job.watermark_record import WatermarkRecord
from iscp.core.values.exact_watermarks import exact_watermark
from iscp.ports.consumer import Consumed
from iscp.ports.source import ChangeSet, SourceRange
from iscp.ports.system import Guard
from iscp.ports.tracing import current_trace
from iscp.ports.work_timer import charge_by_now, count_work, working_for
from iscp.runtime.iteration.apply.change_reader import IterationRetriever, Snapshot
from iscp.runtime.iteration.apply.side_by_side import run_side_by_side
from iscp.runtime.iteration.iteration_meters import IterationMeter
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_outcomes import applied, record_failure
from iscp.runtime.iteration.job_run import JobRun
from iscp.runtime.iteration.job_spans import job_attributes, note_outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

WAIT_LOGGED_S = 1.0
"""Seconds from which on it is logged that a job of an iteration has waited for the others, and for which."""


@dataclass(frozen=True, slots=True)
class ApplyRun:
    """One iteration that applies changes, while it runs.

    `on_committed` is called for each job as soon as its part is in its sink, on the thread that committed it.
    """

    ports: IterationPorts
    bounds: Bounds
    on_committed: Callable[[JobOutcome], None]
    iteration: Iteration
    guard: Guard
    meter: IterationMeter

    @property
    def uri(self) -> str:
        return self.iteration.table_uri

    def of_jobs(self, rows: Sequence[JobRow]) -> ApplyRun:
        """Return the same iteration for these of its jobs alone."""
        return replace(self, iteration=replace(self.iteration, jobs=tuple(rows)))

    def run_each(self, works: list[JobRun], consume: Callable[[JobRun], JobOutcome]) -> list[JobOutcome]:
        """Have `consume` called for each, side by side, and return their outcomes in order."""
        parent = current_trace()  # threads of their own do not know it

        def consume_for(job_run: JobRun) -> JobOutcome:
            attributes, tracer = job_attributes(job_run), self.ports.tracer
            with self.working_for([job_run.row]), tracer.span("iscp.consume", attributes, parent=parent) as span:
                outcome = consume(job_run)
                note_outcome(span, outcome)
                return outcome

        with self.working_for(()):  # what others do meanwhile, or before its turn comes, is no job's work
            return run_side_by_side(self.ports.engine, self.iteration, works, consume_for, self.ports.deaths.at_work)

    def working_for(self, rows: Iterable[JobRow], part: UsagePart = UsagePart.COMPUTE) -> AbstractContextManager[None]:
        """Charge what this thread does within to the usage of these jobs."""
        return working_for(self.ports.clock, [self.meter.tally(row) for row in rows], part)

    def with_usage(self, outcome: JobOutcome) -> JobOutcome:
        """Return the outcome with what the job's part has cost by now, and why it needed Spark.

        In the rest of the iteration's time the job waited for the iteration's other jobs, where it has others.
        """
        charge_by_now()
        tally = self.meter.tally(outcome.row)
        usage = tally.usage(outcome.rows)
        others = [row for row in self.meter.iteration.jobs if row.key != outcome.row.key]
        rest_s = self.ports.clock.monotonic_s() - self.meter.began_s - usage.work_s
        waited_s = max(0.0, rest_s) if others else 0.0
        usage = replace(usage, wait_s=min(waited_s, SECONDS_MOST))
        if waited_s >= WAIT_LOGGED_S:
            waited = {"waited_s": round(waited_s, 1), "waited_for": [row.key.job_name for row in others]}
            log.info("iteration.waited", extra=logged_job(outcome.row, self.uri) | waited)
        size = outcome.bytes or (usage.bytes_written if outcome.ok else 0)
        return replace(outcome, bytes=size, usage=usage, spark=tally.spark)

    def fail_all(self, works: Sequence[JobRun], error: BaseException) -> list[JobOutcome]:
        return [record_failure(job_run.row, job_run.position, error) for job_run in works]

    def retriever(
        self,
        data_type: DataType,
        job_run: JobRun,
        span: SourceRange,
        from_version: int,
        rows: Snapshot | None = None,
        feed: ChangeSet | None = None,
    ) -> IterationRetriever:
        """Return what `job_run` is handed of `span`.

        That is `rows` at its last version, or the changes of `feed`: one of the two.
        """
        record = WatermarkRecord(
            seq=job_run.position.seq + 1,
            watermark=exact_watermark(span.to),
            job_id=job_run.row.job_id,
            source_id=span.table_id,
            from_version=from_version,
            epoch=self.ports.epoch(),
            attempt=uuid.uuid4().hex[:12],
            origin=job_run.row.origin,
        )
        retriever = IterationRetriever(data_type, job_run, record, self.ports, self.guard, rows, feed)
        self.meter.retrievers.append(retriever)
        return retriever

    def consume(
        self,
        session: SparkSession,
        job_run: JobRun,
        retriever: IterationRetriever,
        span: SourceRange,
        warning: str,
        reason: str = "",
    ) -> JobOutcome:
        """Have the consumer commit, and return the outcome.

        `session` is that of the rows handed over, which nobody else may use meanwhile. `reason` says why they are not
        the changes alone.
        """
        consumed: Consumed = job_run.consumer.consume(self.ports.context(session, job_run, span, self.guard), retriever)
        count_work(rows_read=retriever.rows_read)
        return self.committed(job_run, consumed, retriever.data_type, retriever.from_version, warning, reason)

    def committed(
        self,
        job_run: JobRun,
        consumed: Consumed,
        data_type: DataType,
        from_version: int,
        warning: str,
        reason: str = "",
    ) -> JobOutcome:
        """Report what is in the sink, and return the outcome.

        From here on no fault is a reason to apply it again, as the sink's position says.
        """
        self.ports.failpoints.reach("report.before")
        outcome = self.with_usage(applied(job_run.row, consumed, data_type, from_version, warning, reason))
        if job_run.whole:
            self.on_committed(outcome)
        job_run.consumer.tidy()
        return outcome
