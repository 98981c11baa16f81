"""Two keepers of targets: a node's runner, which remembers what it has read, and runs, which begin with nothing.

Both find their jobs in the same requests, on the one Spark of the tests, which a run has only once it needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from iscp.app.local_engine import DEFAULTS, LocalEngine
from iscp.app.registry import ConsumerRegistry, TriggerRegistry
from iscp.app.table_access import TableAccess
from iscp.cluster.requests.job_maker import JobMaker
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.engine.iteration_ports import HoldPlacer, IterationPorts
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import marked_job_id, parse_job_id, spec_mark
from iscp.model.job.start_rule import VerifyReport
from iscp.model.run.run_plan import JobSelection, Wanted
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.values.errors import ErrorCode
from iscp.model.values.ids import next_job_id
from iscp.model.values.watermark import Position, Watermark
from iscp.schedule.runner import Runner
from iscp.spark.deferred_spark import DeferredSpark, SparkAccess
from iscp.standalone.local_run import RunListener, RunOrders
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from iscp.views.analysis.session_analysis import SessionAnalysis
from tests.fakes.guards import OpenGuard

ITERATIONS_MAX = 5
"""Iterations within which a job has to come to the newest version of its table."""


class Keeper(Enum):
    """Who keeps a target: a node, or a run of its own each time."""

    NODE = "node"
    RUN = "run"


BY_TURNS = (Keeper.NODE, Keeper.RUN, Keeper.RUN, Keeper.NODE)
"""Keepers that follow each other in every way, over and over again."""


@dataclass(frozen=True)
class Brought:
    """What a keeper has done to one target. `strategy` is empty if it has written nothing."""

    version: int
    strategy: str = ""
    rows: int = 0
    dead_letters: int = 0
    error_code: int = ErrorCode.OK
    error: str = ""
    warning: str = ""

    @property
    def ok(self) -> bool:
        return self.error_code == ErrorCode.OK


NOTHING = Brought(-1)

Start = Callable[[], SparkAccess]
"""Starts Spark, where somebody needs it."""


class LentSpark:
    """The Spark of the tests, which goes on when its user stops it (port SparkAccess)."""

    def __init__(self, spark: SparkAccess) -> None:
        self._spark = spark
        self.root, self.local, self.new_session, self.alive = spark.root, spark.local, spark.new_session, spark.alive

    def kill(self) -> None:
        raise AssertionError("nothing hangs")

    def stop(self) -> None:
        """Leave it to others."""


class RunKeeper:
    """Runs as `iscp run` does, each in an engine of its own.

    `started`: whether the last one has started Spark. `needs` has what its jobs needed Spark for, by their names, and
    `first` the jobs that Spark was started for.
    """

    def __init__(self, start: Start, direct_bytes_max: int = DIRECT_BYTES_MAX) -> None:
        self._start = start
        self._config = replace(DEFAULTS, spark=replace(DEFAULTS.spark, direct_bytes_max=direct_bytes_max))
        self.started = False
        self.needs: dict[str, str] = {}
        self.first: set[str] = set()

    def bring_up(self, requests: Sequence[RegisterRequest], *, take_over: bool = False) -> list[Brought]:
        """Bring the targets of jobs up to date. `take_over`: a cluster may have kept them until now."""
        wanted = [Wanted(request, f"jobs[{number}]") for number, request in enumerate(requests)]
        with self._engine() as engine:
            jobs = engine.jobs(wanted)
            plan = engine.plan(wanted, jobs, JobSelection(), fail_fast=False)
            results = engine.run(jobs, plan, RunOrders(take_over=take_over), RunListener(), parallel=2).run()
        self.needs = {each.name: each.spark for each in results if each.spark is not None}
        self.first = {each.name for each in results if each.started_spark}
        return [
            Brought(
                each.to_version,
                each.strategy,
                each.rows,
                each.dead_letters,
                each.error_code,
                each.error,
                each.warning,
            )
            for each in results
        ]

    def verify(self, request: RegisterRequest) -> VerifyReport:
        with self._engine() as engine:
            return engine.verify(request)

    @contextmanager
    def _engine(self) -> Iterator[LocalEngine]:
        spark = DeferredSpark(lambda: LentSpark(self._start()), local=True)
        with LocalEngine(spark, self._config) as engine:
            yield engine
        self.started = spark.started


@dataclass
class NodeKeeper:
    """A node's runner, whose jobs are registered as those of a cluster and then remembered."""

    start: Start
    rows: dict[str, JobRow] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._clock, failpoints = SystemClock(), EnvironmentFailpoints({})
        spark = DeferredSpark(lambda: LentSpark(self.start()), local=True)
        tables = TableAccess(spark, self._clock, failpoints, DIRECT_BYTES_MAX)
        self._source = source = tables.source()
        kinds = ConsumerRegistry().kind
        self.ports = IterationPorts(
            tables.engine(),
            source,
            kinds,
            tables.sinks(source, lambda uri: uri),
            self._clock,
            failpoints,
            lambda: 1,
            holds=HoldPlacer(tables.holds(source)),
        )
        catalog = DeltaCatalog.of(spark.root, SessionAnalysis(spark.root))
        self._maker = JobMaker(catalog, kinds, TriggerRegistry(()).check, self._clock)
        self._runner = Runner(self.ports, Bounds())

    def row_of(self, request: RegisterRequest, *, check: bool = False) -> JobRow:
        """Return the job of a request, without an id."""
        source = self._maker.describe(request.job.account, request.job.table)
        return self._maker.make(request.job, request.spec_json, source, source.table_id, check=check).row

    def register(self, request: RegisterRequest) -> None:
        """Register a job, also if it was before: it is a later registration then."""
        row = self.row_of(request, check=True)
        self._maker.refuse_rebuild(row)
        former = self.rows.get(request.job.name)
        self.rows[request.job.name] = registered(row, former.job_id if former else "")

    def bring_up(self, requests: Sequence[RegisterRequest], *, again: bool = False) -> list[Brought]:
        """Bring jobs up to date, in this order; `again`: by registrations of now."""
        brought = []
        for request in requests:
            if again or request.job.name not in self.rows:
                self.register(request)  # one by one: a job may read what the one before it makes
            brought.append(self._bring(request.job.name))
        return brought

    def _bring(self, name: str) -> Brought:
        brought = NOTHING
        for _ in range(ITERATIONS_MAX):
            row = self.rows[name]
            newest = self._source.newest(row.table_uri).to.version
            outcome = self._iterate(row)
            brought = brought_by(outcome, brought)
            if not outcome.ok:
                return brought
            self.rows[name] = row._replace(watermark=outcome.watermark, seq=outcome.seq)
            if outcome.watermark.version >= newest:
                return brought
        return replace(brought, error_code=ErrorCode.INTERNAL, error="does not come to the newest version")

    def _iterate(self, row: JobRow) -> JobOutcome:
        iteration = Iteration(next(self._numbers), row.key.table_id, row.table_uri, (row,))
        (outcome,) = self._runner.run(iteration, OpenGuard())
        return outcome


def brought_by(outcome: JobOutcome, before: Brought = NOTHING) -> Brought:
    """Count an iteration as runs do: the first that wrote says how far the target was behind."""
    strategy = (outcome.strategy or outcome.data_type.value) if outcome.ok and outcome.committed else ""
    return Brought(
        outcome.watermark.version,
        before.strategy or strategy,
        before.rows + outcome.rows,
        outcome.dead_letters,
        outcome.error_code,
        outcome.error_msg,
        outcome.warning,
    )


def registered(row: JobRow, former: str = "") -> JobRow:
    """Return a job as it is registered now in a cluster, whose last registration is `former` (empty: none)."""
    time = next_job_id(SystemClock().now_s(), former)
    job_id = marked_job_id(time, spec_mark(row.table_uri, row.spec.consumer))
    return row._replace(job_id=job_id, watermark=Watermark(), seq=0, status_json="")


def kept_by_cluster(row: JobRow) -> JobRow:
    """Return a job that is to keep its target in a cluster: registered now if it never was, or a run keeps that."""
    kept_by = parse_job_id(position_of(row).job_id)
    return registered(row, kept_by.time) if kept_by.run or not parse_job_id(row.job_id).mark else row


def request_of(row: JobRow) -> RegisterRequest:
    """Return the request that a job is made of."""
    return RegisterRequest(JobName(row.table_uri, row.key.job_name, row.key.account), row.spec_json)


def position_of(row: JobRow) -> Position:
    """Return the position of a target as somebody reads it who has never seen it, and who needs no Spark."""
    spark = DeferredSpark(without_spark, local=True)
    tables = TableAccess(spark, SystemClock(), EnvironmentFailpoints({}), DIRECT_BYTES_MAX)
    pool = tables.sinks(tables.source(), lambda uri: uri)
    return ConsumerRegistry().kind(row.spec.consumer.kind).open(row, pool).position(row)


def without_spark() -> SparkAccess:
    raise AssertionError("nothing here needs Spark")
