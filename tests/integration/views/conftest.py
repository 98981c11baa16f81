"""Tables, a view over them and its consumer, without a node: what one refresh does to the view's table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from iscp.cli.demo.lake import read
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.delta_catalog import DeltaCatalog, DeltaRetentionHold, property_setter
from iscp.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.engine.iteration_ports import HoldPlacer, IterationPorts, SinkPool
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Comparison
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, Refreshed, RefreshOrder
from iscp.ports.system import Clock
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from iscp.system.threads import SystemClock
from iscp.views.analysis.session_analysis import SessionAnalysis
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

SCHEMAS = {
    "t": pa.schema([("a", pa.int64()), ("b", pa.string()), ("d", pa.float64()), ("n", pa.decimal128(10, 2))]),
    "u": pa.schema([("a", pa.int64()), ("x", pa.string()), ("y", pa.int64())]),
}
VALUES: Mapping[str, tuple[list[Any], ...]] = {
    "t": (
        [None, 1, 2, 3, 4, 5],
        [None, "p", "q", "r", ""],
        [None, 0.0, -0.0, 1.5, float("nan"), 2.25],
        [None, Decimal("1.10"), Decimal("2.20"), Decimal("-3.00")],
    ),
    "u": ([None, 1, 2, 3, 6], ["p", "q", "z", None], [None, 0, 1, 2, 3]),
}
"""Few values, so that rows meet each other, are equal to each other, and leave groups empty."""

ROWS_MOST = 12


class Lake:
    """Tables `t` and `u`, changed at random as users may, with deltalake."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.uris = {name: str(root / name) for name in SCHEMAS}
        for name, uri in self.uris.items():
            cdf = {"delta.enableChangeDataFeed": "true"}
            write_deltalake(uri, self._rows(name, self.draw.randint(1, ROWS_MOST)), configuration=cdf)

    def _rows(self, name: str, number: int) -> pa.Table:
        rows = [[self.draw.choice(values) for values in VALUES[name]] for _ in range(number)]
        columns = [
            pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), SCHEMAS[name], strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMAS[name])

    def change(self) -> None:
        """Some commits, or none, to each table."""
        for name in SCHEMAS:
            for _ in range(self.draw.choice([0, 1, 1, 2])):
                self.draw.choice([self._insert, self._delete, self._update, self._insert])(name)

    def _insert(self, name: str) -> None:
        write_deltalake(self.uris[name], self._rows(name, self.draw.randint(1, 3)), mode="append")

    def _delete(self, name: str) -> None:
        DeltaTable(self.uris[name]).delete(self._some(name))

    def _update(self, name: str) -> None:
        column = self.draw.choice([field.name for field in SCHEMAS[name] if field.type != pa.decimal128(10, 2)])
        value = {"a": "3", "b": "'q'", "d": "1.5", "x": "'p'", "y": "2"}[column]
        DeltaTable(self.uris[name]).update(updates={column: value}, predicate=self._some(name))

    def _some(self, name: str) -> str:
        texts = {"t": ("a = 1", "a IS NULL", "b = 'p'", "a > 3"), "u": ("a = 2", "y IS NULL", "x = 'p'", "y > 1")}
        return self.draw.choice(texts[name])


class ViewBench:
    """One view over a lake's tables, refreshed by hand."""

    def __init__(
        self,
        lake: Lake,
        runtime: SparkRuntime,
        sql: str,
        tables: Collection[str] = (),
        clock: Clock | None = None,
        called: Mapping[str, str] | None = None,
        by_spark: bool = False,
        target: str = "view",
        **options: Any,
    ) -> None:
        """`by_spark`: DuckDB computes no changes. `target`: the directory of the view's table. `tables`: those that the
        query reads; by default those whose names stand in it. `called`: the tables by the names that the query has for
        them, if these are others.
        """
        self.clock = clock or SystemClock()
        self.lake, self.runtime, self.sql = lake, runtime, sql
        self.engine = SparkEngine(runtime.root, runtime.new_session)
        self.failpoints = ScriptedFailpoints()
        self.restart()
        shown = f" {sql} ".replace(",", " ")
        named = {name: uri for name, uri in lake.uris.items() if (name in tables if tables else f" {name}" in shown)}
        if called:
            named = {name: lake.uris[table] for name, table in called.items()}
        self.target = str(lake.root / target)
        self.spec = ConsumerSpec("view", self.target, options={"sql": sql, "tables": named, **options})
        self.catalog = catalog = DeltaCatalog.of(runtime.root, SessionAnalysis(runtime.root))
        own = catalog.describe(next(iter(named.values())))
        ViewKind().validate(self.spec, own, catalog)
        key = JobKey("default", own.table_id, target)
        self.row = JobRow(key, f"{target}-1", JobSpec(self.spec).to_json(), own.uri, own.uri)
        self.kind = ViewKind(None) if by_spark else ViewKind()

    def refresh(self, full: str = "") -> Refreshed:
        """As an iteration of the node does, which claims the target at first."""
        consumer = self.kind.open(self.row, self.pool)
        position = consumer.position(self.row)
        end = self.source.newest(self.row.table_uri)
        with self.engine.session() as session:
            context = ConsumeContext(session, self.row, end.table_id, 1, position, OpenGuard())
            if position.job_id != self.row.job_id:
                context = replace(context, position=consumer.claim(context, session.range(0)))
                full = full or "the first build"
            full = full or context.position.void
            return consumer.refresh(context, RefreshOrder(end, Bounds(), full))

    def run(self) -> JobOutcome:
        """One iteration of a node."""
        ports = IterationPorts(
            self.engine,
            self.source,
            lambda name: self.kind,
            self.pool,
            self.clock,
            self.failpoints,
            lambda: 1,
            holds=self.placer,
        )
        iteration = Iteration(1, self.row.key.table_id, self.row.table_uri, (self.row,))
        (outcome,) = Runner(ports, Bounds()).run(iteration, OpenGuard())
        if outcome.ok:
            self.row = self.row._replace(seq=outcome.seq, watermark=outcome.watermark)
        return outcome

    def follow(self, rounds: int) -> set[str]:
        """Changed and refreshed so often, and equal each time; the strategies that were taken."""
        strategies = set()
        for _ in range(rounds):
            self.lake.change()
            strategies.add(self.refresh().strategy)
            self.assert_equal()
        return strategies

    def restart(self) -> None:
        """What a node remembers is gone."""
        root = self.runtime.root
        load_state = state_loader(root)
        self.source = DeltaChangeSource(
            by_spark=table_opener(root), load_state=load_state, list_files=file_lister(root)
        )
        self.holds = DeltaRetentionHold(self.source.properties, property_setter(root))
        self.placer = HoldPlacer(self.holds)
        self.pool = SinkPool(
            lambda uri: DeltaSink(uri, self.failpoints, load_state),
            lambda uri: uri,
            self.clock,
            self.failpoints,
            self.source,
        )

    def position(self) -> Position:
        return self.kind.open(self.row, self.pool).position(self.row)

    def verify(self) -> Comparison:
        """As `job verify` does."""
        position = self.position()
        with self.engine.session() as session:
            context = ConsumeContext(session, self.row, position.source_id, 1, position, OpenGuard())
            with self.kind.check(self.row, self.pool).compare(context, session.range(0)) as compared:
                return compared.comparison

    @cached_property
    def _judge(self) -> SparkSession:
        return self.runtime.new_session()

    def assert_equal(self, sql: str = "") -> None:
        """The view's table against Spark's own answer to its query (or to `sql`), as bags of rows.

        The rows are read without Spark, which would take longer to open the tables than to answer.
        """
        for name, uri in self.lake.uris.items():
            self._judge.createDataFrame(read(uri)).createOrReplaceTempView(name)
        wanted, held = self._judge.sql(sql or self.sql).toArrow(), read(self.target)
        assert held.column_names == wanted.column_names
        assert bag(held) == bag(wanted)


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*([comparable(each) for each in column.to_pylist()] for column in rows.columns), strict=True))


def comparable(value: Any) -> Any:
    """NaN equals itself, and so do zeros and lists in another order."""
    match value:
        case dict():
            return tuple((name, comparable(each)) for name, each in value.items())
        case float():
            return "NaN" if value != value else float(f"{value:.9g}") + 0.0
        case list():
            return tuple(sorted(map(repr, map(comparable, value))))
        case _:
            return value


@pytest.fixture
def new_view(tmp_path: Path, spark_runtime: SparkRuntime) -> Callable[..., ViewBench]:
    def make(sql: str, seed: int = 0, **options: Any) -> ViewBench:
        return ViewBench(Lake(tmp_path, seed), spark_runtime, sql, **options)

    return make
