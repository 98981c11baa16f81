"""One iteration that applies changes, while it runs: what a consumer is handed of it, and what it answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iscp.core.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.core.job.job_row import JobRow
from iscp.core.job.watermark_record import WatermarkRecord
from iscp.core.values.exact_watermarks import exact_watermark
from iscp.ports.consumer import Consumed, TidyingConsumer
from iscp.ports.source import ChangeSet, SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.apply.change_reader import IterationRetriever, Snapshot
from iscp.runtime.iteration.apply.side_by_side import run_side_by_side
from iscp.runtime.iteration.iteration_meters import IterationMeter
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.job_outcomes import applied, record_failure
from iscp.runtime.iteration.job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ApplyRun:
    """`on_committed` is called for each job as soon as its part is in its sink, on the thread that committed it."""

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
        """The same for these of its jobs alone."""
        return replace(self, iteration=replace(self.iteration, jobs=tuple(rows)))

    def run_each(self, works: list[JobRun], consume: Callable[[JobRun], JobOutcome]) -> list[JobOutcome]:
        return run_side_by_side(self.ports.engine, self.iteration, works, consume, self.ports.deaths.at_work)

    def fail_all(self, works: Sequence[JobRun], error: BaseException) -> list[JobOutcome]:
        return [record_failure(work.row, work.position, error) for work in works]

    def retriever(
        self,
        data_type: DataType,
        work: JobRun,
        span: SourceRange,
        from_version: int,
        rows: Snapshot | None = None,
        feed: ChangeSet | None = None,
    ) -> IterationRetriever:
        """What `work` is handed of `span`: `rows` at its last version, or the changes of `feed`: one of the two."""
        record = WatermarkRecord(
            seq=work.position.seq + 1,
            watermark=exact_watermark(span.to),
            job_id=work.row.job_id,
            source_id=span.table_id,
            from_version=from_version,
            epoch=self.ports.epoch(),
            attempt=uuid.uuid4().hex[:12],
            origin=work.row.origin,
        )
        handed = IterationRetriever(data_type, work, record, self.ports, self.guard, rows, feed)
        self.meter.handed.append(handed)
        return handed

    def consume(
        self, session: SparkSession, work: JobRun, handed: IterationRetriever, span: SourceRange, warning: str
    ) -> JobOutcome:
        """Have the consumer commit. `session`: that of the rows handed, which nobody else may use meanwhile."""
        consumed: Consumed = work.consumer.consume(self.ports.context(session, work, span, self.guard), handed)
        return self.committed(work, consumed, handed.data_type, handed.from_version, warning)

    def committed(
        self, work: JobRun, consumed: Consumed, data_type: DataType, from_version: int, warning: str
    ) -> JobOutcome:
        """It is in the sink: from here on no fault is a reason to apply it again, as the sink's position says."""
        self.ports.failpoints.reach("report.before")
        outcome = applied(work.row, consumed, data_type, from_version, warning)
        if work.whole:
            self.on_committed(outcome)
        if isinstance(work.consumer, TidyingConsumer):
            work.consumer.tidy()
        return outcome
