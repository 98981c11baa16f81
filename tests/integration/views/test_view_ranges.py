"""A view's first rows that all nodes compute, range by range, are those that Spark gives of the whole query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.adapters.delta.source.range_read import DeltaRangeReader
from iscp.cli.demo.lake import read
from iscp.core.config import BuildConfig
from iscp.core.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.core.job_row import JobRow
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from iscp.runtime.iteration.runner import Runner
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import OpenGuard

from .conftest import SCHEMAS, VALUES, ViewBench

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

    def run(self, row: JobRow) -> JobOutcome:
        iteration = Iteration(1, row.key.table_id, row.table_uri, (row,))
        (outcome,) = Runner(self._ports(), Bounds()).run(iteration, OpenGuard())
        assert outcome.ok, outcome.error_msg
        self.view.row = row._replace(seq=outcome.seq, watermark=outcome.watermark)
        self.outcome = outcome
        return outcome

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


WAYS = {
    "select a, b, d, n from t where a > 1 or b is null": "rows",
    "select t.a, u.x, t.n from t join u on t.a = u.a and u.y is not null": "rows",
    "select t.a, u.x, explode(array(t.b, u.x)) e from t left join u on t.a = u.a": "rows",
    "select t.a, t.b from t left anti join u on t.a = u.a union all select a, b from t where a = 3": "rows",
    "select t.a from t where t.a in (select u.a from u) and t.a >= (select min(y) from u)": "rows",
    "select b, count(*) c, sum(n) s, avg(a) m, sum(d) f from t group by b": "groups",
    "select a, min(d) lo, max(b) hi, stddev(a + n) s, var_pop(n) v, bool_or(n > 2) o, count_if(n > 1) k from t "
    "group by a": "groups",
    "select u.x, t.b, count(n) c, avg(n) m, max(d) hi from t join u on t.a = u.a group by u.x, t.b "
    "having count(*) > 1": "groups",
    "select distinct d, b from t": "groups",
    "select a, b, grouping(b) g, sum(n) filter (where a > 1) s from t group by rollup (a, b)": "groups",
    "select g.b, g.s, u.x from (select b, sum(d) s from t group by b) g left join u on g.b = u.x": "groups",
    "select avg(d) m, max(b) hi from t": "groups",
    "select b, sum(n) s, count(*) c from t group by b order by s desc nulls last, b limit 3": "sums",
    "select b, max(n) s from t group by b order by s desc nulls last, b limit 3": "groups",
    "select count(*) c, sum(n) s, min(a) lo, max(n) hi, avg(a) m from t where a > 1": "totals",
    "select b, n from t where n > (select avg(y) from u)": "rows",
}


@pytest.mark.parametrize("sql", WAYS)
def test_it_equals_its_query(new_view: NewView, sql: str) -> None:
    ranged = RangedView(new_view(sql, seed=7, tables=["t", "u"] if " u" in sql else ["t"], refresh="incremental"), 3)
    (waits,) = ranged.driver.iterate()
    assert waits.build is not None, waits.strategy_reason
    assert ranged.way() == WAYS[sql]
    assert ranged.is_claimed_alone()
    outcome = ranged.finish()
    assert (outcome.data_type, outcome.strategy, outcome.seq) == (DataType.SNAPSHOT, "full", 2)
    assert outcome.strategy_reason == f"the first build, by ranges of {ranged.view.row.table_uri}"
    ranged.view.assert_equal()
    assert ranged.marks == []
    assert "full" not in ranged.view.follow(2)
