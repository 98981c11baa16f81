"""Runs one iteration: asks the sinks where they stand, reads the source once, lets the consumers commit.

What a job is handed follows from what its sink says, never from what the node believes: a new registration claims
the sink and gets a snapshot, a sink whose rows cannot be trusted gets a difference, any other the changes since
its watermark. A fault of one job is its own.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.core.errors import ErrorCode, PermanentError
from iscp.core.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.core.job_row import JobRow
from iscp.core.range_lineage import Piece
from iscp.core.report_validation import exact_position, exact_watermark
from iscp.core.watermark import NOTHING_APPLIED, Position, Watermark, later
from iscp.core.watermark_record import WatermarkRecord
from iscp.ports.consumer import (
    ConsumeContext,
    Consumed,
    ConsumerEnvironment,
    ConsumerKind,
    RangedConsumer,
    TidyingConsumer,
)
from iscp.ports.engine import Engine
from iscp.ports.source import ChangeSet, ChangeSource, ChangesUnavailableError, SourceRange
from iscp.ports.system import Clock, Failpoints, Guard
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.change_reader import IterationRetriever
from iscp.runtime.iteration.column_check import split_by_columns
from iscp.runtime.iteration.job_outcomes import applied, record_failure
from iscp.runtime.iteration.job_run import JobRun, Netted, log_rebuild, netted, reconciled
from iscp.runtime.iteration.position_renewal import renewing
from iscp.runtime.iteration.range_position import RangePosition, read_position
from iscp.runtime.iteration.read_policy import Reading
from iscp.runtime.iteration.side_by_side import run_side_by_side
from iscp.runtime.iteration.source_state import applied_at_s, enable_source_cdf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

CONFLICT_TRIES_MAX = 3
"""Attempts of an iteration whose seq was taken by another writer; then it fails with a Conflict, and is retried by
backoff.
"""


class Runner:
    """Port IterationRunner. One instance serves all threads of the executor."""

    def __init__(
        self,
        engine: Engine,
        source: ChangeSource,
        kinds: Callable[[str], ConsumerKind],
        environment: ConsumerEnvironment,
        clock: Clock,
        failpoints: Failpoints,
        bounds: Bounds,
        epoch: Callable[[], int],
        on_committed: Callable[[JobOutcome], None] = lambda outcome: None,
    ) -> None:
        """`on_committed` is told of each job as soon as its part is in its sink, on the thread that committed it."""
        self._engine = engine
        self._source = source
        self._kinds = kinds
        self._environment = environment
        self._clock = clock
        self._failpoints = failpoints
        self._bounds = bounds
        self._epoch = epoch
        self._on_committed = on_committed

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        """One outcome a job. A job that lost its seq to another writer starts over from what the sink says."""
        self._engine.label(iteration.label)
        began_s, (spark_s, direct_s) = self._clock.monotonic_s(), self._engine.spent_s()
        outcomes: dict[str, JobOutcome] = {}
        waiting = iteration.jobs
        for _ in range(CONFLICT_TRIES_MAX):
            done = self._attempt(replace(iteration, jobs=waiting), guard)
            outcomes.update({outcome.row.job_id: outcome for outcome in done})
            waiting = tuple(outcome.row for outcome in done if outcome.error_code == ErrorCode.CONFLICT)
            if not waiting:
                break
        spark_now_s, direct_now_s = self._engine.spent_s()
        log.info(
            "iteration.done",
            extra={
                "table": iteration.table_uri,
                "number": iteration.number,
                "jobs": len(iteration.jobs),
                "failed": sum(not outcome.ok for outcome in outcomes.values()),
                "took_s": round(self._clock.monotonic_s() - began_s, 4),
                "spark_s": round(spark_now_s - spark_s, 4),
                "direct_s": round(direct_now_s - direct_s, 4),
            },
        )
        return tuple(outcomes[row.job_id] for row in iteration.jobs)

    def cancel(self, iteration: Iteration) -> None:
        self._engine.cancel(iteration.label)

    def _attempt(self, iteration: Iteration, guard: Guard) -> list[JobOutcome]:
        outcomes: list[JobOutcome] = []
        works: list[JobRun] = []
        for row in iteration.jobs:
            try:
                work = self._open_run(iteration, row, guard)
                (works if isinstance(work, JobRun) else outcomes).append(work)  # type: ignore[arg-type]
            except BaseException as error:  # noqa: BLE001  (one job's fault, its consumer's exit too, is its own)
                outcomes.append(record_failure(row, None, error))
        tails: dict[Watermark, list[JobRun]] = {}
        others: list[JobRun] = []
        for work in works:
            if work.data_type is DataType.TAIL:
                tails.setdefault(work.position.watermark, []).append(work)
            else:
                others.append(work)
        for since, group in tails.items():
            outcomes += self._apply_tail(iteration, since, group, guard)
        outcomes += run_side_by_side(
            self._engine, iteration, others, lambda work: self._apply_full(iteration, work, guard)
        )
        return outcomes

    def read_position(self, row: JobRow) -> JobRun:
        """Where the job's sink stands; raises Superseded where it belongs to a later registration."""
        kind = self._kinds(row.spec.consumer.kind)
        consumer = kind.open(row, self._environment)
        return reconciled(JobRun(row, kind, consumer, exact_position(consumer.position(row))))

    def _open_run(self, iteration: Iteration, row: JobRow, guard: Guard) -> JobRun | JobOutcome:
        """As `read_position`, once all parts of a merged range are at one version; or how far they came.

        Each part goes on by one iteration at the most, on behalf of its range, whose record it writes. It takes over
        the whole range all the same: what the parts' former writers have on its way fails.
        """
        kind = self._kinds(row.spec.consumer.kind)
        consumer = kind.open(row, self._environment)
        if not isinstance(consumer, RangedConsumer):
            return self.read_position(row)
        reached: dict[int, Watermark] = {}
        stands = read_position(row, consumer, reached)
        while (part := stands.lagging(reached)) is not None:
            outcome = self._catch_up_range(replace(iteration, to_version=stands.goal), row, part, stands, guard)
            reached[part.range_id] = outcome.watermark if outcome.ok else part.record.watermark
            stands = read_position(row, consumer, reached)
            if not outcome.ok or (stands.apart and stands.lagging(reached) is None):
                return replace(outcome, row=row, watermark=later(row.watermark, stands.position.watermark))
        return reconciled(JobRun(row, kind, consumer, stands.position, stands.takeover))

    def _catch_up_range(
        self, iteration: Iteration, row: JobRow, part: Piece, stands: RangePosition, guard: Guard
    ) -> JobOutcome:
        row, record = row._replace(key=row.key.of_range(part.range_id)), part.record
        seq = max(stands.position.seq, row.seq)
        position = Position(seq, record.watermark, row.job_id, record.source_id)
        kind = self._kinds(row.spec.consumer.kind)
        work = JobRun(row, kind, kind.open(row, self._environment), position, stands.takeover, whole=False)
        (outcome,) = self._apply_tail(iteration, record.watermark, [work], guard)
        return outcome

    def _apply_tail(
        self, iteration: Iteration, since: Watermark, group: list[JobRun], guard: Guard
    ) -> list[JobOutcome]:
        """All jobs of one watermark share one read; what cannot be read as changes is taken by difference."""
        uri = iteration.table_uri
        try:
            span = self._source.resolve(uri, since, iteration.to_version, self._bounds)
            exact_watermark(span.to)  # a commit may say any time of itself
            # Asked first: a table that was made anew may stand at the very same version.
            if not read_policy.same_log((work.position for work in group), span):
                raise ChangesUnavailableError("the source was replaced")
        except ChangesUnavailableError as gone:
            return self._apply_full_to_all(iteration, group, str(gone), guard)
        except Exception as error:  # noqa: BLE001  (reported for each job)
            return [record_failure(work.row, work.position, error) for work in group]
        if not span.changes_data:
            return run_side_by_side(self._engine, iteration, group, renewing(self._engine, self._epoch, span, guard))
        group, others = split_by_columns(self._source, uri, group, span)
        outcomes = [
            each for work, reason in others for each in self._apply_full_to_all(iteration, [work], reason, guard)
        ]
        for way in Reading:
            works = [work for work in group if read_policy.reading(work.row.spec, span) is way]
            if way is Reading.COMPARE:
                outcomes += run_side_by_side(
                    self._engine,
                    iteration,
                    works,
                    lambda work: self._apply_full(iteration, work, guard, read_policy.unread(work.row.spec)),
                )
            elif works:
                outcomes += self._apply_changes(iteration, works, span, way, guard)
        return outcomes

    def _apply_changes(
        self, iteration: Iteration, group: list[JobRun], span: SourceRange, way: Reading, guard: Guard
    ) -> list[JobOutcome]:
        """Hand the changes of `span`, read once, to `group`."""
        uri, feed = iteration.table_uri, None
        with self._engine.session() as session:
            try:
                self._failpoints.reach("read.before")
                guard.check()
                available = self._source.columns(uri, span.last_version)
                wanted, out = self._collect_columns(group, available)
                if span.steps and any(not work.row.spec.consumer.key for work in group):
                    wanted = set(available)  # rows without a key are told apart by all that they hold
                open_feed = self._source.read_cdf if way is Reading.FEED else self._source.read_appends
                feed = open_feed(session, uri, span, [name for name in available if name in wanted], len(group))
                able, shared = self._net_changes(feed, [work for work in group if work.row.job_id not in out])
                self._failpoints.reach("read.after")
                kept = feed
                done = run_side_by_side(
                    self._engine, iteration, able, lambda work: self._consume_tail(iteration, work, span, kept, guard)
                )
                return [*done, *out.values(), *shared]
            except ChangesUnavailableError as gone:
                return self._apply_full_to_all(iteration, group, str(gone), guard)
            except Exception as error:  # noqa: BLE001  (reported for each job)
                return [record_failure(work.row, work.position, error) for work in group]
            finally:
                if feed is not None:
                    feed.release()

    def _apply_full_to_all(
        self, iteration: Iteration, group: list[JobRun], reason: str, guard: Guard
    ) -> list[JobOutcome]:
        return run_side_by_side(
            self._engine, iteration, group, lambda work: self._apply_full(iteration, work, guard, reason)
        )

    def _collect_columns(self, group: list[JobRun], available: Sequence[str]) -> tuple[set[str], dict[str, JobOutcome]]:
        """What the jobs want to be read, and the outcomes of those whose columns the source has lost, by job_id."""
        wanted: set[str] = set()
        out: dict[str, JobOutcome] = {}
        for work in group:
            try:
                wanted.update(work.kind.columns(work.row.spec.consumer, available))
            except BaseException as error:  # noqa: BLE001  (one job's fault is its own)
                out[work.row.job_id] = record_failure(work.row, work.position, error)
        return wanted, out

    def _net_changes(self, feed: ChangeSet, works: list[JobRun]) -> tuple[list[JobRun], list[JobOutcome]]:
        """Net the changes by every key and filter there is; a fault is that of their jobs alone."""
        faults: dict[Netted | None, PermanentError] = {}
        for way in {way for work in works if (way := netted(work)) is not None}:
            try:
                feed.net(*way)
            except PermanentError as error:
                faults[way] = error
            except ChangesUnavailableError:
                continue  # each of its consumers will come upon that, and compare
        found = [(work, faults.get(netted(work))) for work in works]
        able = [work for work, error in found if error is None]
        return able, [record_failure(work.row, work.position, error) for work, error in found if error is not None]

    def _consume_tail(
        self, iteration: Iteration, work: JobRun, span: SourceRange, feed: ChangeSet, guard: Guard
    ) -> JobOutcome:
        handed = self._make_retriever(DataType.TAIL, work, span, span.from_version, guard, feed=feed)
        try:
            with self._engine.session() as session:
                return self._consume(session, work, handed, span, guard, read_policy.warning(work.row.spec, span))
        except ChangesUnavailableError as unfit:
            return self._apply_full(iteration, work, guard, str(unfit))

    def _apply_full(self, iteration: Iteration, work: JobRun, guard: Guard, reason: str = "") -> JobOutcome:
        """A snapshot or a difference: all rows of the source at one version. `reason`: why changes do not do."""
        uri = iteration.table_uri
        to_version = iteration.to_version if work.data_type is DataType.SNAPSHOT else None
        try:
            span = self._source.newest(uri) if to_version is None else self._source.at(uri, to_version)
        except ChangesUnavailableError:
            span = self._source.newest(uri)
        goes_on = work.data_type is not DataType.SNAPSHOT
        if goes_on:
            read_policy.refuse_anew(work.row.spec, work.position, span, lambda: applied_at_s(self._source, uri, work))
        if work.row.spec.enable_cdf and not span.cdf_on:
            span = enable_source_cdf(self._engine, self._source, uri, span, guard)
        if goes_on:
            read_policy.refuse_feed_off(work.row.spec, span)
        work.kind.columns(work.row.spec.consumer, self._source.columns(uri, span.to.version))  # refuses what is gone
        with self._engine.session() as session:
            return self._rebuild(session, uri, work, span, guard, reason)

    def _rebuild(
        self, session: SparkSession, uri: str, work: JobRun, span: SourceRange, guard: Guard, reason: str
    ) -> JobOutcome:
        """Claim the sink where it is not the job's, and hand it all rows of `span`'s last version."""
        anew_for, rows = log_rebuild(work, uri), self._source.snapshot(session, uri, span.to.version)
        if work.position.job_id != work.row.job_id:
            work = replace(work, position=work.consumer.claim(self._context(session, work, span, guard), rows))
        anew = work.data_type is DataType.SNAPSHOT or not work.kind.needs.compares
        data_type = DataType.SNAPSHOT if anew else DataType.DIFFERENCE
        from_version = NOTHING_APPLIED if anew else work.position.watermark.version
        handed = self._make_retriever(data_type, work, span, from_version, guard, rows=rows)
        self._failpoints.reach("snapshot.before")
        reason = "" if work.data_type is DataType.SNAPSHOT else reason or work.position.void
        if reason:
            log.warning("changes.unavailable", extra={"table": uri, "job": work.row.key.job_name, "reason": reason})
        warning = read_policy.warning(work.row.spec, span, reason, anew_for)
        return self._consume(session, work, handed, span, guard, warning)

    def _context(self, session: SparkSession, work: JobRun, span: SourceRange, guard: Guard) -> ConsumeContext:
        epoch = self._epoch()
        return ConsumeContext(session, work.row, span.table_id, epoch, work.position, guard, span.column_ids)

    def _make_retriever(
        self,
        data_type: DataType,
        work: JobRun,
        span: SourceRange,
        from_version: int,
        guard: Guard,
        rows: DataFrame | None = None,
        feed: ChangeSet | None = None,
    ) -> IterationRetriever:
        record = WatermarkRecord(
            seq=work.position.seq + 1,
            watermark=exact_watermark(span.to),
            job_id=work.row.job_id,
            source_id=span.table_id,
            from_version=from_version,
            epoch=self._epoch(),
            attempt=uuid.uuid4().hex[:12],
            origin=work.row.origin,
        )
        base_seq, needs = work.position.base_version, work.kind.needs
        told = self._engine, guard, self._failpoints
        return IterationRetriever(data_type, work.row, needs, record, base_seq, *told, rows, feed, work.takeover)

    def _consume(
        self,
        session: SparkSession,
        work: JobRun,
        handed: IterationRetriever,
        span: SourceRange,
        guard: Guard,
        warning: str,
    ) -> JobOutcome:
        """`session`: that of the rows handed, which nobody else may use meanwhile."""
        consumed: Consumed = work.consumer.consume(self._context(session, work, span, guard), handed)
        self._failpoints.reach("report.before")
        now_s = self._clock.now_s()
        outcome = applied(work.row, consumed, handed.data_type, handed.from_version, now_s, warning)
        if work.whole:
            self._on_committed(outcome)
        if isinstance(work.consumer, TidyingConsumer):
            work.consumer.tidy()
        return outcome
