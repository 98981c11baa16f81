"""Measurements of a node and its cluster, for whoever collects metrics.

The module records iterations, the history of jobs and searches around whoever carries them out, and reads figures of
targets, what the owner knows of its cluster, and what a node counts of itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.membership.assignments import ShardState
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_views import TargetFigures, is_late
from iscp.engine.account_turns import PlaceGuard, TargetReads
from iscp.model.api.api_requests import SearchAnswer, SearchRequest
from iscp.model.build.build_progress import BuildStage, JobBuild, KnownBuilds, share_done
from iscp.model.job.iteration import Iteration, JobOutcome, Purpose, Usage, UsagePart
from iscp.model.job.job_row import JobRow, JobState, Reason, further_tables
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import (
    ERROR,
    INDEX_SEARCH_DURATION,
    ITERATION_RETRIES,
    ITERATION_WAIT,
    KIND,
    MetricReading,
)
from iscp.model.metrics.metric_readings import (
    CursorLag,
    JobLag,
    chain_lags,
    cursor_readings,
    figure_readings,
    lag_readings,
    reason_class,
    whole_jobs,
)
from iscp.model.protocol.events import Reports
from iscp.model.protocol.messages import SourceSeen
from iscp.model.spec.spec import INDEX_KINDS
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError, NotOwner, Unavailable
from iscp.model.values.ids import ShardId
from iscp.model.values.untrusted_values import error_code
from iscp.ports.admin import Searching
from iscp.ports.engine import HeapSize, IterationRunner
from iscp.ports.system import Clock, Guard, Meter, Threads
from iscp.schedule.lag import lag_of
from iscp.system.threads import THREADS, PacedThread

log = logging.getLogger(__name__)

# --- iterations -------------------------------------------------------------------------------------------------------
# What iterations took and wrote is recorded around whoever runs them.

UNKNOWN = "unknown"
"""The kind of a job whose spec cannot be read."""


class MeteredRunner:
    """Port IterationRunner, around another one. A job's part in an iteration counts as long as the whole of it."""

    def __init__(self, runner: IterationRunner, meter: Meter, clock: Clock) -> None:
        self._runner = runner
        self._meter = meter
        self._clock = clock

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        began_s = self._clock.monotonic_s()
        try:
            outcomes = self._runner.run(iteration, guard)
        except BaseException as error:
            took_s, code = self._clock.monotonic_s() - began_s, error_code(error)
            for row in iteration.jobs:
                self._meter.record(metrics.ITERATION_DURATION, took_s, _attributes(row, iteration.purpose.value, code))
            raise
        took_s = self._clock.monotonic_s() - began_s
        for outcome in outcomes:
            self._record(iteration, outcome, took_s)
        return outcomes

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)

    def _record(self, iteration: Iteration, outcome: JobOutcome, took_s: float) -> None:
        applies = iteration.purpose is Purpose.APPLY
        strategy = (outcome.strategy or outcome.data_type.value) if applies else iteration.purpose.value
        attributes = _attributes(outcome.row, strategy, ErrorCode.OK)
        failed = {ERROR.name: _error_name(outcome.error_code)} if not outcome.ok else {}
        self._meter.record(metrics.ITERATION_DURATION, took_s, attributes | failed)
        self._meter.record(metrics.ITERATION_ROWS, outcome.rows, attributes)
        self._meter.record(metrics.ITERATION_IO, outcome.bytes, attributes)
        if outcome.usage is not None:
            self._record_usage(outcome.usage, attributes)
        if outcome.ok and outcome.strategy and attributes[KIND.name] == "view":
            why = reason_class(outcome.strategy, outcome.strategy_reason)
            given = {metrics.ITERATION_STRATEGY.name: outcome.strategy, metrics.VIEW_REASON.name: why}
            self._meter.record(metrics.VIEW_REFRESHES, 1, given)

    def _record_usage(self, usage: Usage, attributes: Mapping[str, str]) -> None:
        for part in (UsagePart.READ, UsagePart.COMPUTE, UsagePart.COMMIT):
            took_s = usage.seconds()[part]
            self._meter.record(metrics.ITERATION_PARTS, took_s, {**attributes, metrics.ITERATION_PART.name: part.value})
        self._meter.record(metrics.ITERATION_ROWS_READ, usage.rows_read, attributes)
        self._meter.record(metrics.ITERATION_IO_READ, usage.bytes_read, attributes)
        self._meter.record(metrics.ITERATION_CONFLICTS, usage.conflicts, attributes)


def _attributes(row: JobRow, strategy: str, code: int) -> dict[str, str]:
    failed = {ERROR.name: _error_name(code)} if code != ErrorCode.OK else {}
    return {KIND.name: kind_of(row), metrics.ITERATION_STRATEGY.name: strategy, **failed}


def kind_of(row: JobRow) -> str:
    """Return the kind of a job's consumer; a spec that is damaged in the job log has none."""
    try:
        return row.spec.consumer.kind
    except InvalidRequest:
        return UNKNOWN


_ERROR_NAMES: Mapping[int, str] = {int(code): code.name for code in ErrorCode}


def _error_name(code: int) -> str:
    return _ERROR_NAMES.get(code, ErrorCode.INTERNAL.name)


# --- the history of jobs ----------------------------------------------------------------------------------------------


class HistoryMeter:
    """Records what the schedule alone knows of an iteration: how long it waited, and whether it was a retry.

    Reads the history that a node reports. An iteration counts once for each of its jobs.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def take(self, news: Reports) -> None:
        for entry in news.history:
            if entry.usage is not None:
                self._meter.record(ITERATION_WAIT, entry.usage.wait_s, {})
                self._meter.record(ITERATION_RETRIES, 1 if entry.usage.retries else 0, {})


# --- searches ---------------------------------------------------------------------------------------------------------
# The time that searches take is recorded around whoever answers them.


class MeteredSearch:
    """Port Searching, around another one."""

    def __init__(self, service: Searching, meter: Meter, clock: Clock) -> None:
        self._service = service
        self._meter = meter
        self._clock = clock

    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        began_s, failed = self._clock.monotonic_s(), dict[str, str]()
        try:
            return self._service.search(request, account, alive)
        except BaseException as error:
            failed = {ERROR.name: error_code(error).name}
            raise
        finally:
            self._meter.record(INDEX_SEARCH_DURATION, self._clock.monotonic_s() - began_s, failed)

    def close(self) -> None:
        self._service.close()


# --- figures of jobs' targets -----------------------------------------------------------------------------------------

TARGETS_MAX = 200
"""Indexes whose figures are read for metrics, and as many changefeeds; the later ones have none there. `job status`
shows those of any index.
"""

CURSORS_READ_S = 5.0
"""Seconds that reading the cursors of one changefeed may take; it has no lags in metrics then."""

FEED_KINDS = ("changefeed",)


@dataclass(frozen=True, slots=True)
class SampledTargets:
    """Names what is read of the targets of jobs of some kinds.

    `read` reads one target within a bounded time, and raises nothing; `readings` makes readings of what was read of
    all.
    """

    kinds: Collection[str]
    read: Callable[[JobRow], Iterable[Any]]
    readings: Callable[[Sequence[Any]], Iterable[MetricReading]] = lambda found: found


def sampled_indexes(figures: Callable[[JobRow], TargetFigures]) -> SampledTargets:
    """Return what is read of indexes: the figures that `figures` reads."""
    return SampledTargets(INDEX_KINDS, lambda row: figure_readings(row, figures(row).values))


def sampled_feeds(
    lags: Callable[[str], dict[str, float]], places: PlaceGuard, named_max: int, read_s: float = CURSORS_READ_S
) -> SampledTargets:
    """Return what is read of changefeeds: the lags of their cursors, which `lags` reads by a feed's URI."""
    reads = TargetReads(places, read_s, "iscp-feed-cursors", "read of the cursors")
    return SampledTargets(
        FEED_KINDS, lambda row: _read_cursors(row, reads, lags), lambda found: cursor_readings(found, named_max)
    )


def _read_cursors(row: JobRow, reads: TargetReads, lags: Callable[[str], dict[str, float]]) -> list[CursorLag]:
    try:
        found = reads.run(row, lambda: lags(row.spec.consumer.target))
    except IscpError as error:
        log.info("metrics.cursors_not_read", extra={"job_id": row.job_id, "error": str(error)})
        return []
    return [CursorLag(row, name, lag_s) for name, lag_s in found.items()]


class FigureSampler:
    """At the owner: reads figures of jobs' targets now and then, on a thread of its own, for whoever collects metrics.

    Collecting metrics touches no storage, which may hang. The sampler reads every `every_s` at most, one target after
    another.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        sampled: Sequence[SampledTargets],
        clock: Clock,
        every_s: float,
        threads: Threads = THREADS,
    ) -> None:
        self._owner = owner
        self._sampled = sampled
        self._last: list[MetricReading] = []
        self._thread = PacedThread("iscp-metric-figures", self.turn, clock, every_s, threads)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the target that is being read; that is not waited for."""
        self._thread.close()

    def read(self) -> Iterator[MetricReading]:
        """Yield what was read last; nothing at a node that is not the owner."""
        if self._owner.writer is not None:
            yield from self._last

    def turn(self) -> None:
        """Read the figures of all targets, up to the bound."""
        try:
            writer = self._owner.current_writer()
            rows = [writer.read(_rows_of(each.kinds)) for each in self._sampled]
        except NotOwner:
            self._last = []
            return
        readings: list[MetricReading] = []
        for each, of_kinds in zip(self._sampled, rows, strict=True):
            found: list[Any] = []
            for row in of_kinds[:TARGETS_MAX]:
                if self._thread.closed:
                    return
                found += each.read(row)
            readings += each.readings(found)
        self._last = readings


def _rows_of(kinds: Collection[str]) -> Callable[[JobBook], list[JobRow]]:
    """Return what reads one row of each job of these kinds; specs are read only where they name such a kind."""
    named = tuple(f'"{kind}"' for kind in kinds)

    def read(book: JobBook) -> list[JobRow]:
        found = {
            row.registration: row
            for row in book.rows()
            if row.drop_at_s is None and any(kind in row.spec_json for kind in named) and kind_of(row) in kinds
        }
        return list(found.values())

    return read


# --- the cluster, as its owner knows it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OwnedCluster:
    """An `_OwnedCluster` is what the owner's loop knows at one moment."""

    nodes: int
    states: Mapping[str, int]
    moving: int
    checkpoint_at_s: float
    sources: Mapping[ShardId, SourceSeen]


class OwnerReadings:
    """The readings of a node as the owner; other nodes say that they are not the owner.

    Lags are those that `job status` shows. `named_max`: jobs that metrics name. `builds` reads those of the term.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        builds: Callable[[], KnownBuilds],
        clock: Clock,
        named_max: int,
    ) -> None:
        self._owner = owner
        self._builds = builds
        self._clock = clock
        self._named_max = named_max

    def read(self) -> Iterator[MetricReading]:
        try:
            writer = self._owner.current_writer()
            seen = self._owner.query(_read)
        except (NotOwner, Unavailable):  # another node is, or nobody is for a moment
            yield MetricReading(metrics.OWNER_LEADS, 0)
            return
        yield MetricReading(metrics.OWNER_LEADS, 1)
        yield from self._of_cluster(seen)
        yield from self._of_jobs(writer, seen)
        yield from self._of_builds()

    def _of_cluster(self, seen: _OwnedCluster) -> Iterator[MetricReading]:
        yield MetricReading(metrics.OWNER_NODES, seen.nodes)
        for state in ShardState:
            yield MetricReading(
                metrics.OWNER_SHARDS, seen.states.get(state.value, 0), {metrics.OWNER_STATE.name: state.value}
            )
        yield MetricReading(metrics.OWNER_MOVING, seen.moving)
        for decision, count in self._owner.decisions.counts().items():
            yield MetricReading(metrics.OWNER_DECISIONS, count, {metrics.OWNER_DECISION.name: decision})
        if seen.checkpoint_at_s:
            yield MetricReading(metrics.OWNER_CHECKPOINT_AGE, max(0.0, self._clock.now_s() - seen.checkpoint_at_s))
        yield MetricReading(metrics.OWNER_LOG_COMMITS, self._owner.log_commits)

    def _of_jobs(self, writer: LogWriter, seen: _OwnedCluster) -> Iterator[MetricReading]:
        for (state, reason), jobs in writer.read(_count_jobs).items():
            names = {metrics.JOB_STATE.name: state.value, metrics.JOB_REASON.name: reason.value}
            yield MetricReading(metrics.JOB_COUNT, jobs, names)
        rows, now_s = writer.read(lambda book: book.rows()), self._clock.now_s()
        lags = whole_jobs(self._lag(row, seen, now_s) for row in rows if row.drop_at_s is None)
        inputs = writer.read(lambda book: _inputs(book, lags))
        whole_s = chain_lags({each.row.registration: each.lag_s for each in lags}, inputs)
        lags = [each._replace(global_s=whole_s[each.row.registration]) for each in lags]
        yield MetricReading(metrics.JOB_LATE, sum(is_late(each.row, each.lag_s) for each in lags))
        yield from lag_readings(lags, self._named_max, kind_of)

    def _lag(self, row: JobRow, seen: _OwnedCluster, now_s: float) -> JobLag:
        shard = row.key.shard
        source = seen.sources.get(shard)
        lag_s = lag_of(row, source, now_s).most_s
        applied = row.watermark.version
        return JobLag(row, lag_s, max(0, source.source_version - applied) if source else 0)

    def _of_builds(self) -> Iterator[MetricReading]:
        try:
            known = self._builds()
        except (NotOwner, Unavailable):  # they are not loaded yet
            return
        stages = Counter(each.stage for each in known.jobs)
        for stage in BuildStage:
            yield MetricReading(metrics.BUILD_COUNT, stages[stage], {metrics.BUILD_STAGE.name: stage.value})
        building = [each for each in known.jobs if each.stage is not BuildStage.WAITING]
        yield MetricReading(metrics.BUILD_TASKS, sum(len(each.tasks) for each in building))
        yield MetricReading(metrics.BUILD_TASKS_RUNNING, len(known.running))
        yield MetricReading(metrics.BUILD_LEFT, sum(_left(each) for each in building))


def _read(loop: OwnerLoop) -> _OwnedCluster:
    term, states = loop.machine.term, Counter[str]()
    for assignment in loop.machine.assignments:
        states[assignment.state.value] += 1
    return _OwnedCluster(
        nodes=len(loop.members),
        states=states,
        moving=len(term.moving) if term else 0,
        checkpoint_at_s=loop.checkpoint.at_s,
        sources=loop.sources.all_dated(),
    )


def _inputs(book: JobBook, lags: Sequence[JobLag]) -> dict[str, tuple[str, ...]]:
    """Return by registration the jobs that make what each job reads; most jobs read what nobody here makes."""
    made, found = book.targets(), dict[str, tuple[str, ...]]()
    for row in (each.row for each in lags):
        makers = [book.by_id(job_id) for uri in (row.table_uri, *further_tables(row)) for job_id in made.at(uri)]
        if makers:
            found[row.registration] = tuple(each.registration for each in makers if each is not None)
    return found


def _count_jobs(book: JobBook) -> dict[tuple[JobState, Reason], int]:
    counted = {(state, reason): book.count(state=state, reason=reason) for state in JobState for reason in Reason}
    usual = {(state, Reason.NONE) for state in JobState}
    return {each: jobs for each, jobs in counted.items() if jobs or each in usual}


def _left(build: JobBuild) -> float:
    return 1.0 - share_done(build.tasks) if build.stage is BuildStage.BUILDING else 0.0


# --- what a node counts of itself -------------------------------------------------------------------------------------
# The counts are for the owner's `status` and for whoever collects metrics.


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """The counters of a node's parts, each of which has names of its own."""

    parts: Sequence[Callable[[], Mapping[str, int]]]

    def __call__(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in self.parts:
            found.update(part())
        return found


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """The readings of every node. Nothing is counted for them that is not counted anyway.

    `heap` is None where the JVM does not answer; `lease_s`: for how many seconds the node may still write.
    """

    counts: NodeCounts
    slots: int
    heap: Callable[[], HeapSize | None]
    memory_bytes: Callable[[], int]
    lease_s: Callable[[], float]
    probes: Callable[[], int]
    watch_events: Callable[[], int]

    def read(self) -> Iterator[MetricReading]:
        for name, count in self.counts().items():
            counted = metrics.NODE_COUNTERS[name]
            yield MetricReading(counted.metric, count, counted.attributes)
        yield MetricReading(metrics.NODE_SLOTS, self.slots)
        yield MetricReading(metrics.NODE_MEMORY, self.memory_bytes())
        yield MetricReading(metrics.NODE_LEASE_VALID, self.lease_s())
        yield MetricReading(metrics.NODE_PROBES, self.probes())
        yield MetricReading(metrics.NODE_WATCH_EVENTS, self.watch_events())
        if (heap := self.heap()) is not None:
            yield MetricReading(metrics.NODE_HEAP_USED, heap.used)
            yield MetricReading(metrics.NODE_HEAP_LIMIT, heap.limit)
