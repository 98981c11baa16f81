"""Among rows that tie a view chooses the same whenever it computes them: what it took in is what it takes away."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import pytest
from pyspark.sql import DataFrame, SparkSession

from iscp.algebra.algebra import TableRows
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import frame_of_arrow
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.changes.signed_rows import Instants
from iscp.views.changes.spark_plans import SparkPlans
from tests.selection import in_full

from .test_table_lookups import LookedUpTable, Refreshed, Row
from .test_touched_keys import TABLES, follow_random_changes

pytestmark = pytest.mark.spark

NUMBERED = "SELECT k, g, x, row_number() OVER (PARTITION BY k ORDER BY x) AS r FROM f"
TIED = (
    f"SELECT g, count(*) AS n FROM ({NUMBERED}) WHERE r = 1 GROUP BY g",
    f"SELECT g FROM ({NUMBERED}) WHERE r <= 2",
    "SELECT g, count(*) AS n FROM (SELECT k, first_value(g) OVER (PARTITION BY k ORDER BY x) AS g FROM f) GROUP BY g",
    "SELECT g, count(*) AS n FROM (SELECT k, last_value(g) OVER (PARTITION BY k) AS g FROM f) GROUP BY g",
    "SELECT g, count(*) AS n FROM (SELECT lag(g) OVER (PARTITION BY k ORDER BY x) AS g FROM f) GROUP BY g",
    "SELECT s, count(*) AS n FROM (SELECT sum(g) OVER (PARTITION BY k ORDER BY x ROWS 1 PRECEDING) AS s, "
    "rank() OVER (PARTITION BY k ORDER BY x) AS r FROM f) GROUP BY s, r",
    "SELECT z, count(*) AS n FROM (SELECT k, first(g) AS z FROM f GROUP BY k) GROUP BY z",
    "SELECT z, y, count(*) AS n FROM (SELECT any_value(g) AS z, last(x, true) AS y FROM f GROUP BY k) GROUP BY z, y",
    "SELECT z, count(*) AS n FROM (SELECT k, max_by(g, x) AS z FROM f GROUP BY k) GROUP BY z",
    "SELECT z, y, count(*) AS n FROM (SELECT min_by(g, x) AS z, mode(g) AS y FROM f GROUP BY k) GROUP BY z, y",
    "SELECT z, count(*) AS n FROM (SELECT k, string(collect_list(g)) AS z FROM f GROUP BY k) GROUP BY z",
    "SELECT z, y, count(*) n FROM (SELECT string(collect_set(g)) z, listagg(name) y FROM d GROUP BY h) GROUP BY ALL",
    "SELECT z, count(*) AS n FROM (SELECT string(collect_list(DISTINCT x)) AS z FROM f GROUP BY k) GROUP BY z",
    "SELECT z, count(*) AS n FROM (SELECT first(g) AS z FROM (SELECT * FROM f ORDER BY x DESC) GROUP BY k) GROUP BY z",
    "SELECT g, count(*) AS n FROM (SELECT last_value(g) OVER (PARTITION BY k ORDER BY x) AS g FROM f) GROUP BY g",
    "SELECT g, count(*) AS n FROM (SELECT max_by(g, x) OVER (PARTITION BY k ORDER BY x DESC) AS g FROM f) GROUP BY g",
    "SELECT g, count(*) n FROM (SELECT last(g, true) OVER (PARTITION BY k ORDER BY x) AS g FROM f) GROUP BY g",
    *(
        f"SELECT string(z), count(*) n FROM (SELECT {value} OVER (PARTITION BY k ORDER BY x) z FROM f) GROUP BY z"
        for value in ("collect_list(g)", "collect_set(g)", "nth_value(g, 2)", "nth_value(g, 2) IGNORE NULLS", "mode(g)")
    ),
    *(
        f"SELECT string(z), count(*) n FROM (SELECT {value} OVER (PARTITION BY k ORDER BY x DESC NULLS FIRST "
        "RANGE BETWEEN 3 PRECEDING AND 2 FOLLOWING) z FROM f) GROUP BY z"
        for value in ("collect_list(g)", "first(g)", "last(g, true)", "nth_value(g, 2)", "min_by(g, x)")
    ),
    "SELECT z, y, count(*) n FROM (SELECT listagg(name, ',') OVER (PARTITION BY h ORDER BY h) z, "
    "hex(listagg(binary(name), X'2C') OVER (PARTITION BY h ORDER BY h)) y FROM d) GROUP BY ALL",
    "SELECT z, y, count(*) n FROM (SELECT last(g) OVER (PARTITION BY k ORDER BY x, x + 1 DESC) z, "
    "first(g) OVER (PARTITION BY k ORDER BY x DESC NULLS FIRST) y FROM f) GROUP BY ALL",
    "SELECT z, count(*) n FROM (SELECT last(g) z FROM (SELECT * FROM f ORDER BY x DESC, k % 2) GROUP BY k) GROUP BY z",
    "SELECT z, count(*) n FROM (SELECT collate(first(c), 'UTF8_BINARY') z FROM (SELECT k, collate(if(g > 1, 'a', 'A'), "
    "'UTF8_LCASE') c FROM f UNION ALL SELECT 7, collate(name, 'UTF8_LCASE') FROM d) GROUP BY k) GROUP BY z",
    "SELECT z, y, count(*) n FROM (SELECT string(first(c)) z, string(max_by(array(c), c)) y FROM (SELECT k % 2 k, "
    "(1.5D - g) * 0.0D c FROM f UNION ALL SELECT 7, double(h) FROM d) GROUP BY k) GROUP BY ALL",
    "SELECT z, y, a, count(*) n FROM (SELECT max_by(DISTINCT g, x) z, count(DISTINCT x) y, first(g) a FROM f "
    "GROUP BY k) GROUP BY ALL",
    "SELECT z, y, count(*) n FROM (SELECT max_by(DISTINCT g, x) z, first(DISTINCT g) y FROM f GROUP BY k) GROUP BY ALL",
    "SELECT z, count(*) n FROM (SELECT listagg(DISTINCT name) z FROM d GROUP BY h) GROUP BY z",
    "SELECT count(*) AS n, sum(g) AS s FROM (SELECT g FROM f ORDER BY x LIMIT 3)",
    "SELECT d.name, l.g FROM (SELECT g, k FROM f LIMIT 4) l LEFT JOIN d ON l.g = d.g",
    "SELECT d.name, (SELECT f.k FROM f WHERE f.g = d.g ORDER BY x DESC LIMIT 1) AS k FROM d",
    "SELECT d.name, l.k FROM d, LATERAL (SELECT k FROM f WHERE f.g = d.g LIMIT 2) l",
)


class Shuffled(LookedUpTable):
    """Its rows come in another order each time that they are read."""

    draw = random.Random(0)

    def read(self, at: TableRows) -> DataFrame:
        rows = self.rows[at]
        return frame_of_arrow(self.session, self.arrow(self.draw.sample([*rows], len(rows))))


class RefreshedTies(Refreshed):
    """Against all rows of the query as views compute them: Spark's own answer may be another one each time."""

    def table(self, name: str, later: Sequence[Row], *, whole: bool = False) -> LookedUpTable:
        return Shuffled(self.session, name, {TableRows.OLD: self.rows[name], TableRows.NEW: later}, whole)

    def bag(self) -> Counter[Row]:
        tables = {name: self.table(name, rows, whole=True).change() for name, rows in self.rows.items()}
        with closing(SparkPlans(self.analyzed.catalyst, self.analyzed.algebra, tables, Instants())) as plans:
            rows = plans.result(self.analyzed.root, TableRows.NEW).collect()
        return Counter(map(tuple, rows))


@pytest.mark.parametrize("sql", in_full(TIED, [TIED[0], TIED[6], TIED[17], TIED[-3]]))
@pytest.mark.slow(but=1)
def test_rows_that_were_chosen_go_when_others_are(spark_runtime: SparkRuntime, sql: str) -> None:
    refreshed = RefreshedTies(spark_runtime.new_session(), sql)
    for seed in range(2):
        follow_random_changes(refreshed, ["f", "d"], 2, seed)


@pytest.fixture
def session(spark_runtime: SparkRuntime) -> SparkSession:
    return spark_runtime.new_session()


RANGED = (
    "string(collect_list(x) OVER w) AS a, string(collect_set(k) OVER w) AS b, nth_value(x, 2) OVER w AS c, "
    "nth_value(x, 2) IGNORE NULLS OVER w AS d, listagg(string(x), '-') OVER w AS e, "
    "hex(listagg(binary(string(x)), X'FF01') OVER w) AS f"
)
ORDERED = (
    "SELECT k, first(x) AS a, last(x) AS b FROM (SELECT * FROM f ORDER BY x) GROUP BY k",
    "SELECT k, string(collect_list(x)) AS a FROM (SELECT * FROM f ORDER BY x DESC) GROUP BY k",
    "SELECT k, x, first_value(x) OVER (PARTITION BY k ORDER BY x) AS a, rank() OVER (PARTITION BY k ORDER BY x) AS r, "
    "dense_rank() OVER (PARTITION BY k ORDER BY x) AS s, cume_dist() OVER (PARTITION BY k ORDER BY x) AS c, "
    "count(*) OVER (PARTITION BY k ORDER BY x) AS n, row_number() OVER (PARTITION BY k ORDER BY x) AS m FROM f",
    "SELECT k, max_by(k, x) AS a, first(k, true) AS b, mode(k) AS c, string(collect_list(k)) AS d FROM f GROUP BY k",
    "SELECT max_by(g, x) FILTER (WHERE x > 5) AS a, min_by(g, x) FILTER (WHERE g IS NOT NULL) AS b FROM f WHERE k = 2",
    "SELECT k, count(DISTINCT g) AS a, count(DISTINCT x) AS b, sum(x) AS c FROM f GROUP BY k",
    "SELECT x FROM f ORDER BY x DESC LIMIT 2 OFFSET 1",
    "SELECT k, x, count(NULL) OVER (PARTITION BY k) AS a, row_number() OVER (PARTITION BY k ORDER BY x) AS b FROM f",
    "SELECT k, x FROM f WHERE EXISTS (SELECT 1 FROM other WHERE other.k = f.k LIMIT 1)",
    "SELECT k, x FROM f WHERE NOT EXISTS (SELECT 1 FROM other WHERE other.k = f.k AND y > 2 LIMIT 3)",
    "SELECT k, x, last_value(x) OVER (PARTITION BY k ORDER BY x) AS a, "
    "max_by(k, x) OVER (PARTITION BY k ORDER BY x DESC) AS b, first(x, true) OVER (PARTITION BY k ORDER BY x DESC) c, "
    "last_value(x) OVER (PARTITION BY k ORDER BY x RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS d FROM f",
    f"SELECT k, x, {RANGED} FROM f WINDOW w AS (PARTITION BY k ORDER BY x DESC NULLS FIRST)",
    f"SELECT k, x, {RANGED}, first(x) OVER w AS g, last(x, true) OVER w AS h, mode(x) OVER w AS i, sum(x) OVER w AS j, "
    "min_by(x, x) OVER w AS l, row_number() OVER (PARTITION BY k ORDER BY x DESC) AS m "
    "FROM f WINDOW w AS (PARTITION BY k ORDER BY x DESC RANGE BETWEEN 3 PRECEDING AND 1 PRECEDING)",
    "SELECT k, last(x) AS a FROM (SELECT k, x FROM f WHERE x > 0 ORDER BY k, x DESC) WHERE k > 0 GROUP BY k",
)


@pytest.mark.parametrize("sql", ORDERED)
def test_where_nothing_ties_it_is_what_spark_gives(session: SparkSession, sql: str) -> None:
    refreshed = RefreshedTies(session, sql)
    refreshed.rows["f"] = [*refreshed.rows["f"], (None, None, None), (2, 20, 7), (1, 30, 4)]
    assert refreshed.bag() == Refreshed.bag(refreshed)


def test_functions_of_one_group_choose_the_same_row(session: SparkSession) -> None:
    refreshed = RefreshedTies(session, "SELECT k, first(g) AS g, first(x) AS x, max_by(g, k) AS h FROM f GROUP BY k")
    refreshed.rows["f"] = [(1, 10, 9), (1, 20, 1), (1, 20, 5), (2, None, 3), (2, 5, None)]
    assert {*refreshed.bag()} == {(1, 10, 9, 20), (2, None, 3, 5)}
    lists = RefreshedTies(session, "SELECT string(collect_list(g)) AS g, string(collect_list(x)) AS x FROM f")
    lists.rows["f"] = [(1, 30, 1), (2, 10, 3), (3, 20, 2)]
    assert {*lists.bag()} == {("[10, 20, 30]", "[3, 2, 1]")}


def test_the_order_of_a_correlated_limit_is_that_of_the_query(session: SparkSession) -> None:
    """Where the column is not selected Spark loses it on the way."""
    sql = "SELECT d.name, (SELECT f.k FROM f WHERE f.g = d.g ORDER BY x DESC LIMIT 1) AS k FROM d"
    refreshed = RefreshedTies(session, sql)
    refreshed.rows["f"] = [(4, 10, 1), (3, 10, 8), (9, 10, 2), (1, 20, 1)]
    assert {("a", 3), ("b", 1), ("c", None)} <= {*refreshed.bag()}


@pytest.mark.parametrize("limit", ["LIMIT 1", "LIMIT 2 OFFSET 1", "OFFSET 1"])
def test_a_limit_follows_a_column_that_it_does_not_select(session: SparkSession, limit: str) -> None:
    """What is selected of all rows is the same, and of those that are taken it is not."""
    refreshed = Refreshed(session, f"SELECT d.name FROM d JOIN (SELECT g FROM f ORDER BY x {limit}) l ON l.g = d.g")
    refreshed.rows["f"] = [(1, 10, 1), (1, 20, 2)]
    refreshed.follow(whole=TABLES, f=[(1, 10, 3), (1, 20, 2)])


def test_a_plan_in_which_nothing_ties_stays_as_it_is(session: SparkSession) -> None:
    schemas = {"f": session.createDataFrame([], "k long, g long, x long").schema.json()}
    root = analyze_query(session, "SELECT k, x, rank() OVER (PARTITION BY k ORDER BY x) AS r FROM f", schemas).root
    assert str(root.plan.orderSpec().toString()).count("ASC") == 1


def test_ranges_of_times_go_by_utc_in_whichever_zone_the_session_is(session: SparkSession) -> None:
    """A day is 24 hours long, also that on which clocks change in Berlin."""
    day = "RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW"
    counted = f"count(*) OVER (PARTITION BY k ORDER BY timestamp_seconds(x) {day})"
    refreshed = RefreshedTies(session, f"SELECT x, {counted} AS n, rank() OVER (PARTITION BY k ORDER BY x) AS r FROM f")
    refreshed.rows["f"] = [(1, 1, 1_711_799_100), (1, 1, 1_711_884_600)]
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert refreshed.bag() == Counter([(1_711_799_100, 1, 1), (1_711_884_600, 2, 2)])
