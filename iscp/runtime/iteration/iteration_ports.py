"""The ports by which iterations are carried out, and the positions of their jobs' sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iscp.core.job.job_row import JobRow
from iscp.core.job.report_validation import exact_position
from iscp.core.settings.config import BuildConfig
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, Consumer, ConsumerEnvironment, ConsumerKind
from iscp.ports.engine import NO_DEATHS, Engine, JobDeaths
from iscp.ports.range_builder import NothingRetained, RetainedCommits
from iscp.ports.retention_hold import NothingHeld
from iscp.ports.source import ChangeSource, SourceRange
from iscp.ports.system import Clock, Failpoints, Guard
from iscp.ports.tracing import NO_TRACER, Tracer, current_trace
from iscp.runtime.access.place_guard import ANYWHERE
from iscp.runtime.iteration.hold_placer import HoldPlacer
from iscp.runtime.iteration.job_run import JobRun, reconciled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_BUILDS = BuildConfig(table_bytes_min=0)
CONFLICT_TRIES_MAX = 3
"""Attempts of an iteration whose seq was taken by another writer; then it fails with a Conflict, and is retried by
backoff."""

LOST_TRIES_MAX = 5
"""Attempts of an iteration whose files were removed while it read them, each at the newest version then; after the last
it fails with a FileLost, and is retried by backoff."""


@dataclass(frozen=True, slots=True)
class IterationPorts:
    """Iterations are carried out through these ports.

    `kinds` finds a kind of consumer by its name; `epoch` is that of the node's registration at the moment. `builds`
    says which first snapshots are built by ranges, and `retained` has the commits that are retained meanwhile. `holds`
    places the holds that jobs have on their sources.
    `require_places` raises InvalidRequest for a job that reads or writes where its account may not. `deaths` has the
    jobs that the node's process has died of.
    """

    engine: Engine
    source: ChangeSource
    kinds: Callable[[str], ConsumerKind]
    environment: ConsumerEnvironment
    clock: Clock
    failpoints: Failpoints
    epoch: Callable[[], int]
    builds: BuildConfig = NO_BUILDS
    retained: RetainedCommits = field(default_factory=NothingRetained)
    require_places: Callable[[JobRow], None] = ANYWHERE.require_job
    deaths: JobDeaths = NO_DEATHS
    holds: HoldPlacer = field(default_factory=lambda: HoldPlacer(NothingHeld()))
    tracer: Tracer = NO_TRACER

    def open(self, row: JobRow) -> Consumer:
        """Return the job's consumer, which every iteration needs. Raises InvalidRequest as `require_places` does."""
        self.require_places(row)
        consumer: object = self.kinds(row.spec.consumer.kind).open(row, self.environment)
        if not isinstance(consumer, Consumer):
            raise PermanentError(
                f"the consumer {row.spec.consumer.kind!r} opens {type(consumer).__name__}, which is no Consumer",
                remedy="Derive its class from Consumer of iscp.ports.consumer, as docs/consumers.md says",
                code=ErrorCode.CONSUMER_BROKEN,
            )
        return consumer

    def read_position(self, row: JobRow) -> JobRun:
        """Return the job with its sink's position; raises Superseded if that belongs to a later registration."""
        kind, consumer = self.kinds(row.spec.consumer.kind), self.open(row)
        return reconciled(JobRun(row, kind, consumer, exact_position(consumer.position(row))))

    def context(
        self, session: SparkSession, job_run: JobRun, span: SourceRange, guard: Guard, position: Position | None = None
    ) -> ConsumeContext:
        """Return the context of a consumer at `position`, or, if that is None, at the position of `job_run`."""
        at = job_run.position if position is None else position
        return ConsumeContext(
            session, job_run.row, span.table_id, self.epoch(), at, guard, span.column_ids, current_trace()
        )

    def place_holds(self, job_run: JobRun, guard: Guard) -> None:
        """Have the job hold the tables that its kind says. Raises as RetentionHold, and as the guard."""
        row = job_run.row
        if wanted := job_run.kind.held(row.spec.consumer):
            self.holds.place(row, wanted, job_run.position, guard, self.clock.monotonic_s())
