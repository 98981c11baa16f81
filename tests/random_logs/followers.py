"""Jobs that follow a table, run as nodes run them, without a cluster: what each holds after an iteration."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from iscp.cli.demo.lake import read
from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.staging import DeltaRetainedCommits
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.delta.source.spark_read import DeltaRangeReader, file_lister, state_loader, table_opener
from iscp.engine.iteration_ports import IterationPorts, SinkPool, refuse_unfit
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import VerifyReport
from iscp.model.settings.config import DIRECT_BYTES_MAX, BuildConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.model.values.ids import JobKey
from iscp.ports.consumer import ConsumerKind
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from iscp.system.threads import SystemClock
from iscp.views.analysis.session_analysis import SessionAnalysis
from tests.both_ways.keepers import Brought, Keeper, RunKeeper, brought_by, kept_by_cluster, registered, request_of
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.random_logs.cases import Follower, Kind
from tests.random_logs.columns import COLUMNS, FIRST_COLUMNS, Row

KINDS: dict[str, ConsumerKind] = {"replica": ReplicaKind(), "changefeed": ChangefeedKind(), "view": ViewKind()}
_SHARDS, _RANGE_BYTES = 2, 1_500


@dataclass
class Node:
    """What runs followers; it remembers what it has read of the source. `by_spark`: Spark reads all changes."""

    runtime: SparkRuntime
    root: Path
    by_spark: bool
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._engine = SparkEngine(self.runtime.root, self.runtime.new_session)
        self._runs = RunKeeper(lambda: self.runtime, 0 if self.by_spark else DIRECT_BYTES_MAX)
        self.restart()

    def restart(self) -> None:
        small, failpoints = 0 if self.by_spark else DIRECT_BYTES_MAX, ScriptedFailpoints()
        root = self.runtime.root
        load_state = state_loader(root)
        source = DeltaChangeSource(small, table_opener(root), load_state, file_lister(root))
        pool = SinkPool(
            lambda uri: DeltaSink(uri, failpoints, load_state), lambda uri: uri, SystemClock(), failpoints, source
        )
        retained = DeltaRetainedCommits(str(self.root), source, failpoints, small)
        self._ports = IterationPorts(
            self._engine, source, KINDS.__getitem__, pool, SystemClock(), failpoints, lambda: 1, retained=retained
        )
        self._runner = Runner(self._ports, Bounds())

    def bring(self, jobs: Sequence[Job]) -> list[Brought]:
        """One iteration, after which the jobs' rows are as the owner notes them.

        Jobs whose targets a run keeps are registered again.
        """
        for job in jobs:
            job.row = kept_by_cluster(job.row)
        outcomes = self._runner.run(self._iteration([job.row for job in jobs]), OpenGuard())
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.ok:
                job.row = job.row._replace(seq=outcome.seq, watermark=outcome.watermark)
                job.kept_by = Keeper.NODE
        return list(map(brought_by, outcomes))

    def bring_by_run(self, jobs: Sequence[Job]) -> list[Brought]:
        """Bring jobs up to date by a run beside the node, which takes over what that has kept."""
        taken = any(job.kept_by is Keeper.NODE for job in jobs)
        brought = self._runs.bring_up([request_of(job.row) for job in jobs], take_over=taken)
        for job, each in zip(jobs, brought, strict=True):
            if each.ok:
                job.kept_by = Keeper.RUN
        return brought

    def verify(self, job: Job) -> VerifyReport:
        if job.kept_by is Keeper.RUN:
            return self._runs.verify(request_of(job.row))
        (outcome,) = self._runner.run(self._iteration([job.row], Purpose.VERIFY), OpenGuard())
        assert outcome.verified is not None
        return outcome.verified

    def build(self, job: Job) -> None:
        """Build a job's first rows by ranges. Raises IscpError for what an iteration fails with."""
        ports = replace(self._ports, builds=BuildConfig(table_bytes_min=1, range_bytes=_RANGE_BYTES))
        nodes = [SnapshotRangeBuilder(ports, DeltaRangeReader()) for _ in range(2)]
        runner = Runner(ports, Bounds())

        def run(each: JobRow) -> JobOutcome:
            (outcome,) = runner.run(self._iteration([each]), OpenGuard())
            if not outcome.ok:
                raise IscpError(outcome.error_msg, code=ErrorCode(outcome.error_code))
            return outcome

        driver = BuildDriver([job.row], nodes, run)
        driver.finish()
        job.row, job.kept_by = driver.rows[0], Keeper.NODE

    def _iteration(self, rows: Sequence[JobRow], purpose: Purpose = Purpose.APPLY) -> Iteration:
        first = rows[0]
        return Iteration(next(self._numbers), first.key.table_id, first.table_uri, tuple(rows), purpose=purpose)


@dataclass
class Job:
    """A follower's job: registered when it is made. Raises InvalidRequest where it is refused."""

    follower: Follower
    node: Node
    source: str
    target: str
    other: str

    def __post_init__(self) -> None:
        spec = self._spec()
        catalog = DeltaCatalog.of(self.node.runtime.root, SessionAnalysis(self.node.runtime.root))
        described, job_spec = catalog.describe(self.source), JobSpec(spec)
        if self.follower.kind is not Kind.VIEW:
            refuse_unfit(job_spec, described)
        KINDS[spec.kind].validate(spec, described, catalog)
        name = Path(self.target).name
        key = JobKey("default", described.table_id, name)
        self.row = registered(JobRow(key, "", job_spec.to_json(), self.source, self.source))
        self.kept_by: Keeper | None = None

    def _spec(self) -> ConsumerSpec:
        follower = self.follower
        columns = tuple(column.name for column in COLUMNS[:FIRST_COLUMNS]) if follower.narrow else ()
        match follower.kind:
            case Kind.VIEW:
                named = {"t": self.source, **({"u": self.other} if " u" in follower.sql else {})}
                return ConsumerSpec(
                    "view", self.target, options={"sql": follower.sql, "tables": named, "refresh": "incremental"}
                )
            case Kind.ARCHIVE:
                return ConsumerSpec("replica", self.target, columns=columns, where=follower.condition)
            case Kind.KEYED:
                return ConsumerSpec("replica", self.target, ("k",), columns, follower.condition)
            case Kind.FEED:
                shards = {"shards": _SHARDS}
                return ConsumerSpec("changefeed", self.target, ("k",), columns, follower.condition, shards)

    def damage(self) -> bool:
        """As somebody else may: a row of the target comes once more; False where it has none."""
        held = read(self.target)
        if len(held):
            write_deltalake(DeltaTable(self.target), held.slice(0, 1), mode="append")
        return len(held) > 0

    def held(self) -> Counter[Row]:
        """The rows of the target; of replicas and feeds those of the table's first columns."""
        rows = read(self.target).to_pylist()
        if self.follower.kind is Kind.VIEW:
            return Counter(tuple(row.values()) for row in rows)
        return Counter(_first(row) for row in rows)

    def events(self) -> list[tuple[str, Row]]:
        """Of a feed: the operation and row of each, in order."""
        rows = sorted(read(self.target).to_pylist(), key=lambda each: each["ulid"])
        return [(each["operation"], _first(each["row"])) for each in rows]


def _first(row: dict[str, Any]) -> Row:
    return tuple(row[column.name] for column in COLUMNS[:FIRST_COLUMNS])
