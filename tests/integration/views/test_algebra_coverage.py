"""Queries that the algebra reads whole and DuckDB can compute: how many there are does not go down.

Of TPC's queries the plans of changes are judged too, by DuckDB alone, with changes in all tables of facts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.propagation.history import History
from benchmarks.propagation.medallion import MEDALLION, Kind
from benchmarks.tpcdi.bronze import BRONZE
from benchmarks.tpcdi.source_rows import SourceRows
from benchmarks.view import CASES
from iscp.algebra.algebra import CLOCK, Rel, Table, Values
from iscp.algebra.duck_text import translate
from iscp.spark.session import SparkRuntime
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.refresh.view_memory import read_query
from tests.fakes.planned_tpc import ChangedTpc, tables_of
from tests.fakes.tpc import QUERIES, Tpc
from tests.fakes.written_algebra import algebra_from_json, algebra_to_json

COVERED = {"tpch": 22, "tpcds": 96}
"""Queries of each suite that DuckDB can compute; there may be more, and never fewer."""


def schema_of(schema: pa.Schema) -> str:
    return str(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())


def algebra_of(session: SparkSession, sql: str, schemas: Mapping[str, str]) -> tuple[Rel, str]:
    """The query's algebra as it is stored and read again, and its columns."""
    query = analyze_query(session, sql, schemas)
    content = algebra_to_json(query.algebra.root)
    assert content is not None
    found = algebra_from_json(content)
    assert [each.name for each in found.columns] == query.columns.names
    assert [each.type for each in found.columns] == [each.dataType.jsonValue() for each in query.columns]
    return found, query.columns.json()


def gaps(queries: Iterable[tuple[object, Rel]]) -> dict[object, tuple[str, ...]]:
    """The reasons why queries are left to Spark."""
    found = {name: translate(root).gaps for name, root in queries}
    for name, reasons in found.items():
        for each in reasons:
            sys.stdout.write(f"{name}: {each}\n")
    return {name: reasons for name, reasons in found.items() if reasons}


def test_a_view_that_flattens_raw_records_needs_no_spark(spark_runtime: SparkRuntime) -> None:
    """Its tables have structs within structs, of which it reads the fields."""
    tables = SourceRows(trades=200, share=0.1, seed=1).first()
    schemas = {f"raw_{name}": schema_of(tables[name].schema) for name in ("customer_mgmt", "customer", "account")}
    query = analyze_query(spark_runtime.new_session(), BRONZE["crm_customer_mgmt"], schemas)
    assert read_query(query).root is not None


def test_views_of_the_benchmark_need_no_spark(spark_runtime: SparkRuntime) -> None:
    columns = pa.schema([(name, pa.int64()) for name in ("id", "g", "x", "c")])
    names = pa.schema([("g", pa.int64()), ("name", pa.string())])
    schemas = {"fact": schema_of(columns), "dim": schema_of(names)}
    session = spark_runtime.new_session()
    assert gaps((name, algebra_of(session, sql, schemas)[0]) for name, (sql, _) in CASES.items()) == {}


@pytest.mark.slow("each time: test_views_of_the_benchmark_need_no_spark")
def test_views_of_the_medallion_need_no_spark(spark_runtime: SparkRuntime) -> None:
    schemas = {name: schema_of(rows.schema) for name, rows in History.draw(5, 2_000, 1, 1).first().items()}
    session = spark_runtime.new_session()
    found = []
    for each in MEDALLION:
        if each.kind is Kind.VIEW:
            root, columns = algebra_of(session, each.sql, {name: schemas[name] for name in each.inputs})
            schemas[each.name] = columns
            found.append((each.name, root))
    assert gaps(found) == {}


def test_rows_of_constants_are_read_with_their_values(spark_runtime: SparkRuntime) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    rows = "VALUES (1, 'a', DATE '2024-02-29', 1.50), (2, NULL, DATE '1969-12-31', -0.01)"
    sql = f"SELECT t.s, v.* FROM t JOIN ({rows}) AS v(k, x, d, n) ON t.k = v.k"
    root, _ = algebra_of(spark_runtime.new_session(), sql, {"t": schema_of(schema)})
    (values,) = (each for each in root.walk() if isinstance(each, Values))
    assert [[each.info[0] for each in row] for row in values.rows] == [
        ["1", "a", "19782", "1.50"],
        ["2", None, "-1", "-0.01"],
    ]


def test_what_only_spark_has_is_opaque_by_name(spark_runtime: SparkRuntime) -> None:
    """Each expression and operator that the algebra lacks is named, and what stands around it is read."""
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("at", pa.timestamp("us"))])
    sql = """SELECT k, reverse(s) AS r, transform(split(s, ','), x -> upper(x)) AS l, at - to_timestamp(s) AS a
    FROM t WHERE k > 3 AND soundex(s) = 'x' AND at < localtimestamp()"""
    root, _ = algebra_of_any(spark_runtime.new_session(), sql, {"t": schema_of(schema)})
    found = translate(root).gaps
    for name in ("Reverse", "ArrayTransform", "SoundEx"):
        assert any(name in each for each in found), found
    assert [each.name for each in root.walk() if isinstance(each, Table)] == [CLOCK, "t"]


def test_what_only_spark_computes_of_arrays_is_opaque_by_name(spark_runtime: SparkRuntime) -> None:
    """Arrays of other elements, those of tables that cannot have nulls, and other forms of the functions."""
    by_sql = {
        "array_contains(array(d), 1.5D)": "CreateArray: no array of array<double>",
        "size(array_distinct(array(array(k))))": "CreateArray: no array of array<array<long>>",
        "size(array_distinct(array(s COLLATE UTF8_LCASE)))": "CreateArray: no array of array<other>",
        "size(never)": "Size: other has no elements",
        "element_at(map(k, s), 3L)": "ElementAt: other has no elements",
        "split_part(s, ',', 1)": "ElementAt: a value in place of missing elements",
        "array_join(l, ',', '-')": "ArrayJoin: ArrayJoin has 3 arguments",
        "l = array(s)": "EqualTo(array<string>, array<string>): not in the list",
    }
    kinds = {"k": T.LongType(), "d": T.DoubleType(), "s": T.StringType(), "l": T.ArrayType(T.StringType())}
    kinds["never"] = T.ArrayType(T.LongType(), containsNull=False)
    schema = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    session, other = spark_runtime.new_session(), {}
    for sql, reason in by_sql.items():
        root, _ = algebra_of_any(session, f"SELECT {sql} AS r FROM t", {"t": schema.json()})
        if reason not in translate(root).gaps:
            other[sql] = translate(root).gaps
    assert other == {}


def algebra_of_any(session: SparkSession, sql: str, schemas: Mapping[str, str]) -> tuple[Rel, str]:
    """As `algebra_of`, of a query whose columns may have types that the algebra lacks."""
    query = analyze_query(session, sql, schemas)
    content = algebra_to_json(query.algebra.root)
    assert content is not None
    return algebra_from_json(content), query.columns.json()


@pytest.mark.parametrize(
    "suite",
    [
        pytest.param("tpch", marks=pytest.mark.slow("each time: tests/unit/algebra/test_change_plan.py")),
        pytest.param("tpcds", marks=[pytest.mark.full, pytest.mark.timeout(3_600)]),
    ],
)
def test_queries_of_tpc_need_no_spark_and_their_changes_are_planned_right(
    spark_runtime: SparkRuntime, suite: str
) -> None:
    tpc, session = Tpc(suite), spark_runtime.new_session()
    schemas = {name: schema_of(tpc.rows(name).schema) for name in tpc.tables}
    queries = {}
    for number in QUERIES[suite]:
        sql, names = tpc.query(number, loosen=True)
        queries[number], _ = algebra_of(session, sql, {name: schemas[name] for name in names})
    left = gaps(queries.items())
    assert len(queries) - len(left) >= COVERED[suite], left
    changed = ChangedTpc(tpc, suite)
    wrong, some = {}, 0
    for number, root in queries.items():
        facts = tables_of(root) & {*changed.facts}
        for few in (facts, facts & {next(iter(changed.facts))}):
            if few and number not in left:
                differ, rows = changed.wrong_rows(root, few)
                some += rows > 0
                if differ:
                    wrong[number] = differ
    assert wrong == {}
    assert some > len(queries) // 2, "most changes show in results"
