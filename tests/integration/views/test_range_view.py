"""A view's first rows that all nodes compute, range by range, are those that Spark gives of the whole query."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.cli.demo.lake import read
from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.iteration_ports import IterationPorts
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import JobSpec
from iscp.model.values.errors import PlanOutdated
from iscp.schedule.runner import Runner
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import OpenGuard, break_down
from tests.selection import in_full

from .conftest import SCHEMAS, VALUES, ViewBench, bag

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]
FILES = 6


class RangedView:
    """A view over `t`, whose files are many, built by three nodes that share nothing but the storage."""

    def __init__(self, view: ViewBench, seed: int = 0) -> None:
        self.view = view
        self.builds = BuildConfig(table_bytes_min=1, range_bytes=2_000)
        for _ in range(FILES):
            self.add(5)
        nodes = [SnapshotRangeBuilder(self._ports(), DeltaRangeReader()) for _ in range(3)]
        self.driver = BuildDriver([view.row], nodes, self.run, seed)

    def add(self, rows: int, table: str = "t") -> None:
        draw = self.view.lake.draw
        columns = [[draw.choice(values) for _ in range(rows)] for values in VALUES[table]]
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMAS[table], strict=True)]
        data = pa.Table.from_arrays(arrays, schema=SCHEMAS[table])
        write_deltalake(self.view.lake.uris[table], data, mode="append")

    def _ports(self) -> IterationPorts:
        view = self.view
        view.restart()
        ports = (view.engine, view.source, lambda name: view.kind, view.pool, view.clock, view.failpoints, lambda: 1)
        return IterationPorts(*ports, builds=self.builds)

    def try_run(self, row: JobRow) -> JobOutcome:
        iteration = Iteration(1, row.key.table_id, row.table_uri, (row,))
        (outcome,) = Runner(self._ports(), Bounds()).run(iteration, OpenGuard())
        return outcome

    def run(self, row: JobRow) -> JobOutcome:
        self.outcome = outcome = self.try_run(row)
        assert outcome.ok, outcome.error_msg
        if row.job_id == self.view.row.job_id:
            self.view.row = row._replace(seq=outcome.seq, watermark=outcome.watermark)
        return outcome

    def answer(self) -> Counter[tuple[Any, ...]]:
        """Spark's own to the query, as of now."""
        session = self.view.runtime.new_session()
        for name, uri in self.view.lake.uris.items():
            session.createDataFrame(read(uri)).createOrReplaceTempView(name)
        return bag(session.sql(self.view.sql).toArrow())

    def finish(self) -> JobOutcome:
        self.driver.finish()
        return self.outcome

    def way(self) -> str:
        (begun,) = Path(self.view.target, "_iscp-build").rglob("begun.json")
        return str(json.loads(begun.read_text())["way"])

    @property
    def marks(self) -> list[str]:
        return sorted(path.name for path in Path(self.view.target, "_iscp-build").rglob("*.json"))

    def is_claimed_alone(self) -> bool:
        return bool(self.marks) and read(self.view.target).num_rows == 0


ROWS_JOINED = "select t.a, u.x, t.n from t join u on t.a = u.a and u.y is not null"
GROUPED = "select b, count(*) c, sum(n) s, avg(a) m, sum(d) f from t group by b"
LIMITED = "select b, sum(n) s, count(*) c from t group by b order by s desc nulls last, b limit 3"
TOTALS = "select count(*) c, sum(n) s, min(a) lo, max(n) hi, avg(a) m from t where a > 1"
EXACT = (
    "select * from (select b, sum(d) s, stddev(d) v, covar_pop(d, a) w, avg(a) m, sum(d) filter (where a > 1) f "
    "from t group by b) order by s, v, w, m, f, b limit 20"
)
EMPTY = [
    "select b, sum(n) s from t where a > 100 group by b",
    "select a, b from t where a > 100",
    "select max(b) hi, avg(d) m, count(b) c, stddev(d) s from t where a > 100",
    "select count(*) c, sum(n) s, max(a) hi from t where a > 100",
]
WAYS = {
    ROWS_JOINED: "rows",
    EXACT: "groups",
    GROUPED: "groups",
    LIMITED: "sums",
    TOTALS: "totals",
    "select a, b, d, n from t where a > 1 or b is null": "rows",
    "select t.a, u.x, explode(array(t.b, u.x)) e from t left join u on t.a = u.a": "rows",
    "select t.a, t.b from t left anti join u on t.a = u.a union all select a, b from t where a = 3": "rows",
    "select t.a from t where t.a in (select u.a from u) and t.a >= (select min(y) from u)": "rows",
    "select a, min(d) lo, max(b) hi, stddev(a + n) s, var_pop(n) v, bool_or(n > 2) o, count_if(n > 1) k from t "
    "group by a": "groups",
    "select u.x, t.b, count(n) c, avg(n) m, max(d) hi from t join u on t.a = u.a group by u.x, t.b "
    "having count(*) > 1": "groups",
    "select distinct d, b from t": "groups",
    "select a, b, grouping(b) g, sum(n) filter (where a > 1) s from t group by rollup (a, b)": "groups",
    "select g.b, g.s, u.x from (select b, sum(d) s from t group by b) g left join u on g.b = u.x": "groups",
    "select avg(d) m, max(b) hi from t": "groups",
    "select b, max(n) s from t group by b order by s desc nulls last, b limit 3": "groups",
    "select b, n from t where n > (select avg(y) from u)": "rows",
}


EACH_TIME = [ROWS_JOINED, GROUPED, LIMITED, TOTALS, EXACT]
NEVER = {
    "select a, row_number() over (partition by b order by a, d) r from t": "Window",
    "select x.a from t x join t y on x.a = y.a": "Join",
    "select b, count(distinct a) c from t group by b": "Aggregate",
    "select b, try_sum(n) c from t group by b": "Aggregate",
    "select b, sort_array(collect_list(a)) c from t group by b": "Aggregate",
    "select b, sum(n) s from t group by b having sum(n) > (select avg(n) from t)": "Filter",
}


def other_tables(sql: str) -> list[str]:
    return ["t", "u"] if " u" in sql else ["t"]


@pytest.mark.parametrize("sql", in_full(WAYS, but=EACH_TIME))
def test_it_equals_its_query_and_follows_from_there(new_view: NewView, sql: str) -> None:
    """Of nulls, zeros of both signs, NaN, and groups that are in several ranges; nodes remember nothing."""
    ranged = RangedView(new_view(sql, seed=7, tables=other_tables(sql), refresh="incremental"), 3)
    (waits,) = ranged.driver.iterate()
    assert waits.build is not None, waits.strategy_reason
    assert ranged.way() == WAYS[sql]
    assert ranged.is_claimed_alone()
    outcome = ranged.finish()
    assert (outcome.data_type, outcome.strategy, outcome.seq) == (DataType.SNAPSHOT, "full", 2)
    assert outcome.strategy_reason == f"the first build, by ranges of {ranged.view.row.table_uri}"
    ranged.view.assert_equal()
    assert ranged.marks == []
    assert ranged.view.verify().equal
    assert "full" not in ranged.view.follow(2)


@pytest.mark.parametrize("sql", in_full(NEVER))
def test_what_needs_all_rows_at_once_is_computed_on_one_node_and_says_why(new_view: NewView, sql: str) -> None:
    ranged = RangedView(new_view(sql, seed=7))
    (outcome,) = ranged.driver.iterate()
    assert outcome.build is None
    assert outcome.strategy_reason.startswith(f"the first build, on one node: {NEVER[sql]}")
    ranged.view.assert_equal()


@pytest.mark.parametrize("sql", in_full(EACH_TIME))
@pytest.mark.slow
def test_it_is_of_the_versions_that_were_agreed_on_whatever_is_committed_meanwhile(new_view: NewView, sql: str) -> None:
    ranged = RangedView(new_view(sql, seed=5, tables=other_tables(sql)))
    ranged.driver.iterate()
    wanted = ranged.answer()
    for table in other_tables(sql) * 2:
        ranged.driver.work(ranged.driver.waiting[0])
        ranged.add(4, table)
        DeltaTable(ranged.view.lake.uris[table]).delete("a = 2")
    outcome = ranged.finish()
    assert bag(read(ranged.view.target)) == wanted
    assert outcome.watermark.version == FILES
    ranged.run(ranged.driver.rows[0])
    ranged.view.assert_equal()


def test_another_table_that_is_vacuumed_in_the_middle_has_it_begin_again_at_newer_versions(new_view: NewView) -> None:
    ranged = RangedView(new_view(ROWS_JOINED, seed=5, tables=["t", "u"]))
    (first,) = ranged.driver.iterate()
    former = ranged.driver.batch(ranged.driver.waiting[0])
    ranged.driver.work(ranged.driver.waiting[0])
    ranged.add(4, "u")
    other = DeltaTable(ranged.view.lake.uris["u"])
    other.optimize.compact()
    other.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    while ranged.driver.waiting:
        ranged.driver.work(ranged.driver.waiting[0])
    (again,) = ranged.driver.iterate()
    assert first.build is not None
    assert again.build is not None
    assert (again.build.version, again.build.pin != first.build.pin) == (first.build.version, True)
    with pytest.raises(PlanOutdated):  # late work of the former build
        ranged.driver.nodes[0].build(former, OpenGuard())
    assert ranged.marks == ["begun.json"]
    outcome = ranged.finish()
    assert outcome.strategy_reason.endswith(f"by ranges of {ranged.view.row.table_uri}")
    ranged.view.assert_equal()


@pytest.mark.parametrize("sql", in_full(EACH_TIME, but=[LIMITED]))
@pytest.mark.parametrize("place", in_full(["publish.before", "commit.before", "publish.after", "report.before"]))
def test_a_node_that_dies_while_it_publishes_leaves_the_rest_to_the_next(
    new_view: NewView, sql: str, place: str
) -> None:
    ranged = RangedView(new_view(sql, seed=9, tables=other_tables(sql)))
    ranged.driver.iterate()
    while ranged.driver.waiting:
        ranged.driver.work(ranged.driver.waiting[0])
    ranged.view.failpoints.once(place, break_down)
    row = ranged.driver.rows[0]
    assert not ranged.try_run(row).ok
    outcome = ranged.run(row)
    assert outcome.watermark.version == FILES
    ranged.view.assert_equal()
    ranged.add(3)
    ranged.run(row._replace(seq=outcome.seq, watermark=outcome.watermark))
    ranged.view.assert_equal()


@pytest.mark.parametrize("sql", in_full(EMPTY))
def test_ranges_without_a_row_make_a_view_without_one(new_view: NewView, sql: str) -> None:
    ranged = RangedView(new_view(sql, seed=9, tables=["t"]))
    assert ranged.driver.iterate()[0].build is not None
    ranged.finish()
    ranged.view.assert_equal()


def test_a_value_that_has_no_result_is_reported_as_of_the_whole_query(new_view: NewView) -> None:
    ranged = RangedView(new_view("select a, 10 / a q from t", seed=9))
    write_deltalake(ranged.view.lake.uris["t"], pa.table({"a": [0]}), mode="append", schema_mode="merge")
    (waits,) = ranged.driver.iterate()
    assert waits.build is not None
    while ranged.driver.waiting:
        ranged.driver.work(ranged.driver.waiting[0])
    outcome = ranged.try_run(ranged.driver.rows[0])
    assert (outcome.ok, outcome.build) == (False, None)
    assert "DIVIDE_BY_ZERO" in outcome.error_msg or "zero" in outcome.error_msg
    assert ranged.try_run(ranged.driver.rows[0]).build is None, "nor is it tried by ranges again"


@pytest.mark.further  # each time: one view of a batch, above; batches of several jobs in pipeline/test_builds.py
def test_views_of_one_batch_are_built_of_one_read(new_view: NewView) -> None:
    view = new_view(GROUPED, seed=9)
    ranged = RangedView(view)
    spec = replace(view.spec, target=f"{view.target}-rows", options={**view.spec.options, "sql": "select a, b from t"})
    other = view.row._replace(job_id="view-2", spec_json=JobSpec(spec).to_json())
    driver = BuildDriver([view.row, other], ranged.driver.nodes, ranged.run)
    driver.iterate()
    assert len(driver.batch(driver.waiting[0]).plans) == 2
    driver.finish()
    view.assert_equal()
    read_rows = read(view.lake.uris["t"]).select(["a", "b"])
    assert bag(read(f"{view.target}-rows")) == bag(read_rows)
