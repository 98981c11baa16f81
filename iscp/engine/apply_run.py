"""One iteration that applies changes, while it runs: it hands data to the consumers of its jobs, lets them work at the
same time, and takes their answers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.engine.iteration_ports import (
    IterationMeter,
    IterationPorts,
    JobRun,
    applied,
    job_attributes,
    note_outcome,
    record_failure,
    unchanged,
)
from iscp.model.job.iteration import SECONDS_MOST, Bounds, ChangeDetail, DataType, Iteration, JobOutcome, UsagePart
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_job
from iscp.model.job.watermark_record import WatermarkRecord, fenced, position_of, record_key
from iscp.model.rows.key_ranges import Op, condition_sql, hash_sql
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import KEY_HASH, OP, quoted
from iscp.model.values.errors import Conflict, PermanentError, StorageError
from iscp.model.values.watermark import Watermark, exact_watermark, later, other_columns
from iscp.ports.consumer import ConsumeContext, Consumed, WatermarkTxn
from iscp.ports.engine import NO_DEATHS, Engine, charge_by_now, charge_rest_as, charged_as, count_work, working_for
from iscp.ports.source import (
    Changes,
    ChangeSet,
    ChangeSource,
    ChangesUnavailableError,
    KeyedRows,
    Rows,
    SmallSnapshot,
    SourceRange,
)
from iscp.ports.system import Guard, current_trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


# --- the data of a consumer (port Retriever) --------------------------------------------------------------------------
# Nothing is cached here: frames are made on demand, from what the runner has read once for all.

BATCH_ROWS_MAX = 10_000
"""Rows in one batch for a custom consumer; more come in further batches."""

_STAMPS = ("_commit_version", "_commit_timestamp")
_OF_CHANGES = frozenset({OP, "_change_type", *_STAMPS})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows of a source at one version; `small`: they are few, and in memory."""

    make_frame: Callable[[], DataFrame]
    small: SmallSnapshot | None = None


class IterationRetriever:
    """Hands a consumer `rows`, the source at the record's version, or `feed`, what changed up to it: one of the two.

    Rows and changes are those of the job's range alone.
    """

    def __init__(
        self,
        data_type: DataType,
        job_run: JobRun,
        record: WatermarkRecord,
        ports: IterationPorts,
        guard: Guard,
        rows: Snapshot | None = None,
        feed: ChangeSet | None = None,
    ) -> None:
        self.data_type = data_type
        self.record = record
        self.rows_given = 0
        self._rows_changed = 0
        self._row = job_run.row
        self._spec: ConsumerSpec = job_run.row.spec.consumer
        self._needs, self._sharded = job_run.kind.needs, job_run.kind.sharded
        self._base_seq = job_run.position.base_version
        """The seq at which the sink said that it is, -1 if it said nothing."""
        self._takeover = job_run.takeover
        self._engine = ports.engine
        self._failpoints = ports.failpoints
        self._guard = guard
        self._rows = rows
        self._feed = feed
        self._range = condition_sql(self._spec.key, job_run.row.key.range_id)
        self._hash = [f"{hash_sql(self._spec.key)} AS _key_hash"] if self._sharded else []
        self._given: Iterator[tuple[pa.Table, pa.Table]] | None = None

    @property
    def from_version(self) -> int:
        return self.record.from_version

    @property
    def to(self) -> Watermark:
        return self.record.watermark

    @property
    def to_version(self) -> int:
        return self.record.watermark.version

    @property
    def seq(self) -> int:
        return self.record.seq

    @cached_property
    def snapshot(self) -> DataFrame:
        assert self._rows is not None
        frame = self._rows.make_frame()
        return frame.where(self._range) if self._range else frame

    @property
    def snapshot_rows(self) -> Rows:
        small = None if self._rows is None or self._range else self._rows.small
        return Rows(lambda: self.snapshot, lambda: None if small is None else small.rows)

    def changes(self, key: Sequence[str], where: str = "") -> Changes:
        assert self._feed is not None
        conditions = [each for each in (where, self._range) if each]
        return self._count_changed(self._feed.net(key, conditions, columns=self._compared_columns))

    def rows_of_changed_keys(self) -> KeyedRows:
        assert self._feed is not None
        found = self._feed.of_keys(self._spec.key)
        if found.keys.table is not None:
            self._rows_changed = len(found.keys.table)
        return KeyedRows(self._in_range(found.keys), self._in_range(found.rows)) if self._range else found

    def _in_range(self, rows: Rows) -> Rows:
        return rows.transformed(lambda frame: frame.where(self._range), None)

    @property
    def inserts(self) -> DataFrame:
        if self._feed is None:
            present = self._present()
            return present.selectExpr(*self._columns(present), *self._hash, *_STAMPS) if self._hash else present
        frame = self._net().where(f"{OP} IN ('{Op.INSERT}', '{Op.UPDATE}')")
        return frame.selectExpr(*self._columns(frame), *self._hash, *_STAMPS)

    @property
    def deletes(self) -> DataFrame:
        key = [*map(quoted, self._spec.key), *self._hash]
        if self._feed is None:
            return self.snapshot.where("false").selectExpr(*key, *self._snapshot_stamps())
        return self._net().where(f"{OP} = '{Op.DELETE}'").selectExpr(*key, *_STAMPS)

    def all(self) -> DataFrame:
        if self._feed is None:
            present = self._present()
            return present.selectExpr(*self._columns(present), *self._hash, "'insert' AS _change_type", *_STAMPS)
        frame = self._feed.all(self._spec.key)
        for condition in self._row.conditions:
            frame = frame.where(condition)
        return frame.selectExpr(*self._columns(frame), *self._hash, "_change_type", *_STAMPS)

    @property
    def rows_read(self) -> int:
        """Return how many rows of a TAIL were handed over: keys that have changed, or every change.

        The number is 0 for a consumer that has read every change as a frame, which nobody has counted.
        """
        return self._rows_changed or (self.rows_given if self._feed is not None else 0)

    def _count_changed(self, changes: Changes) -> Changes:
        """Return the changes, of which it is known from now on how many they are."""
        self._rows_changed = changes.rows + changes.passed
        return changes

    @charged_as(UsagePart.READ)
    def next(self) -> tuple[pa.Table, pa.Table] | None:
        if self._given is None:
            self._given = self._every() if self._needs.changes is ChangeDetail.ALL else self._pairs()
        for inserts, deletes in self._given:
            if len(inserts) or len(deletes):
                self.rows_given += len(inserts) + len(deletes)
                return inserts, deletes
        return None

    def update_watermark(self, txn: WatermarkTxn) -> None:
        charge_rest_as(UsagePart.COMMIT)
        self._failpoints.reach("commit.before")
        # Only avoids useless work: another writer is excluded by the compare below, in the sink's transaction.
        self._guard.check()
        key = record_key(self._row.key, self._spec.target)
        if self._takeover:
            self._take_over(key, txn)
        else:
            found = position_of(txn.get(key))
            # A later registration has marked it where it has taken over keys of the range.
            if found.base_version != self._base_seq or (self._sharded and found.job_id > self._row.job_id):
                raise Conflict(f"the sink of {key} is at seq {found.seq}: another writer has committed")
        txn.put(key, self.record.to_json())

    def _take_over(self, own: str, txn: WatermarkTxn) -> None:
        """Fence the records that the range takes over, in its first commit.

        Nobody who wrote keys of it before writes them after it.
        """
        for key, text in self._takeover.items():
            if txn.get(key) != text:
                raise Conflict(f"{key} has moved: another writer has committed")
            if text and key != own:
                txn.put(key, fenced(text, self._row.job_id))

    def _present(self) -> DataFrame:
        frame = self.snapshot.where(self._spec.where) if self._spec.where else self.snapshot
        return frame.selectExpr(*self._columns(frame), *self._snapshot_stamps())

    def _net(self) -> DataFrame:
        assert self._feed is not None
        columns = self._compared_columns
        return self._count_changed(
            self._feed.net(self._spec.key, self._row.conditions, stamped=True, columns=columns)
        ).frame

    @property
    def _compared_columns(self) -> tuple[str, ...]:
        """Return the columns by which rows without a key are distinguished."""
        return () if self._spec.key else self._spec.columns

    def _columns(self, frame: DataFrame) -> list[str]:
        names = self._spec.columns or [name for name in frame.columns if name not in _OF_CHANGES]
        return [quoted(name) for name in names]

    def _snapshot_stamps(self) -> tuple[str, str]:
        version, micros = self.to.version, round(self.to.at_s * 1_000_000)
        return (
            f"CAST({version} AS BIGINT) AS _commit_version",
            f"timestamp_micros(CAST({micros} AS BIGINT)) AS _commit_timestamp",
        )

    def _batches(self, frame: DataFrame) -> Iterator[pa.Table]:
        return (self._feed or self._engine).batches(frame, BATCH_ROWS_MAX)

    def _every(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        few = self._few_changes()
        for table in self._batches(self.all()) if few is None else _cut(few):
            yield table, table.slice(0, 0)

    def _few_changes(self) -> pa.Table | None:
        """Return what `all` has, if Spark is not needed for it."""
        if self._feed is None:
            return None
        rows = self._feed.ordered(self._spec.key, self._row.conditions, hashed=self._sharded)
        if rows is None:
            return None
        names = {name.lower(): name for name in rows.column_names}
        marks = [*([KEY_HASH] if self._sharded else []), "_change_type", *_STAMPS]
        own = [name for name in rows.column_names if name not in (*_OF_CHANGES, *marks)]
        wanted = [*(self._spec.columns or own), *marks]
        return rows.select([names[name.lower()] for name in wanted]).rename_columns(wanted)

    def _pairs(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield deletes before inserts.

        The last deletes come with the first inserts; mostly these are the only ones.
        """
        inserts = self._batches(self.inserts)
        first = next(inserts)
        last: pa.Table | None = None
        for deletes in self._batches(self.deletes):
            if last is not None:
                yield first.slice(0, 0), last
            last = deletes
        assert last is not None  # even where there is none
        yield first, last
        for more in inserts:
            yield more, last.slice(0, 0)


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in tables of up to BATCH_ROWS_MAX, at least one."""
    for start in range(0, max(1, len(rows)), BATCH_ROWS_MAX):
        yield rows.slice(start, BATCH_ROWS_MAX)


# --- checks of columns ------------------------------------------------------------------------------------------------
# A job's columns have to be those that its sink has. If one is another column of that name, no change of a row says
# what it has now (it was dropped and added again, or names were exchanged).


def split_by_columns(
    source: ChangeSource,
    uri: str,
    works: Sequence[JobRun],
    span: SourceRange,
    columns: Callable[[], Sequence[str]],
) -> tuple[list[JobRun], list[tuple[JobRun, str]]]:
    """Return the jobs that go on by the changes of `span`, and those that have to compare, each with the reason.

    `columns` finds the columns as of its last version. What a sink does not say, as one that was written before it
    could, the source says as of the watermark.
    """
    same, others = [], []
    for job_run in works:
        known = _look_up_columns(source, uri, job_run, span)
        reason = _reason(known, span, columns)
        if reason:
            others.append((known, reason))
        else:
            same.append(known)
    return same, others


def _look_up_columns(source: ChangeSource, uri: str, job_run: JobRun, span: SourceRange) -> JobRun:
    if job_run.position.column_ids is not None or not span.reshapes:
        return job_run
    try:
        column_ids = source.at(uri, span.from_version).column_ids
    except (ChangesUnavailableError, StorageError):
        return job_run
    return replace(job_run, position=replace(job_run.position, column_ids=column_ids))


def _reason(job_run: JobRun, span: SourceRange, columns: Callable[[], Sequence[str]]) -> str:
    known_ids = job_run.position.column_ids
    if known_ids is None and span.reshapes and span.column_ids:
        return "nobody knows any more which columns the target was written from"
    same = known_ids is None or known_ids == span.column_ids
    if same and not span.retyped and not span.lost:
        return ""
    try:
        names = job_run.kind.columns(job_run.row.spec.consumer, columns())
    except PermanentError:
        return ""  # it is said where they are read
    if others := () if known_ids is None else other_columns(known_ids, span.column_ids, names):
        return f"the column {', '.join(others)} is another than before"
    if retyped := [name for name in names if name in span.retyped]:
        return f"the column {', '.join(retyped)} has another type than before"
    lost = _lost(job_run, span)
    return f"the column {', '.join(lost)} is gone, with what rows held in it" if lost else ""


def _lost(job_run: JobRun, span: SourceRange) -> list[str]:
    """Return what is gone of the columns of a job that takes every change.

    Deletions lack what was in these columns.
    """
    if job_run.kind.needs.changes is not ChangeDetail.ALL:
        return []
    chosen = {name.lower() for name in job_run.row.spec.consumer.columns}
    return [path for path in span.lost if not chosen or path.partition(".")[0].lower() in chosen]


# --- consumers side by side -------------------------------------------------------------------------------------------
# The consumers of one iteration work at the same time, each for itself.

CONSUMERS_AT_ONCE_MAX = 4
"""Consumers of one iteration that work at a time; the others queue."""


def run_side_by_side(
    engine: Engine,
    iteration: Iteration,
    works: list[JobRun],
    consume: Callable[[JobRun], JobOutcome],
    at_work: Callable[[Sequence[JobRow]], AbstractContextManager[None]] = NO_DEATHS.at_work,
) -> list[JobOutcome]:
    """Run `consume` for each, and return their outcomes, in order; what one of them raises is its own outcome.

    `at_work` does what JobDeaths describes.
    """

    def consume_safely(job_run: JobRun) -> JobOutcome:
        try:
            with at_work([job_run.row]):
                return consume(job_run)
        except BaseException as error:  # noqa: BLE001  (one consumer's fault is its own)
            return record_failure(job_run.row, job_run.position, error)

    def run_labelled(job_run: JobRun) -> JobOutcome:
        engine.label(iteration.label)
        return consume_safely(job_run)

    if len(works) <= 1:
        return [consume_safely(job_run) for job_run in works]
    with ThreadPoolExecutor(min(len(works), CONSUMERS_AT_ONCE_MAX), "iscp-consumer") as pool:
        return list(pool.map(run_labelled, works))


# --- the iteration ----------------------------------------------------------------------------------------------------

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


# --- renewal of a position --------------------------------------------------------------------------------------------
# A sink's position is renewed while its source does not change, before the sink's log forgets it.


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
