"""What is recomputed for the keys of changed rows is that which may change, whatever the keys are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from iscp.model.query_plan import OperatorUpkeep, upkeep_of
from iscp.spark.session import SparkRuntime
from iscp.views.analysis.query_analysis import analyze_query

from .conftest import ViewBench
from .test_table_lookups import ROWS, Refreshed, Row

pytestmark = pytest.mark.spark

TABLES = ("f", "d", "e", "other")
VALUE = "(SELECT min(y) FROM other)"
SHIFTED = f"f.k + {VALUE} = d.g"
BY_VALUE = (
    f"SELECT f.x, d.name FROM f FULL JOIN d ON {SHIFTED}",
    f"SELECT f.x, d.name FROM f LEFT JOIN d ON {SHIFTED}",
    f"SELECT d.name FROM d LEFT ANTI JOIN f ON {SHIFTED}",
    f"SELECT d.name FROM d LEFT SEMI JOIN f ON {SHIFTED} AND f.x > 1",
    f"SELECT d.name FROM d WHERE EXISTS (SELECT 1 FROM f WHERE {SHIFTED})",
    f"SELECT f.x, d.name FROM f JOIN d ON {SHIFTED}",
    f"SELECT d.name, (SELECT count(*) FROM f WHERE {SHIFTED}) AS n FROM d",
)


def drawn(draw: random.Random, name: str, number: int) -> list[Row]:
    """Few keys, so that rows meet."""
    widths = {name: len(rows[0]) for name, rows in ROWS.items()}
    texts = {"d": 2, "e": 1}

    def row() -> Row:
        kinds = ["pqr" if texts.get(name) == place else [None, *range(5)] for place in range(widths[name])]
        return tuple(draw.choice(each) for each in kinds)

    return [row() for _ in range(number)]


def follow_random_changes(refreshed: Refreshed, changed: Sequence[str], rounds: int, seed: int) -> None:
    draw = random.Random(seed)
    refreshed.rows = {name: drawn(draw, name, 6) for name in TABLES}
    for _ in range(rounds):
        later = {name: [*draw.sample(refreshed.rows[name], 4), *drawn(draw, name, 2)] for name in changed}
        refreshed.follow(whole=TABLES, **later)


@pytest.mark.parametrize("sql", BY_VALUE)
@pytest.mark.slow(but=2)
def test_keys_with_the_value_of_a_subquery_are_those_that_it_has(spark_runtime: SparkRuntime, sql: str) -> None:
    session = spark_runtime.new_session()
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # Spark broadcasts keys before it has the value
    refreshed = Refreshed(session, sql)
    follow_random_changes(refreshed, ["f", "d"], 2, seed=1)
    follow_random_changes(refreshed, ["f", "other"], 1, seed=2)


@pytest.mark.parametrize(
    "sql",
    [
        "select distinct t.a from t left join u on t.a = u.a",
        "with unused as (select * from u) select a, count(*) c from t group by a",
        "select t.a, max(n) m from t left join u on t.a = u.a group by t.a union all select y, null from u where false",
    ],
)
@pytest.mark.slow(but=1)
def test_a_table_that_changes_no_row_may_be_in_the_query(new_view: Callable[..., ViewBench], sql: str) -> None:
    view = new_view(sql, seed=3, tables=("t", "u"), refresh="incremental", by_spark=True)
    view.refresh()
    assert "full" not in view.follow(3)
    assert view.verify().equal


def test_groups_by_maps_are_recomputed(
    new_view: Callable[..., ViewBench],
) -> None:
    """Spark groups by maps, and knows no distinct ones."""
    view = new_view(
        "select map('k', a) m, count(*) c from t group by map('k', a)", seed=5, refresh="incremental", by_spark=True
    )
    view.refresh()
    assert view.follow(3) <= {"full", "unchanged"}


SIGNED, CASED = "double(concat(if(x = 1, '', '-'), string(g - 1), '.0'))", "if(x = 1, 'A', 'a') COLLATE UTF8_LCASE"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (f"array({SIGNED})", "string(z[0])"),
        (f"struct({SIGNED} AS d)", "string(z.d)"),
        (f"array({CASED})", "z[0] COLLATE UTF8_BINARY"),
        (f"array(struct({CASED} AS d))", "z[0].d COLLATE UTF8_BINARY"),
        (SIGNED, "string(z)"),
        (CASED, "z COLLATE UTF8_BINARY"),
    ],
)
@pytest.mark.slow(but=2)
def test_equal_values_that_are_shown_differently_are_netted_apart(
    spark_runtime: SparkRuntime, made: str, shown: str
) -> None:
    largest = f"SELECT k, max({made}) OVER (PARTITION BY k) AS z FROM f"
    refreshed = Refreshed(
        spark_runtime.new_session(), f"SELECT {shown} AS w, count(*) AS n FROM ({largest}) GROUP BY 1"
    )
    refreshed.rows["f"] = [(1, 1, 1), (2, 1, 2)]
    for later in ([(1, 1, 2), (2, 1, 2)], [(1, 1, 2), (2, 1, 1)], [(2, 1, 1), (3, 1, 1)]):
        refreshed.follow(whole=TABLES, f=later)


LARGEST = "case when a is not null then 99999999999999999999999999999999999999 end"


@pytest.mark.parametrize(
    "sql",
    [
        f"select b, try_sum({LARGEST}) s from t group by b order by b limit 5",
        f"select b, try_sum({LARGEST}) s, try_sum(a * 3611686018427387904) q from t where a < 3 group by b",
        "select try_sum(a * 4611686018427387904) s, try_avg(a) m from t where a < 2",
    ],
)
def test_sums_that_may_be_too_large_are_no_sums_that_are_kept(new_view: Callable[..., ViewBench], sql: str) -> None:
    view = new_view(sql, seed=7, refresh="incremental", by_spark=True)
    view.refresh()
    assert "full" not in view.follow(3)


SESSION = "session_window(timestamp_seconds(x), '2 seconds')"
SESSIONS = (
    f"SELECT {SESSION} AS w, count(*) AS n FROM f GROUP BY {SESSION}",
    f"SELECT k, {SESSION}.start AS w, count(*) AS n, sum(g) AS s FROM f GROUP BY k, {SESSION}",
    f"SELECT n, count(*) AS c FROM (SELECT g, count(*) AS n FROM f GROUP BY g, {SESSION}) GROUP BY n",
    f"SELECT s.n, d.name FROM (SELECT g AS h, max(k) AS n FROM f GROUP BY {SESSION}, g) s JOIN d ON s.h = d.g",
    f"SELECT g, n, rank() OVER (PARTITION BY g ORDER BY n) AS r FROM (SELECT g, max(k) n FROM f GROUP BY {SESSION}, g)",
)


@pytest.mark.parametrize("sql", SESSIONS)
@pytest.mark.slow(but=1)
def test_sessions_that_changed_rows_join_or_part_are_recomputed(spark_runtime: SparkRuntime, sql: str) -> None:
    refreshed = Refreshed(spark_runtime.new_session(), sql)
    for seed in range(3):
        follow_random_changes(refreshed, ["f"], 2, seed)


def test_sessions_are_recomputed_by_what_else_is_grouped_by(spark_runtime: SparkRuntime) -> None:
    session = spark_runtime.new_session()
    schemas = {"f": session.createDataFrame([], "k long, g long, x long").schema.json()}
    found = [analyze_query(session, sql, schemas) for sql in SESSIONS[:2]]
    assert [upkeep_of(each.root.operator) for each in found] == [OperatorUpkeep.WHOLE, OperatorUpkeep.TOUCHED]
    assert found[1].keys is not None
    assert not found[1].keys.unique
