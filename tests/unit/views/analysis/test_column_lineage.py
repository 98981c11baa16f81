"""Which columns a query's result is made of, by its text alone, and that no query costs more than it is worth.

What is known of a job's tables is read when it is needed, remembered for a while, and never a fault.

QUALIFY becomes a filter above its SELECT, and all other text stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from iscp.model.job.job_row import JobRow
from iscp.model.run_events import InputColumn
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import JobKey
from iscp.views.analysis.column_lineage import (
    MISSING_S,
    ORIGINS_MAX,
    QUALIFIES_MAX,
    REMEMBERED_MAX,
    REMEMBERED_S,
    SQL_CHARS_MAX,
    JobLineage,
    QueryLineage,
    find_lineage,
    without_qualify,
)
from tests.fakes.bench import URI, job
from tests.fakes.clock import FakeClock

TABLES = {
    "Orders": {"Id": "long", "cust": "long", "amount": "double", "day": "date"},
    "customers": {"id": "long", "Name": "string"},
}
LIMIT_S = 20.0


def columns(sql: str) -> dict[str, dict[str, str]]:
    found = find_lineage(sql, TABLES).columns
    return {name: {f"{table}.{column}": how for (table, column), how in made.items()} for name, made in found.items()}


def rows(sql: str) -> dict[str, str]:
    return {f"{table}.{column}": how for (table, column), how in find_lineage(sql, TABLES).rows.items()}


def test_columns_are_followed_through_joins_and_groups() -> None:
    sql = (
        "SELECT c.Name, sum(o.amount) AS total, o.day + 1 AS d FROM orders o JOIN customers c ON o.cust = c.id "
        "GROUP BY 1, 3"
    )
    assert columns(sql) == {
        "name": {"customers.Name": "IDENTITY"},
        "total": {"Orders.amount": "AGGREGATION"},
        "d": {"Orders.day": "TRANSFORMATION"},
    }


def test_tables_of_one_last_part_differ_by_their_other_parts() -> None:
    tables = {"raw.orders": {"id": "long"}, "Lake.Sales.orders": {"id": "long", "total": "long"}}
    sql = (
        "WITH orders AS (SELECT total, id FROM `lake`.sales.orders) "
        "SELECT o.id, sales.total AS total FROM raw.orders o JOIN orders AS sales ON sales.id = o.id"
    )
    found = find_lineage(sql, tables)
    assert found.columns == {
        "id": {("raw.orders", "id"): "IDENTITY"},
        "total": {("Lake.Sales.orders", "total"): "IDENTITY"},
    }


def test_rows_follow_what_they_are_filtered_joined_and_grouped_by() -> None:
    sql = "SELECT count(*) AS n FROM orders o JOIN customers c ON o.cust = c.id WHERE amount > 0 GROUP BY day"
    assert rows(sql) == {
        "Orders.amount": "FILTER",
        "Orders.day": "GROUP_BY",
        "Orders.cust": "JOIN",
        "customers.id": "JOIN",
    }


def test_rows_follow_names_of_the_result_and_positions_too() -> None:
    assert rows("SELECT day + 1 AS d, cust FROM orders GROUP BY d, 2") == {
        "Orders.day": "GROUP_BY",
        "Orders.cust": "GROUP_BY",
    }
    assert rows("SELECT name FROM orders JOIN customers USING (id)") == {"Orders.Id": "JOIN"}


def test_the_way_of_a_column_is_the_furthest_on_its_whole_path() -> None:
    sql = "SELECT t AS total, n FROM (SELECT sum(amount) AS t, upper(name) AS n FROM orders, customers GROUP BY name)"
    assert columns(sql) == {"total": {"Orders.amount": "AGGREGATION"}, "n": {"customers.Name": "TRANSFORMATION"}}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM customers", {"id": {"customers.id": "IDENTITY"}, "name": {"customers.Name": "IDENTITY"}}),
        (
            "SELECT id FROM orders UNION ALL SELECT id FROM customers EXCEPT SELECT cust FROM orders",
            {"id": {"Orders.Id": "IDENTITY", "customers.id": "IDENTITY", "Orders.cust": "IDENTITY"}},
        ),
        (
            "WITH a AS (SELECT * FROM orders), b AS (SELECT x.id, y.amount FROM a x JOIN a y ON x.id = y.id) "
            "SELECT * FROM b",
            {"id": {"Orders.Id": "IDENTITY"}, "amount": {"Orders.amount": "IDENTITY"}},
        ),
        ("SELECT 1 AS one FROM orders", {"one": {}}),
        ("SELECT * EXCEPT (id) FROM customers", {"name": {"customers.Name": "IDENTITY"}}),
        (
            "SELECT cust.city AS city, o.cust.zip FROM orders o",
            {
                "city": {"Orders.cust": "TRANSFORMATION"},
                "zip": {"Orders.cust": "TRANSFORMATION"},
            },
        ),
        (
            "SELECT id, n FROM (SELECT id, count(*) OVER (PARTITION BY name) AS n FROM customers) WHERE id IN "
            "(SELECT cust FROM orders)",
            {"id": {"customers.id": "IDENTITY"}, "n": {"customers.Name": "AGGREGATION"}},
        ),
    ],
)
def test_stars_unions_and_subqueries(sql: str, expected: dict[str, dict[str, str]]) -> None:
    assert columns(sql) == expected


@pytest.mark.parametrize(
    "sql", ["", "SELECT nonsense(", "(" * 5_000, "SELECT " + "x" * SQL_CHARS_MAX, "DROP TABLE orders"]
)
def test_what_cannot_be_read_has_no_lineage(sql: str) -> None:
    assert find_lineage(sql, TABLES) in (QueryLineage(), QueryLineage({}, {}))


def test_a_column_of_a_table_that_nobody_knows_has_no_origin() -> None:
    assert columns("SELECT nowhere.x FROM nowhere") == {"x": {}}


def test_stars_are_not_written_out() -> None:
    """Each step has twice as many columns as the one before: 2 to the power of 40 in all."""
    steps = ["c0 AS (SELECT * FROM orders)"]
    steps += [f"c{n} AS (SELECT a.*, b.* FROM c{n - 1} a CROSS JOIN c{n - 1} b)" for n in range(1, 41)]
    began_s = time.monotonic()
    assert set(columns(f"WITH {', '.join(steps)} SELECT * FROM c40")) == {"id", "cust", "amount", "day"}
    assert time.monotonic() - began_s < LIMIT_S


def test_a_column_that_is_made_of_very_many_names_some_of_them() -> None:
    wide = {"t": {f"c{number}": "long" for number in range(3 * ORIGINS_MAX)}}
    sql = f"SELECT {'+'.join(wide['t'])} AS s FROM t"
    assert len(find_lineage(sql, wide).columns["s"]) == ORIGINS_MAX


def test_a_subquery_that_is_named_again_and_again_is_followed_once() -> None:
    """Following each name by itself would take 2 to the power of 40 steps."""
    steps = ["c0 AS (SELECT id FROM orders)"]
    steps += [f"c{n} AS (SELECT a.id FROM c{n - 1} a JOIN c{n - 1} b ON a.id = b.id)" for n in range(1, 41)]
    began_s = time.monotonic()
    assert columns(f"WITH {', '.join(steps)} SELECT * FROM c40") == {"id": {"Orders.Id": "IDENTITY"}}
    assert time.monotonic() - began_s < LIMIT_S


TARGET = "/targets/x"


class Tables:
    def __init__(self, columns: Mapping[str, Mapping[str, str]]) -> None:
        self.columns = dict(columns)
        self.reads: list[str] = []
        self.clock = FakeClock()
        self.lineage = JobLineage(self.read, self.clock)

    def read(self, uri: str) -> Mapping[str, str]:
        self.reads.append(uri)
        return self.columns.get(uri, {})


def view(sql: str, tables: Mapping[str, str]) -> JobRow:
    fields = ViewFields(sql, tables, TARGET)
    return JobRow(JobKey("a", "t-1", "v"), "id-v", fields.spec_json(), "t", fields.table)


def test_a_replica_takes_over_columns_of_the_same_name() -> None:
    tables = Tables({URI: {"id": "long", "v": "string"}, TARGET: {"id": "long", "own": "long"}})
    found = tables.lineage.known_tables(job("x"), TARGET)
    assert found.columns == tables.columns
    assert found.made_of == {"id": (InputColumn(URI, "id"),)}


def test_a_view_has_the_lineage_of_its_query_with_names_as_tables_have_them() -> None:
    tables = Tables({"/o": {"Id": "long", "x": "long"}, "/c": {"id": "long"}, TARGET: {"S": "long"}})
    row = view("SELECT sum(o.x) AS s FROM sales.o JOIN c ON o.id = c.id", {"sales.o": "/o", "c": "/c"})
    found = tables.lineage.known_tables(row, TARGET)
    assert found.made_of == {"S": (InputColumn("/o", "x", "DIRECT", "AGGREGATION"),)}
    assert set(found.rows_follow) == {
        InputColumn("/o", "Id", "INDIRECT", "JOIN"),
        InputColumn("/c", "id", "INDIRECT", "JOIN"),
    }


def test_tables_are_read_once_for_a_while_and_missing_ones_soon_again() -> None:
    tables = Tables({URI: {"id": "long"}})
    assert tables.lineage.known_tables(job("x"), TARGET).made_of == {}
    tables.columns[TARGET] = {"id": "long"}
    tables.lineage.known_tables(job("x"), TARGET)
    assert tables.reads == [URI, TARGET]
    tables.clock.advance(MISSING_S)
    assert tables.lineage.known_tables(job("x"), TARGET).made_of == {"id": (InputColumn(URI, "id"),)}
    assert tables.reads == [URI, TARGET, TARGET]
    tables.clock.advance(REMEMBERED_S)
    tables.lineage.known_tables(job("x"), TARGET)
    assert tables.reads[3:] == [URI, TARGET]


def test_what_is_remembered_is_bounded() -> None:
    tables = Tables({})
    for number in range(REMEMBERED_MAX + 10):
        tables.lineage.known_tables(job("x"), f"/targets/{number}")
    tables.reads.clear()
    tables.lineage.known_tables(job("x"), "/targets/0")
    assert tables.reads == ["/targets/0"]


def test_a_spec_and_a_query_that_cannot_be_read_are_no_faults() -> None:
    tables = Tables({"/o": {"x": "long"}, TARGET: {"x": "long"}})
    assert tables.lineage.known_tables(view("SELECT ((", {"a.o": "/o"}), TARGET).made_of == {}


def plain(sql: str) -> str:
    return " ".join(without_qualify(sql).split())


def above(inner: str) -> str:
    return f"SELECT * EXCEPT (_iscp_qualify) FROM ({inner} ) WHERE _iscp_qualify"


@pytest.mark.parametrize(
    "sql",
    [
        "select a from t",
        "select 'qualify' from t -- qualify\n",
        "select `qualify` from t where qualify.a = 1",
        "select qualify from t qualify where qualify > 1",
        "select a as qualify, b from t",
        "select a from t join qualify on qualify.a = t.a",
        "select 'a from t qualify b",
    ],
)
def test_a_query_without_it_stays_to_the_letter(sql: str) -> None:
    assert without_qualify(sql) == sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a from t qualify b", above("select a , (b ) AS _iscp_qualify from t")),
        (
            "select *, rank() over (order by a) r from t where a > 1 QUALIFY r = 1 order by a limit 3",
            above("select *, rank() over (order by a) r , (r = 1 ) AS _iscp_qualify from t where a > 1")
            + " order by a limit 3",
        ),
        (
            "select a is distinct from b x from t qualify row_number() over w = 1 window w as (order by a)",
            above(
                "select a is distinct from b x , (row_number() over w = 1 ) AS _iscp_qualify from t "
                "window w as (order by a)"
            ),
        ),
        (
            "with q as (select a from t qualify b = 1) select a from q union all select c from u qualify d",
            f"with q as ({above('select a , (b = 1 ) AS _iscp_qualify from t')}) select a from q union all "
            + above("select c , (d ) AS _iscp_qualify from u"),
        ),
        (
            "select a from t -- from here\nqualify b -- qualify\n order by 1",
            "SELECT * EXCEPT (_iscp_qualify) FROM (select a , (b ) AS _iscp_qualify from t -- from here ) "
            "WHERE _iscp_qualify -- qualify order by 1",
        ),
        (
            "select a from t qualify a in (select x from u qualify y)",
            above(f"select a , (a in ({above('select x , (y ) AS _iscp_qualify from u')}) ) AS _iscp_qualify from t"),
        ),
    ],
)
def test_it_becomes_a_filter_above_its_select(sql: str, expected: str) -> None:
    assert plain(sql) == expected


def test_only_so_many_are_read() -> None:
    """For each of them the whole query is read."""
    with pytest.raises(InvalidRequest, match=f"more than {QUALIFIES_MAX} QUALIFYs"):
        without_qualify("select a from t " + "qualify f(a) > 1 " * 4_000)


@pytest.mark.parametrize("sql", ["select a qualify f(a)", "qualify f(a)", "select (b qualify f(a)) from t"])
def test_one_that_belongs_to_no_select_is_refused(sql: str) -> None:
    if sql.startswith("qualify"):
        assert without_qualify(sql) == sql, "that is no query, and Spark says so"
        return
    with pytest.raises(InvalidRequest, match="belongs to no SELECT"):
        without_qualify(sql)
