"""A source table, jobs on it and a runner, without a node: what one iteration does to the sinks."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.app.table_access import TableAccess
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.log.commits import Commit, read_commit
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.staging import DeltaRetainedCommits
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.engine.iteration_ports import NO_BUILDS, IterationPorts, SinkPool, refuse_unfit
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import DIRECT_BYTES_MAX, BuildConfig
from iscp.model.settings.variables import setting_variable
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import ChangeSource
from iscp.schedule.runner import Runner
from iscp.spark.deferred_spark import SparkAccess
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from iscp.storage.s3_settings import table_options
from iscp.system.threads import SystemClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.selection import in_full

from .templates import Templates

ROWS = 50
TEMPLATES = Templates()

BOTH_WAYS = pytest.mark.parametrize("pipeline", ["direct", "spark"], indirect=True)
"""Tails are taken without Spark, as changes as small as these are, and by Spark, as large ones are."""

SPARK_IN_FULL = pytest.mark.parametrize("pipeline", in_full(["direct", "spark"]), indirect=True)
"""As BOTH_WAYS, for what does not go by how changes are read; `--full` also has Spark read those of all other tests."""

DIRECT_IN_FULL = pytest.mark.parametrize("pipeline", in_full(["spark", "direct"]), indirect=True)
"""The same for what is large as a rule, and then Spark's."""


def rows(ids: range | list[int], value: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64()), "v": [value] * len(ids), "g": [i % 7 for i in ids]})


BY_SPARK = pytest.mark.parametrize("pipeline", ["spark"], indirect=True)
DIRECTLY = pytest.mark.parametrize("pipeline", ["direct"], indirect=True)
"""What says that Spark is not needed; all other tests pass in either way."""


def direct_bytes_max() -> int:
    """As nodes have it: with `ISCP_SPARK__DIRECT_BYTES_MAX=0` Spark reads all changes, but where a test pins a way."""
    return int(os.environ.get(setting_variable("spark.direct_bytes_max"), DIRECT_BYTES_MAX))


def opened(uri: str) -> DeltaTable:
    return DeltaTable(uri, storage_options=table_options(uri))


class Pipeline:
    """One source with `id`, `v`, `g`, and as many runners as a test wants, each like a node of its own."""

    def __init__(self, root: Path | str, runtime: SparkAccess, small_bytes_max: int | None = None) -> None:
        self.root = root
        self.small_bytes_max = direct_bytes_max() if small_bytes_max is None else small_bytes_max
        tables = TableAccess(runtime, SystemClock(), ScriptedFailpoints(), self.small_bytes_max)
        self.engine = cast(SparkEngine, tables.engine())
        self.by_spark = table_opener(runtime.root)
        self.load_state, self.list_files = state_loader(runtime.root), file_lister(runtime.root)
        self.source = f"{root}/source"
        TEMPLATES.source("rows", self.source, self._write_source)
        self.failpoints = ScriptedFailpoints()
        self.runner = self.new_runner(self.failpoints)
        self._numbers = itertools.count(1)
        self._read: tuple[tuple[str, list[tuple[str, int]]], pa.Table] | None = None

    def _write_source(self) -> None:
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.source, rows(range(ROWS)), configuration=feed, storage_options=table_options(self.source))

    def new_environment(self, failpoints: ScriptedFailpoints, source: ChangeSource | None = None) -> SinkPool:
        open_sink = lambda uri: DeltaSink(uri, failpoints, self.load_state)  # noqa: E731
        source = source or DeltaChangeSource()
        return SinkPool(open_sink, lambda uri: uri, SystemClock(), failpoints, source)

    def new_runner(
        self,
        failpoints: ScriptedFailpoints,
        bounds: Bounds | None = None,
        small_bytes_max: int | None = None,
        kinds: Callable[[str], ConsumerKind] = lambda name: ReplicaKind(),
        on_committed: Callable[[JobOutcome], None] = lambda outcome: None,
        builds: BuildConfig = NO_BUILDS,
    ) -> Runner:
        ports = self.new_ports(failpoints, small_bytes_max, kinds, builds)
        return Runner(ports, bounds or Bounds(), on_committed)

    def new_ports(
        self,
        failpoints: ScriptedFailpoints,
        small_bytes_max: int | None = None,
        kinds: Callable[[str], ConsumerKind] = lambda name: ReplicaKind(),
        builds: BuildConfig = NO_BUILDS,
    ) -> IterationPorts:
        bytes_max = self.small_bytes_max if small_bytes_max is None else small_bytes_max
        source = DeltaChangeSource(bytes_max, self.by_spark, self.load_state, self.list_files)
        return IterationPorts(
            self.engine,
            source,
            kinds,
            self.new_environment(failpoints, source),
            SystemClock(),
            failpoints,
            epoch=lambda: 1,
            builds=builds,
            retained=DeltaRetainedCommits(str(self.root), source, failpoints, self.small_bytes_max),
        )

    def job(self, name: str, registration: int = 1, policies: dict[str, Any] | None = None, **consumer: Any) -> JobRow:
        spec = ConsumerSpec("replica", self.target(name), **consumer)
        job_spec = JobSpec(spec, **(policies or {}))
        catalog = DeltaCatalog(s3=True, by_spark=self.by_spark)
        source = catalog.describe(self.source)
        refuse_unfit(job_spec, source)
        ReplicaKind().validate(spec, source, catalog)
        key = JobKey("default", source.table_id, name)
        return JobRow(key, f"{name}-{registration}", job_spec.to_json(), self.source, self.source)

    def target(self, name: str) -> str:
        return f"{self.root}/{name}"

    def run(self, *jobs: JobRow, runner: Runner | None = None, to: int | None = None) -> list[JobOutcome]:
        iteration = Iteration(next(self._numbers), jobs[0].key.table_id, self.source, jobs, to_version=to)
        return list((runner or self.runner).run(iteration, OpenGuard()))

    def build(self, *jobs: JobRow) -> list[JobOutcome]:
        """As two runs of jobs that have never run, of which the second has nothing to do.

        For tests that are about what comes after it: what the first writes is copied where it was made before.
        """

        def build() -> None:
            for outcome in self.run(*jobs):
                assert (outcome.error_msg, outcome.dead_letters) == ("", 0)

        specs = ", ".join(f"{job.job_id} {job.spec_json}" for job in jobs).replace(str(self.root), "")
        targets = [self.target(job.key.job_name) for job in jobs]
        TEMPLATES.targets(specs, self.source, targets, build)
        return self.run(*jobs)

    def create(self, *statements: str) -> None:
        """Another source, made by Spark SQL, in which SOURCE stands for it: copied where it was made before."""

        def create() -> None:
            shutil.rmtree(self.source)
            for statement in statements:
                self.sql(statement)

        TEMPLATES.source("; ".join(statements), self.source, create)

    def upsert(self, ids: range | list[int], value: str) -> None:
        (
            opened(self.source)
            .merge(rows(ids, value), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def delete(self, condition: str) -> None:
        opened(self.source).delete(condition)

    def insert(self, ids: range | list[int], value: str = "new") -> None:
        write_deltalake(opened(self.source), rows(ids, value), mode="append")

    def assert_equal(
        self,
        name: str,
        keeps: Callable[[dict[str, Any]], bool] = lambda row: True,
        columns: tuple[str, ...] = ("id", "v", "g"),
    ) -> None:
        """The target against a recomputation from the source, row by row."""
        source = opened(self.source).to_pyarrow_table().to_pylist()
        expected = [{column: row[column] for column in columns} for row in source if keeps(row)]
        target = opened(self.target(name)).to_pyarrow_table().to_pylist()
        assert sorted(map(_sortable, target)) == sorted(map(_sortable, expected))

    def sql(self, statement: str) -> None:
        """Spark SQL, in which SOURCE stands for the source."""
        with self.engine.session() as session:
            session.sql(statement.replace("SOURCE", f"delta.`{self.source}`"))

    def assert_equal_by_spark(self, name: str, columns: tuple[str, ...] = ()) -> None:
        """As `assert_equal`, for sources that not everyone can read, and with the columns' order."""
        expected = self.source_by_spark()
        if columns:
            places = {column.lower(): place for place, column in enumerate(expected.column_names)}
            expected = expected.select([places[column.lower()] for column in columns])
        target = opened(self.target(name)).to_pyarrow_table()
        assert [column.lower() for column in target.column_names] == [
            column.lower() for column in expected.column_names
        ]
        self.assert_holds(name, expected.rename_columns(target.column_names))

    def assert_holds(self, name: str, expected: pa.Table) -> None:
        """Row by row, whatever the source is by now."""
        target = opened(self.target(name)).to_pyarrow_table().select(expected.column_names)
        assert _values(target) == _values(expected)

    def source_by_spark(self) -> pa.Table:
        """Read once for all targets that are compared with it."""
        log = sorted((file.name, file.stat().st_mtime_ns) for file in Path(self.source, "_delta_log").iterdir())
        if self._read is None or self._read[0] != (self.source, log):
            with self.engine.session() as session:
                self._read = (self.source, log), session.read.format("delta").load(self.source).toArrow()
        return self._read[1]

    def commits(self, name: str) -> list[Commit]:
        """The target's commits, oldest first."""
        found = (read_commit(self.target(name), version) for version in itertools.count())
        return list(itertools.takewhile(lambda commit: commit is not None, found))  # type: ignore[arg-type]


def _values(table: pa.Table) -> list[str]:
    return sorted(map(repr, zip(*[column.to_pylist() for column in table.columns], strict=True)))


def _sortable(row: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in row.items()))


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, tmp_path: Path, spark_runtime: SparkRuntime) -> Pipeline:
    ways = {"direct": DIRECT_BYTES_MAX, "spark": 0}
    return Pipeline(tmp_path, spark_runtime, ways.get(getattr(request, "param", "")))
