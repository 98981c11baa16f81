"""What is decided by sums of doubles is decided alike each time, in whichever order the rows come.

Doubles are added in the order of the files, which others may rewrite between two refreshes: 0.3 + 0.2 + 0.1 is 0.6, and
0.1 + 0.2 + 0.3 is more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from iscp.adapters.delta.query.query_analysis import analyze_query
from iscp.adapters.delta.query.signed_plans import SignedPlans
from iscp.adapters.delta.query.signed_rows import WEIGHT, At, Instants, TableChange
from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.delta.spark.session import SparkRuntime
from tests.random_views.row_bags import alike, bag_of

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]

SCHEMAS = {
    "t": pa.schema([("g", pa.int64()), ("d", pa.float64())]),
    "u": pa.schema([("x", pa.float64()), ("h", pa.int64())]),
}
SMALL_FIRST, SMALL_LAST = (0.1, 0.2, 0.3), (0.3, 0.2, 0.1)
"""More than 0.6, and 0.6, as Spark adds them up."""


class Kept:
    """The rows of a query over `t` and `u`, kept by their changes; both are read in the order of `rows`."""

    def __init__(self, session: SparkSession, sql: str, **rows: Sequence[Row]) -> None:
        self.session, self.sql = session, sql
        self.rows: dict[str, Sequence[Row]] = {name: rows.get(name, ()) for name in SCHEMAS}
        schemas = {name: self._frame(name, ()).schema.json() for name in SCHEMAS}
        self.analyzed = analyze_query(session, sql, schemas)
        self.held = self.all_rows()

    def _arrow(self, name: str, rows: Sequence[Row]) -> pa.Table:
        columns = [*zip(*rows, strict=True)] or [()] * len(SCHEMAS[name])
        arrays = [pa.array(each, kind.type) for each, kind in zip(columns, SCHEMAS[name], strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])

    def _frame(self, name: str, rows: Sequence[Row]) -> Any:
        return frame_of_arrow(self.session, self._arrow(name, rows)).coalesce(1)

    def _change(self, name: str, later: Sequence[Row]) -> TableChange:
        rows = {At.OLD: self.rows[name], At.NEW: later}
        old, new = Counter(self.rows[name]), Counter(later)
        signed = [(row, 1) for row in (new - old).elements()] + [(row, -1) for row in (old - new).elements()]
        weights = pa.array([weight for _, weight in signed], pa.int64())
        held = self._arrow(name, [row for row, _ in signed]).append_column(WEIGHT, weights) if signed else None
        changed = None if held is None else frame_of_arrow(self.session, held)
        return TableChange(lambda at: self._frame(name, rows[at]), lambda: changed, 1, lambda: held)

    def all_rows(self) -> Counter[Any]:
        moves = {name: self._change(name, rows) for name, rows in self.rows.items()}
        with closing(SignedPlans(self.analyzed.catalyst, moves, Instants())) as plans:
            return bag_of(plans.result(self.analyzed.root, At.NEW).collect())

    def refresh(self, **later: Sequence[Row]) -> None:
        moves = {name: self._change(name, later.get(name, rows)) for name, rows in self.rows.items()}
        with closing(SignedPlans(self.analyzed.catalyst, moves, Instants(), 1_000)) as plans:
            changed = plans.changes(self.analyzed.root)
            moved = changed.to_frame().collect() if changed is not None else []
        for *row, weight in moved:
            (counted,) = bag_of([row])
            self.held[counted] += weight
        self.held = Counter({row: number for row, number in self.held.items() if number})
        self.rows |= later


def grouped(values: Sequence[float], group: int = 3) -> list[Row]:
    return [(group, each) for each in values]


@pytest.fixture
def session(spark_runtime: SparkRuntime) -> SparkSession:
    return spark_runtime.new_session()


OF_GROUPS = "SELECT g, sum(d) AS s FROM t GROUP BY g"
DECIDED = {
    "having": "SELECT 'big' AS b FROM t GROUP BY g HAVING sum(d) <= 0.6D",
    "having_of_an_average": "SELECT 'big' AS b FROM t GROUP BY g HAVING avg(d) <= 0.2D",
    "having_more": "SELECT 'big' AS b FROM t GROUP BY g HAVING sum(d) > 0.6D",
    "below_a_join": "SELECT u.h FROM u JOIN (SELECT g FROM t GROUP BY g HAVING sum(d) <= 0.6D) q ON q.g = u.h",
    "joined_by": f"SELECT u.h FROM u JOIN ({OF_GROUPS}) q ON q.s = u.x",
    "correlated": "SELECT u.h FROM u WHERE u.x <= (SELECT sum(d) FROM t WHERE t.g = u.h)",
    "uncorrelated": "SELECT u.h FROM u WHERE u.x >= (SELECT sum(d) FROM t)",
    "grouped_by": f"SELECT s <= 0.6D AS b, count(*) AS n FROM ({OF_GROUPS}) GROUP BY s",
    "distinct": f"SELECT count(DISTINCT s) AS n FROM (SELECT s FROM ({OF_GROUPS}) UNION ALL "
    "SELECT x FROM u WHERE h = 4)",
    "compared": f"SELECT s <= 0.6D AS b FROM ({OF_GROUPS})",
    "rounded": f"SELECT floor((0.6D - s) * 10) AS r FROM ({OF_GROUPS})",
    "limited": f"SELECT q.g FROM (SELECT g, s FROM ({OF_GROUPS} UNION ALL SELECT 10 - h, x FROM u) "
    "ORDER BY s DESC LIMIT 1) q JOIN u ON u.h > 0",
    "window": "SELECT g, s <= 0.6D AS b FROM (SELECT g, sum(d) OVER (PARTITION BY g) AS s FROM t)",
    "over_the_sum": f"SELECT g FROM (SELECT g, row_number() OVER (PARTITION BY g > 0 ORDER BY s DESC) AS n "
    f"FROM ({OF_GROUPS} UNION ALL SELECT 10 - h, x FROM u)) WHERE n = 1",
    "a_sum_of_sums": "SELECT 'big' AS b FROM (SELECT g, sum(d) AS s FROM t GROUP BY g, d) GROUP BY g "
    "HAVING sum(s) <= 0.6D",
    "decided_within": "SELECT sum(CASE WHEN s <= 0.6D THEN 1 ELSE 2 END) AS n FROM "
    f"({OF_GROUPS}) q JOIN u ON u.h = q.g GROUP BY u.x",
}


@pytest.mark.parametrize("sql", [pytest.param(sql, id=name) for name, sql in DECIDED.items()])
@pytest.mark.parametrize("orders", [(SMALL_FIRST, SMALL_LAST), (SMALL_LAST, SMALL_FIRST)], ids=["more", "less"])
def test_what_a_sum_decided_goes_though_the_files_are_rewritten(
    session: SparkSession, sql: str, orders: tuple[Sequence[float], Sequence[float]]
) -> None:
    others = [(0.6, 3), (0.6000000000000001, 3), (0.6, 4), (0.6000000000000001, 5)]
    kept = Kept(session, sql, t=grouped(orders[0]), u=others)
    kept.rows["t"] = grouped(orders[1])
    assert kept.all_rows() == kept.held
    kept.refresh(t=[])
    assert kept.held == kept.all_rows()
