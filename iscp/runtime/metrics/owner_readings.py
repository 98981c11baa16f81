"""Read what the owner knows of its cluster, for whoever collects metrics; other nodes say that they are not the owner.

Lags are those that `job status` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.lag import lag_of
from iscp.coordination.membership.assignments import ShardState
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.build.api_builds import BuildStage
from iscp.core.build.build_progress import JobBuild, KnownBuilds, share_done
from iscp.core.job.job_row import JobRow, JobState, Reason
from iscp.core.job.several_tables import further_tables
from iscp.core.metrics import build_metrics, job_metrics
from iscp.core.metrics import owner_metrics as metrics
from iscp.core.metrics.chain_lag import chain_lags
from iscp.core.metrics.metric import MetricReading
from iscp.core.metrics.most_behind import JobLag, lag_readings, whole_jobs
from iscp.core.values.errors import NotOwner, Unavailable
from iscp.core.values.ids import ShardId
from iscp.ports.system import Clock
from iscp.runtime.admin.job_views import is_late
from iscp.runtime.metrics.metered_runner import kind_of
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.owner_loop import OwnerLoop


@dataclass(frozen=True, slots=True)
class _OwnedCluster:
    """An `_OwnedCluster` is what the owner's loop knows at one moment."""

    nodes: int
    states: Mapping[str, int]
    moving: int
    checkpoint_at_s: float
    sources: Mapping[ShardId, SourceSeen]


class OwnerReadings:
    """The readings of a node as the owner. `named_max`: jobs that metrics name. `builds` reads those of the term."""

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
            yield MetricReading(metrics.LEADS, 0)
            return
        yield MetricReading(metrics.LEADS, 1)
        yield from self._of_cluster(seen)
        yield from self._of_jobs(writer, seen)
        yield from self._of_builds()

    def _of_cluster(self, seen: _OwnedCluster) -> Iterator[MetricReading]:
        yield MetricReading(metrics.NODES, seen.nodes)
        for state in ShardState:
            yield MetricReading(metrics.SHARDS, seen.states.get(state.value, 0), {metrics.STATE.name: state.value})
        yield MetricReading(metrics.MOVING, seen.moving)
        for decision, count in self._owner.decisions.counts().items():
            yield MetricReading(metrics.DECISIONS, count, {metrics.DECISION.name: decision})
        if seen.checkpoint_at_s:
            yield MetricReading(metrics.CHECKPOINT_AGE, max(0.0, self._clock.now_s() - seen.checkpoint_at_s))
        yield MetricReading(metrics.LOG_COMMITS, self._owner.log_commits)

    def _of_jobs(self, writer: LogWriter, seen: _OwnedCluster) -> Iterator[MetricReading]:
        for (state, reason), jobs in writer.read(_count_jobs).items():
            names = {job_metrics.STATE.name: state.value, job_metrics.REASON.name: reason.value}
            yield MetricReading(job_metrics.JOBS, jobs, names)
        rows, now_s = writer.read(lambda book: book.rows()), self._clock.now_s()
        lags = whole_jobs(self._lag(row, seen, now_s) for row in rows if row.drop_at_s is None)
        inputs = writer.read(lambda book: _inputs(book, lags))
        whole_s = chain_lags({each.row.registration: each.lag_s for each in lags}, inputs)
        lags = [each._replace(global_s=whole_s[each.row.registration]) for each in lags]
        yield MetricReading(job_metrics.LATE, sum(is_late(each.row, each.lag_s) for each in lags))
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
            yield MetricReading(build_metrics.BUILDS, stages[stage], {build_metrics.STAGE.name: stage.value})
        building = [each for each in known.jobs if each.stage is not BuildStage.WAITING]
        yield MetricReading(build_metrics.TASKS, sum(len(each.tasks) for each in building))
        yield MetricReading(build_metrics.TASKS_RUNNING, len(known.running))
        yield MetricReading(build_metrics.LEFT, sum(_left(each) for each in building))


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
