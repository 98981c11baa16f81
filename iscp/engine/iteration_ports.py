"""The ports by which iterations are carried out, and what every iteration does by them: its jobs' parts with the
positions of their sinks, reports and traces of these parts, holds on sources, measures, open sinks, and the policies of
specs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from iscp.engine.account_turns import ANYWHERE
from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import (
    ChangeDetail,
    DataType,
    Iteration,
    JobOutcome,
    UsagePart,
    exact_parts,
    exact_position,
)
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_job, logged_jobs, superseded
from iscp.model.job.source_holds import holder_of
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import ChangeMode, JobSpec, OnReplace
from iscp.model.values.errors import (
    Conflict,
    ErrorCode,
    FileLost,
    InvalidRequest,
    IscpError,
    PermanentError,
    StorageError,
)
from iscp.model.values.progress import UNKNOWN, RunProgress, StageWork, TableSize, measured
from iscp.model.values.untrusted_values import (
    error_code,
    error_text,
    exact_float,
    exact_int,
    exact_name,
    named_error,
    printable,
)
from iscp.model.values.watermark import Position, SourceMarks, Watermark, chosen_collated, committed_apart, later
from iscp.ports.consumer import (
    ConsumeContext,
    Consumed,
    Consumer,
    ConsumerEnvironment,
    ConsumerKind,
    NothingRetained,
    Refreshed,
    RetainedCommits,
)
from iscp.ports.engine import NO_DEATHS, Engine, JobDeaths, UsageTally
from iscp.ports.sink import Sink
from iscp.ports.source import (
    ChangeSource,
    ChangesUnavailableError,
    NothingHeld,
    RetentionHold,
    SourceRange,
    TableDescription,
)
from iscp.ports.system import NO_TRACER, Attribute, Clock, Failpoints, Guard, Span, Tracer, current_trace
from iscp.system.recent_values import RecentValues

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- one job's part, before it is carried out -------------------------------------------------------------------------

log = logging.getLogger(__name__)
Netted = tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class JobRun:
    """One job's part: the position of its sink, and what it therefore needs.

    `takeover` means the same as in RangePosition. `whole`: the part is for all of the row's range, and not for a piece
    that lags.
    """

    row: JobRow
    kind: ConsumerKind
    consumer: Consumer
    position: Position
    takeover: Mapping[str, str | None] = field(default_factory=dict)
    whole: bool = True

    @property
    def data_type(self) -> DataType:
        if self.position.job_id != self.row.job_id or self.position.watermark.version < 0:
            return DataType.SNAPSHOT
        return DataType.DIFFERENCE if self.position.void else DataType.TAIL


def log_rebuild(job_run: JobRun, table_uri: str) -> str:
    """Log that the target of a job that was built is rebuilt, and return why.

    Return an empty text if it is not rebuilt, or is built for the first time.
    """
    if job_run.data_type is not DataType.SNAPSHOT or job_run.row.watermark.version < 0:
        return ""
    why = job_run.position.void or "it holds nothing of this job's"
    log.warning("target.rebuilt", extra=logged_job(job_run.row, table_uri) | {"reason": why})
    return why


def reconciled(job_run: JobRun) -> JobRun:
    """Return the job with the position that it goes on from, in view of what the job log knows.

    Raises Superseded if the sink is a later registration's.
    """
    row, position = job_run.row, job_run.position
    if position.job_id > row.job_id:
        raise superseded("the target", position.job_id)
    ours = position.job_id == row.job_id and not position.void and position.watermark.version >= 0
    if ours and position.seq == row.seq:
        # The sink got nothing of versions that passed without a row; there may be any number of them.
        position = replace(position, watermark=later(position.watermark, row.watermark))
    # A target that is gone says nothing: its seq goes on from what the job log knows.
    return replace(job_run, position=replace(position, seq=max(position.seq, row.seq)))


def netted(job_run: JobRun) -> Netted | None:
    """Return how the job's changes are netted, or None if it takes every change."""
    needs, spec = job_run.kind.needs, job_run.row.spec.consumer
    if needs.changes is not ChangeDetail.NET:
        return None
    return spec.key, job_run.row.conditions, needs.stamped, () if spec.key else spec.columns


# --- reports of a part ------------------------------------------------------------------------------------------------


def applied(
    row: JobRow, consumed: Consumed, data_type: DataType, from_version: int, warning: str, reason: str = ""
) -> JobOutcome:
    """Return the outcome of a job whose sink has committed.

    `reason` says why all rows were compared or replaced, where changes would have done. Raises ValueError if the
    consumer answers what cannot be.
    """
    position = exact_position(consumed.position)
    return JobOutcome(
        row=row,
        watermark=position.watermark,
        seq=position.seq,
        rows=exact_int(consumed.rows, "rows"),
        bytes=exact_int(consumed.bytes, "bytes"),
        data_type=data_type,
        from_version=from_version,
        dead_letters=position.dead.rows,
        warning=printable(warning),
        source_id=position.source_id,
        committed=True,
        sources=position.sources,
        strategy_reason=printable(reason),
        target_version=position.base_version,
    )


def refreshed(row: JobRow, done: Refreshed, data_type: DataType, from_version: int, warning: str) -> JobOutcome:
    """Return the outcome of a job whose consumer has read its tables itself. Raises as `applied` does."""
    outcome = applied(row, done.consumed, data_type, from_version, warning)
    return replace(
        outcome,
        strategy=exact_name(done.strategy, "strategy"),
        strategy_reason=printable(done.reason),
        rows_in=exact_int(done.rows_in, "rows_in"),
        parts_s=exact_parts(done.parts_s, "parts_s"),
        committed=bool(done.committed),
        due_at_s=exact_float(done.due_at_s, "due_at_s"),
        waits_for=printable(done.waits_for),
        wait_s=exact_float(done.wait_s, "wait_s"),
    )


def awaiting_build(row: JobRow, position: Position, request: BuildRequest) -> JobOutcome:
    """Return the outcome of a job whose sink is claimed, and whose first rows are built by ranges.

    If it has requested another build before, its status says so: what that was to read is gone.
    """
    outcome = JobOutcome(row=row, watermark=row.watermark, seq=position.seq, data_type=DataType.SNAPSHOT, build=request)
    before = row.build
    if before is None or before.reading == request.reading:
        return outcome
    gone = f"version {before.version} of the source, or what was committed since, was cleaned away (VACUUM)"
    if before.pin != request.pin:
        gone = f"a version of a table that it reads was cleaned away (VACUUM), or {gone}"
    return replace(outcome, warning=f"the build was begun again at version {request.version}: {gone}")


def unchanged(row: JobRow, position: Position, span: SourceRange, *, renewed: bool = False) -> JobOutcome:
    """Return the outcome of a job with nothing to apply.

    Only the watermark moves, in memory, or in the sink too if its position was `renewed`.
    """
    return JobOutcome(
        row=row,
        watermark=later(position.watermark, span.to),
        seq=position.seq,
        from_version=span.from_version,
        dead_letters=position.dead.rows,
        source_id=position.source_id,
        committed=renewed,
        sources=position.sources,
    )


def longest_parts(outcomes: Iterable[JobOutcome]) -> dict[str, float]:
    """Return a log line's fields: the seconds of each part of the work, of the job for which it took longest."""
    usages = [outcome.usage for outcome in outcomes if outcome.usage is not None]
    parts = (UsagePart.READ, UsagePart.COMPUTE, UsagePart.COMMIT)
    return {f"{part}_s": round(max((usage.seconds()[part] for usage in usages), default=0.0), 4) for part in parts}


def record_failure(row: JobRow, position: Position | None, error: BaseException) -> JobOutcome:
    """Log why a job's part failed, and return its outcome, which can be stored whatever `error` is and says.

    `position` is that of its sink, if it was read.
    """
    if isinstance(error, ChangesUnavailableError) and isinstance(error.__cause__, PermanentError):
        error = error.__cause__  # no reading of the whole table gets around it
    if isinstance(error, ChangesUnavailableError):  # the whole table was to be read instead, which needed them too
        code = ErrorCode.FILE_LOST if isinstance(error.__cause__, FileLost) else ErrorCode.STORAGE
        error = StorageError(error_text(error), remedy="Restore what is gone, or resync the job", code=code)
    known = isinstance(error, IscpError)
    level = logging.INFO if isinstance(error, Conflict) else logging.WARNING if known else logging.ERROR
    message = (error_text(error) if known else "") or named_error(error)
    # What iscp itself has found is in its words; of what others raised the stack shows where.
    traced = not known or (error.__cause__ is not None and not isinstance(error, Conflict))
    place = {"range_id": row.key.range_id, "seq": row.seq, "code": int(error_code(error)), "error": message}
    log.log(level, "iteration.failed", exc_info=error if traced else None, extra=logged_job(row) | place)
    seq, watermark = row.seq, row.watermark
    if position is not None and watermark.version < 0:
        seq = position.seq
    # Never back: the owner would take it for an old report, and nobody would hear of the fault.
    ours = position if position is not None and position.job_id == row.job_id else None
    sources: SourceMarks = {}
    if ours is not None and ours.watermark.version >= watermark.version:
        if ours.seq > seq:  # else its rows may be known to be those of later versions
            sources = ours.sources
        seq, watermark = ours.seq, ours.watermark
    return JobOutcome(
        row=row,
        watermark=watermark,
        seq=seq,
        error_code=error_code(error),
        error_msg=message,
        dead_letters=position.dead.rows if position is not None else 0,
        source_id=ours.source_id if ours is not None else "",
        sources=sources,
    )


# --- what traces record of a part -------------------------------------------------------------------------------------


def job_attributes(job_run: JobRun) -> Mapping[str, Attribute]:
    """Return what is known of a job before it is handed anything."""
    row = job_run.row
    return {
        "iscp.account": row.key.account,
        "iscp.table": row.table_name,
        "iscp.job": row.key.job_name,
        "iscp.job.id": row.job_id,
        "iscp.range": row.key.range_id,
        "iscp.kind": row.spec.consumer.kind,
    }


def read_attributes(uri: str, span: SourceRange, way: str) -> Mapping[str, Attribute]:
    """Return what is known of a read of `uri`: its range, and the way in which it is read."""
    return {
        "iscp.table": uri,
        "iscp.version.from": span.from_version,
        "iscp.version": span.to.version,
        "iscp.read": way,
        "iscp.bytes": span.bytes,
    }


def note_outcome(span: Span, outcome: JobOutcome) -> None:
    """Note what a job has committed, or why it has not."""
    if not outcome.ok:
        span.fail(_name_of(outcome.error_code), outcome.error_msg)
        return
    span.note(
        {
            "iscp.committed": outcome.committed,
            "iscp.seq": outcome.seq,
            "iscp.version": outcome.watermark.version,
            "iscp.data": outcome.data_type.value,
            "iscp.rows": outcome.rows,
            "iscp.bytes": outcome.bytes,
            **({"iscp.strategy": outcome.strategy} if outcome.strategy else {}),
            **({"iscp.reason": outcome.strategy_reason} if outcome.strategy_reason else {}),
            **{f"iscp.part.{part}.s": seconds for part, seconds in outcome.parts_s.items()},
        }
    )


def note_comparison(span: Span, outcome: JobOutcome) -> None:
    """Note what the comparison of a job's target with its source has found, and whether it was repaired."""
    if (report := outcome.verified) is None:
        return
    said = report.comparison
    span.note(
        {
            "iscp.version": report.version,
            "iscp.seq": report.seq,
            "iscp.equal": said.equal,
            "iscp.ranges": said.ranges,
            "iscp.ranges.differing": said.ranges_differing,
            "iscp.rows.missing": said.missing,
            "iscp.rows.extra": said.extra,
            "iscp.rows.different": said.different,
            "iscp.repaired": report.repaired,
            "iscp.rows": outcome.rows,
        }
    )


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:  # a consumer of others may have codes of its own
        return str(code)


# --- holds ------------------------------------------------------------------------------------------------------------
# The holds of jobs are placed on the tables that they read, before they read them.

HOLD_CHECK_S = 3_600.0
"""Seconds for which a hold that was found in place is taken to be there. Then the table's properties are read again, as
anybody who may alter the table may have changed them.
"""

HOLDS_CACHED_MAX = 10_000
"""Holds that a node knows to be in place; the one that was used least recently goes, and its table is read again."""


_Placed = tuple[str, str, str, float]
"""A registration of a job, a table's URI and id as the job has read it, and the seconds of the hold."""


class HoldPlacer:
    """Places holds, and caches which are in place, so that not every iteration reads its tables' properties for them.

    Safe for threads. A table that nobody reads costs nothing, and neither does a job without holds.
    """

    def __init__(self, holds: RetentionHold) -> None:
        self._holds = holds
        self._placed: RecentValues[_Placed, float] = RecentValues(HOLDS_CACHED_MAX)

    def place(
        self, row: JobRow, wanted: Mapping[str, float], position: Position, guard: Guard, monotonic_s: float
    ) -> None:
        """Have the job hold the tables of `wanted`, each for its seconds. Raises as RetentionHold, and as the guard.

        A table that was replaced is held as soon as the job has read the one in its place.
        """
        for uri, hold_s in sorted(wanted.items()):
            placed = row.job_id, uri, _table_id(row, position, uri), hold_s
            at_s = self._placed.get(placed)
            if at_s is not None and monotonic_s - at_s < HOLD_CHECK_S:
                continue
            guard.check()  # this commits to the table itself, which no seq protects
            if self._holds.hold(uri, holder_of(row.key), hold_s):
                log.info("source.held", extra=logged_job(row, uri))
            self._placed.put(placed, monotonic_s)


def _table_id(row: JobRow, position: Position, uri: str) -> str:
    """Return the id of the table at `uri` as the job has read it last, or an empty text if it has not."""
    mark = position.sources.get(uri)
    if mark is not None:
        return mark.table_id
    return (position.source_id or row.key.table_id) if uri == row.table_uri else ""


# --- the ports --------------------------------------------------------------------------------------------------------

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


# --- measures ---------------------------------------------------------------------------------------------------------
# Iterations are measured while they run, only on request, and at most so often. An iteration notes what is known of its
# size, which costs it nothing; counting what is not known, and reading the engine's counters, is left to the thread of
# the request.

MEASURED_EVERY_S = 1.0
"""A running iteration is measured at most so often, however many request its progress; they get the last measure."""


class HandedOver(Protocol):
    """The retriever of a consumer; `rows_given` says how many rows the consumer has taken."""

    @property
    def rows_given(self) -> int: ...


class IterationMeter:
    """The measures of one iteration, which its threads write, and those of requests read."""

    def __init__(self, iteration: Iteration, began_s: float, began_at_s: float) -> None:
        self.iteration = iteration
        self.began_s = began_s
        self.began_at_s = began_at_s
        self.retrievers: list[HandedOver] = []
        self.last: RunProgress | None = None
        self.measured_s = 0.0
        self._ranges: dict[Watermark, int] = {}
        self._count: Callable[[], TableSize] | None = None
        self._size: TableSize | None = None
        self._stages: dict[int, StageWork] = {}
        self._tallies: dict[str, UsageTally] = {row.job_id: UsageTally() for row in iteration.jobs}

    def tally(self, row: JobRow) -> UsageTally:
        """Return the sums of the job's part, or of a range of it, in all attempts."""
        return self._tallies[row.job_id]

    def note_range(self, since: Watermark, size: int) -> None:
        """Note that the range from there on is in files of `size` bytes."""
        self._ranges[since] = size

    def note_snapshot(self, count: Callable[[], TableSize]) -> None:
        """Note that all rows of a table are written; `count`, from any thread, reads how many they are."""
        self._count = count

    def read(self, stages: dict[int, StageWork], elapsed_s: float, at_s: float) -> RunProgress:
        """Return the iteration's progress.

        The engine forgets older stages: those seen before still count.
        """
        self._stages |= stages
        if self._size is None and self._count is not None:
            try:
                self._size = self._count()
            except IscpError as error:
                named = {"table": self.iteration.table_uri, "account": self.iteration.account, "error": str(error)}
                log.info("iteration.size_unknown", extra={**named, **logged_jobs(self.iteration.jobs)})
                self._size = TableSize(UNKNOWN, UNKNOWN)
        rows, size = (self._size.rows, self._size.bytes) if self._size else (UNKNOWN, UNKNOWN)
        if self._size is None and self._ranges:
            size = sum(self._ranges.values())
        purpose = self.iteration.purpose.value
        begun = RunProgress(purpose, self.began_at_s, max(0.0, elapsed_s), rows_total=rows, bytes_total=size)
        return measured(begun, at_s, tuple(self._stages.values()), sum(each.rows_given for each in self.retrievers))


class IterationMeters:
    """Measures the iterations that run in this node."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._running: dict[int, IterationMeter] = {}
        self._measuring = threading.Lock()

    @contextmanager
    def running(self, iteration: Iteration) -> Iterator[IterationMeter]:
        meter = IterationMeter(iteration, self._clock.monotonic_s(), self._clock.now_s())
        self._running[iteration.number] = meter
        try:
            yield meter
        finally:
            del self._running[iteration.number]

    def progress(self, job_id: str) -> RunProgress | None:
        """Return the progress of the iteration that the job is in, shared with others or not; None if it is in none.

        Raises IscpError.
        """
        for meter in tuple(self._running.values()):
            if any(row.job_id == job_id for row in meter.iteration.jobs):
                return self._measure(meter)
        return None

    def _measure(self, meter: IterationMeter) -> RunProgress | None:
        # An engine that hangs holds up one request, and no other.
        if not self._measuring.acquire(blocking=False):
            return meter.last
        try:
            now_s = self._clock.monotonic_s()
            if meter.last is None or now_s - meter.measured_s >= MEASURED_EVERY_S:
                stages = self._engine.stages(meter.iteration.label)
                meter.last = meter.read(stages, now_s - meter.began_s, self._clock.now_s())
                meter.measured_s = now_s
            return meter.last
        finally:
            self._measuring.release()


# --- sinks in use -----------------------------------------------------------------------------------------------------
# Sinks are cached so that what they know of their logs is not read again each time.

SINKS_CACHED_MAX = 10_000
"""Sinks that stay open with the position that they had; the oldest are dropped, and read again when needed."""

S = TypeVar("S")


class SinkPool:
    """Has the sinks that consumers have opened, and what they open them with (port ConsumerEnvironment).

    Safe for threads. `check_target` lets a target pass before anything is opened there, or raises; it may be called for
    it several times. Making a sink touches no storage. The longest unused is given up first.
    """

    def __init__(
        self,
        open_table: Callable[[str], Sink],
        check_target: Callable[[str], str],
        clock: Clock,
        failpoints: Failpoints,
        source: ChangeSource,
        cached_max: int = SINKS_CACHED_MAX,
    ) -> None:
        self.clock, self.failpoints, self.source = clock, failpoints, source
        self._open_table, self._check_target = open_table, check_target
        self._sinks: RecentValues[tuple[Hashable, str], object] = RecentValues(cached_max)

    def sink(self, target_uri: str) -> Sink:
        return self.keep("table", target_uri, self._open_table)

    def keep(self, name: Hashable, target_uri: str, make: Callable[[str], S]) -> S:
        key = (name, target_uri)
        if key not in self._sinks:  # before the others wait for what is made, as the target's storage may hang
            target_uri = self._check_target(target_uri)
        # Made while others wait: two sinks of one target would each remember a position of its own.
        return cast(S, self._sinks.of(key, lambda: make(target_uri)))


# --- policies of a job's spec -----------------------------------------------------------------------------------------
# How the changes of a job are read, and which source it follows.

_CDF = "delta.enableChangeDataFeed"
_TURN_ON = f"ALTER TABLE ... SET TBLPROPERTIES ({_CDF} = true)"


class Reading(Enum):
    """A way to read a range: the change data feed, the files that were added, or all rows, to be compared."""

    CDF = auto()
    FILES = auto()
    COMPARE = auto()


def reading(spec: JobSpec, span: SourceRange) -> Reading:
    """Return how a range is read. Added files say all if no commit took rows away."""
    match spec.change_source:
        case ChangeMode.DIFF:
            return Reading.COMPARE
        case ChangeMode.CDF:
            return Reading.CDF
        case ChangeMode.AUTO if span.cdf_on:
            return Reading.CDF
        case _:
            return Reading.FILES if span.inserts_only else Reading.COMPARE


def unread(spec: JobSpec) -> str:
    """Return why a range is read as COMPARE, or an empty text if the policy says so."""
    match spec.change_source:
        case ChangeMode.DIFF:
            return ""
        case ChangeMode.APPEND:
            return "a commit took rows away"
        case _:
            return "the change data feed is off"


def warning(spec: JobSpec, span: SourceRange, compared: str = "", rebuilt: str = "") -> str:
    """Return the warning for the user of a job whose iteration costs more than it needs to, or an empty text.

    `compared` says why changes did not do where all rows were compared, and is empty if the policy says so. `rebuilt`
    says why the target was rebuilt.
    """
    if rebuilt:
        return f"the target was rebuilt: {rebuilt}"
    if spec.change_source is ChangeMode.AUTO and not span.cdf_on:
        off = "the change data feed of the source is off: what is not appended is found by comparing"
        return off if spec.enable_cdf else f"{off}. {_TURN_ON}, or have the job do so (enable_cdf)"
    return f"all rows were compared: {compared}" if compared else ""


def warning_of_refresh(done: Refreshed, rebuilt: str) -> str:
    """Return the warning after a refresh, which may have one of its own."""
    return f"the target was rebuilt: {rebuilt}" if rebuilt else done.warning


def refuse_unfit(spec: JobSpec, source: TableDescription) -> None:
    """Raise InvalidRequest at the registration if the source does not fit the policies."""
    cdf_on = source.configuration.get(_CDF, "false").lower() == "true"
    if spec.change_source is ChangeMode.CDF and not (cdf_on or spec.enable_cdf):
        raise InvalidRequest(
            f"is cdf, and the change data feed of {source.name} is off",
            field="spec.iteration.change_source",
            remedy=f"{_TURN_ON}, or have the job do so (enable_cdf); or use auto, which compares",
        )


def refuse_cdf_off(spec: JobSpec, span: SourceRange) -> None:
    """Raise PermanentError if a job wants the CDF, and it was switched off.

    Otherwise such a job would compare with each commit from now on; a gap in the CDF costs one comparison.
    """
    if spec.change_source is ChangeMode.CDF and not span.cdf_on:
        raise PermanentError(
            "the change data feed of the source was switched off",
            about="spec.iteration.change_source",
            remedy=f"{_TURN_ON}, then `iscp-admin job resume`; or set it to auto",
            code=ErrorCode.CDF_OFF,
        )


def refuse_collated(spec: JobSpec, span: SourceRange) -> None:
    """Raise PermanentError if the job would store texts with a collation.

    They are refused at the registration, too, but may come later.
    """
    if collated := chosen_collated(span.collated, spec.consumer.columns):
        raise PermanentError(
            f"the source's {', '.join(collated)} has texts with a collation now, with which Delta writes no table here",
            about="spec.iteration.consumer.columns",
            remedy="Take it off and resume the job; or `iscp-admin job resync` it with a spec whose columns do without",
            code=ErrorCode.SCHEMA_CHANGED,
        )


def same_log(positions: Iterable[Position], span: SourceRange) -> bool:
    """Return whether the log is still the one that the watermarks are of.

    A log that was restored from a backup has the same id.
    """
    return all(
        position.source_id == span.table_id and not committed_apart(position.watermark.at_s, span.from_at_s)
        for position in positions
    )


def refuse_rebuild(spec: JobSpec, position: Position, now: SourceRange, applied_at_s: Callable[[], float]) -> None:
    """Raise PermanentError if the log was recreated, and the job is not to follow that.

    A table that was replaced has another id, but its log goes on: the commit at the watermark is the same.
    `applied_at_s` finds the time of that commit now (0: it is not there any more).
    """
    lower = now.to.version < position.watermark.version
    if spec.on_replace is OnReplace.FOLLOW or not (lower or now.table_id != position.source_id):
        return
    at_s = 0.0 if lower else applied_at_s()
    if at_s and not committed_apart(position.watermark.at_s, at_s):
        return
    version, fault = position.watermark.version, "the source was dropped and recreated"
    if lower:
        fault += f"; its log ends at version {now.to.version}, before {version}"
    elif not at_s:
        fault = (
            f"the source was replaced, and its log, cleaned beyond version {version}, does not show whether it goes on"
        )
    raise PermanentError(
        fault,
        remedy="`iscp-admin job resync` builds the target from what is there now; with on_replace follow jobs do so "
        "by themselves",
        code=ErrorCode.SOURCE_REPLACED,
    )
