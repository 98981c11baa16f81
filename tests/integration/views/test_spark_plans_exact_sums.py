"""What is decided by sums of doubles is decided alike each time, in whichever order the rows come.

Doubles are added in the order of the files, which others may rewrite between two refreshes: 0.3 + 0.2 + 0.1 is 0.6, and
0.1 + 0.2 + 0.3 is more.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from iscp.algebra.algebra import TableRows
from iscp.model.query_plan import OperatorUpkeep
from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import frame_of_arrow
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.changes.signed_rows import WEIGHT, Instants, TableChange
from iscp.views.changes.spark_plans import SparkPlans
from tests.random_views.row_bags import alike, bag_of
from tests.selection import in_full

from .conftest import Lake, ViewBench

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]

SCHEMAS = {
    "t": pa.schema([("g", pa.int64()), ("d", pa.float64())]),
    "u": pa.schema([("x", pa.float64()), ("h", pa.int64())]),
    "x": pa.schema([("g", pa.int64()), ("d", pa.float64())]),
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
        rows = {TableRows.OLD: self.rows[name], TableRows.NEW: later}
        old, new = Counter(self.rows[name]), Counter(later)
        signed = [(row, 1) for row in (new - old).elements()] + [(row, -1) for row in (old - new).elements()]
        weights = pa.array([weight for _, weight in signed], pa.int64())
        held = self._arrow(name, [row for row, _ in signed]).append_column(WEIGHT, weights) if signed else None
        changed = None if held is None else frame_of_arrow(self.session, held)
        return TableChange(lambda at: self._frame(name, rows[at]), lambda: changed, 1, lambda: held)

    def plans(self, **later: Sequence[Row]) -> SparkPlans:
        moves = {name: self._change(name, later.get(name, rows)) for name, rows in self.rows.items()}
        return SparkPlans(self.analyzed.catalyst, self.analyzed.algebra, moves, Instants(), 1_000)

    def all_rows(self) -> Counter[Any]:
        with closing(self.plans()) as plans:
            return bag_of(plans.result(self.analyzed.root, TableRows.NEW).collect())

    def refresh(self, **later: Sequence[Row]) -> None:
        with closing(self.plans(**later)) as plans:
            changed = plans.changes(self.analyzed.root)
            moved = changed.to_frame().collect() if changed is not None else []
        for *row, weight in moved:
            (counted,) = bag_of([row])
            self.held[counted] += weight
        self.held = Counter({row: number for row, number in self.held.items() if number})
        self.rows |= later


def grouped(values: Sequence[float | None], group: int = 3) -> list[Row]:
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


@pytest.mark.parametrize("name", in_full(DECIDED, [*DECIDED][::3]))
@pytest.mark.parametrize("orders", [(SMALL_FIRST, SMALL_LAST), (SMALL_LAST, SMALL_FIRST)], ids=["more", "less"])
@pytest.mark.slow(but=4)
def test_what_a_sum_decided_goes_though_the_files_are_rewritten(
    session: SparkSession, name: str, orders: tuple[Sequence[float], Sequence[float]]
) -> None:
    sql = DECIDED[name]
    others = [(0.6, 3), (0.6000000000000001, 3), (0.6, 4), (0.6000000000000001, 5)]
    kept = Kept(session, sql, t=grouped(orders[0]), u=others)
    kept.rows["t"] = grouped(orders[1])
    assert kept.all_rows() == kept.held
    kept.refresh(t=[])
    assert kept.held == kept.all_rows()


MEASURES = (
    *(f"{name}(d)" for name in ("sum", "avg", "stddev", "stddev_pop", "variance", "var_pop", "skewness", "kurtosis")),
    *(f"{name}(d, CASE WHEN d > 0.15D AND d <> 7 THEN d * d - d END)" for name in ("corr", "covar_pop", "covar_samp")),
    *(
        f"regr_{name}(d * d - d, CASE WHEN d <> 7 THEN d END)"
        for name in ("slope", "intercept", "r2", "sxx", "syy", "sxy", "avgx", "avgy")
    ),
    *("sum(CAST(d AS FLOAT))", "avg(CAST(d AS FLOAT))", "sum(d) FILTER (WHERE d > 0.15D)", "try_sum(d)", "try_avg(d)"),
    *("avg(CAST(g AS INT))", "avg(g)", "avg(DISTINCT g)", "sum(DISTINCT d)"),
)
GROUPS: dict[int, Sequence[float | None]] = {
    1: (0.1, 0.2, 0.3, 0.7, 1.9, 2.8),
    2: (None, None),
    3: (0.1,),
    4: (7.0, 7.0, None, 7.0),
    5: (float("nan"), 1.0, 2.0),
    6: (float("inf"), 1.0),
    7: (float("inf"), float("-inf"), 3.0),
    8: (1e-310, 2e-310, 5e-324),
    9: (-0.0, -0.0),
    11: (-5.5, 12.25, 3.125, -0.375, 99.0, 1e3, 1e-3),
    12: (float("-inf"),),
}
LARGE = [(10, 1.7e308), (10, 1.7e308)]
"""Their squares are beyond all doubles: moments of them Spark has as 0 in windows, and as NaN in groups."""


def deciding(measure: str, by: str = "GROUP BY g") -> str:
    """All of them, in an order."""
    return f"SELECT * FROM (SELECT g, {measure} AS v FROM t {by}) ORDER BY v LIMIT 1000"


@pytest.mark.parametrize("measure", in_full(MEASURES, [*MEASURES[:3], *MEASURES[6:9], *MEASURES[11:13]]))
def test_exact_functions_give_what_spark_gives(session: SparkSession, measure: str) -> None:
    rows = [row for group, values in GROUPS.items() for row in grouped(values, group)]
    rows += LARGE if measure.startswith(("sum(d)", "avg(d)")) else []
    known = "DISTINCT" not in measure and "FILTER" not in measure  # of windows, to Spark
    over = deciding(f"{measure} OVER (PARTITION BY g)", "")
    for sql in (deciding(measure), *[over] * known):
        kept = Kept(session, sql, t=rows)
        kept._frame("t", rows).createOrReplaceTempView("t")
        assert alike(bag_of(session.sql(sql).collect()), kept.held)


def test_exact_sums_are_rounded_once(session: SparkSession) -> None:
    """Against Python's own exact sums."""
    draw = random.Random(7)
    far = (1e100, -1e100, 1.0, 1e-100)
    groups = {
        number: [draw.choice((draw.uniform(-1, 1), *far, 10.0 ** draw.randint(-300, 300))) for _ in range(1 + number)]
        for number in range(60)
    }
    groups[60] = [1.7e308, 1.7e308, -1.7e308]
    groups[61] = [1.0, 2.0**-53, 2.0**-106]
    groups[62] = [1.0, 2.0**-53]
    rows = [row for group, values in groups.items() for row in grouped(values, group)]
    kept = Kept(session, deciding("sum(d)"), t=draw.sample(rows, len(rows)))
    with closing(kept.plans()) as plans:
        found: dict[int, float] = dict(map(tuple, plans.result(kept.analyzed.root, TableRows.NEW).collect()))
    assert found == {group: float(sum(map(Fraction, values))) for group, values in groups.items()}


class RowsLake(Lake):
    """Tables with these rows, by their names."""

    def __init__(self, root: Path, **rows: Sequence[Row]) -> None:
        self.root = root
        self.uris = {name: str(root / name) for name in rows}
        for name, uri in self.uris.items():
            table = pa.table([*zip(*rows[name], strict=True)], schema=SCHEMAS[name])
            write_deltalake(uri, table, configuration={"delta.enableChangeDataFeed": "true"})


class TenthsLake(RowsLake):
    """`t` has three rows in one file, which add up to 0.6; and to more, once somebody has sorted it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, t=grouped(SMALL_LAST), u=[(0.6, 3), (0.5, 4)])

    def sort(self) -> None:
        before = DeltaTable(self.uris["t"]).file_uris()
        DeltaTable(self.uris["t"]).optimize.z_order(["d"])
        assert DeltaTable(self.uris["t"]).file_uris() != before


@pytest.mark.parametrize("name", in_full(DECIDED, ["having", "correlated"]))
@pytest.mark.slow(but=1)
def test_a_view_follows_tables_whose_files_are_rewritten(
    tmp_path: Path, spark_runtime: SparkRuntime, name: str
) -> None:
    lake = TenthsLake(tmp_path)
    view = ViewBench(lake, spark_runtime, DECIDED[name], refresh="incremental", by_spark=True)
    view.refresh()
    lake.sort()
    view.restart()
    assert view.verify().equal
    assert view.refresh().strategy == "unchanged"
    DeltaTable(lake.uris["t"]).delete()
    assert view.refresh().strategy == "incremental"
    view.assert_equal()


RANKED = """
WITH s AS (
  SELECT t.g, sum(t.d * u.x) AS total, avg(t.d) AS mean, stddev(t.d) AS spread, count(DISTINCT u.x) AS n
  FROM t JOIN u ON t.g = u.h
  WHERE NOT EXISTS (SELECT 1 FROM x WHERE x.g = t.g)
  GROUP BY t.g HAVING sum(t.d) > 0.05D
), m AS (SELECT avg(total) AS mean_of_all, stddev(total) AS spread_of_all, sum(spread) AS spreads FROM s)
SELECT s.*, m.*, rank() OVER (ORDER BY s.total DESC) AS place FROM s CROSS JOIN m"""
SHOWN = {
    "ranks_beside_totals_of_all_groups": RANKED,
    "totals_of_all_groups": RANKED.replace(", rank() OVER (ORDER BY s.total DESC) AS place", ""),
    "ranks_within_a_part": RANKED.replace("OVER (", "OVER (PARTITION BY n "),
    "groups_without_their_key": "SELECT sum(t.d * u.x) AS s, stddev(t.d) AS v FROM t JOIN u ON t.g = u.h GROUP BY t.g",
    "groups_beside_rows": "SELECT u.x, q.s FROM u JOIN (SELECT g, avg(d) AS s FROM t GROUP BY g) q ON q.g = u.h",
    "sums_of_partitions": "SELECT t.d, sum(d * x) OVER (PARTITION BY g) AS s FROM t JOIN u ON t.g = u.h",
    "the_first_of_joined_groups": "SELECT u.x, q.s FROM u JOIN (SELECT g, sum(d) AS s FROM t GROUP BY g) q "
    "ON q.g <> u.h ORDER BY u.x, q.g LIMIT 3",
}
"""Queries whose sums are only shown, and whose rows no key finds."""
DRAWN = random.Random(3)
VALUES = [(g, DRAWN.choice((0.1, 0.2, 0.3, 0.7, 1.1, 1e-3))) for g in range(6) for _ in range(10)]
FACTORS = [(each / 10, g) for g in range(6) for each in range(1, 5)]
MORE_FACTORS = [(0.7, 0), *FACTORS[1:]]


def exactly(rows: Sequence[Row]) -> Counter[Any]:
    return bag_of(rows, exactly=True)


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.slow(but=2)
def test_rows_that_no_key_finds_are_computed_to_the_last_digit(session: SparkSession, name: str) -> None:
    kept = Kept(session, SHOWN[name], t=VALUES, u=FACTORS, x=[(5, 0.0)])
    found = kept.analyzed.stored or kept.analyzed.root
    with closing(kept.plans()) as plans:
        there = exactly(plans.result(found, TableRows.NEW).collect())
    kept.rows["t"] = DRAWN.sample(VALUES, len(VALUES))
    with closing(kept.plans(u=MORE_FACTORS, x=[(4, 0.0)])) as plans:
        changed = plans.changes(found)
        assert changed is not None
        moved = exactly(changed.to_frame().collect())
        now = exactly(plans.result(found, TableRows.NEW).collect())
    going = Counter({row[:-1]: -row[-1] for row in moved if row[-1] < 0})
    coming = Counter({row[:-1]: row[-1] for row in moved if row[-1] > 0})
    assert going
    assert going <= there
    assert there - going + coming == now


def test_a_view_follows_a_view_that_is_written_again(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    """Each of its rows has averages of all groups, in whose last digits two orders of the same rows differ."""
    lake, below = RowsLake(tmp_path, u=FACTORS, x=[(5, 0.0)]), RowsLake(tmp_path / "below", t=VALUES)
    source = ViewBench(below, spark_runtime, "SELECT g, d FROM t WHERE g < 90", refresh="incremental")
    source.refresh()
    lake.uris["t"] = source.target
    view = ViewBench(lake, spark_runtime, RANKED, ["t", "u", "x"], refresh="incremental", by_spark=True)
    view.refresh()
    again = [*DRAWN.sample(VALUES, len(VALUES)), (1, 0.7)]
    write_deltalake(below.uris["t"], pa.table([*zip(*again, strict=True)], schema=SCHEMAS["t"]), mode="overwrite")
    assert source.refresh(full="it is written again").strategy == "full"
    DeltaTable(lake.uris["u"]).update(updates={"x": "x + 0.1"}, predicate="h = 0")
    done = view.refresh()
    assert (done.strategy, done.warning) == ("incremental", "")
    assert view.verify().equal


APPROXIMATE = {
    "grouped_by": "SELECT b, count(*) AS n FROM (SELECT a, percentile_approx(d, 0.5) AS b FROM t GROUP BY a) "
    "GROUP BY b",
    "shown_without_a_key": "SELECT percentile_approx(d, 0.5) AS m FROM t GROUP BY a",
}


@pytest.mark.parametrize("sql", APPROXIMATE.values(), ids=[*APPROXIMATE])
def test_what_a_function_decides_that_cannot_be_exact_is_recomputed(
    new_view: Callable[..., ViewBench], spark_runtime: SparkRuntime, sql: str
) -> None:
    view = new_view(sql, seed=1, refresh="incremental", by_spark=True)
    view.refresh()
    DeltaTable(view.lake.uris["t"]).delete()
    done = view.refresh()
    assert (done.strategy, "percentile_approx" in done.reason) == ("full", True)
    root, *others = view.kind.explain(view.spec, view.catalog).operators
    assert "decided by percentile_approx" in root.reason
    assert "percentile" in root.remedy
    assert {each.upkeep for each in (root, *others)} == {OperatorUpkeep.WHOLE}
    with pytest.raises(InvalidRequest, match="percentile_approx"):
        ViewBench(view.lake, spark_runtime, sql, refresh="strict")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, percentile_approx(d, 0.5) AS m FROM t GROUP BY a",
        "SELECT a, percentile_approx(d, 0.5) AS m FROM t GROUP BY a ORDER BY m LIMIT 3",
    ],
)
def test_what_is_only_shown_or_kept_by_group_follows_changes(new_view: Callable[..., ViewBench], sql: str) -> None:
    view = new_view(sql)
    assert not any("decided by" in each.reason for each in view.kind.explain(view.spec, view.catalog).operators)
