"""Of changed rows the columns are read that the result of a query follows from, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from iscp.views.analysis.query_analysis import AnalyzedQuery, analyze_query

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark


T, U = "a bigint, b string, c int, d array<int>", "a bigint, x string, y bigint"


def analyzed(runtime: SparkRuntime, sql: str) -> AnalyzedQuery:
    schemas = {name: StructType.fromDDL(columns).json() for name, columns in (("t", T), ("u", U))}
    return analyze_query(runtime.new_session(), sql, schemas)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t", {"t": "abcd"}),
        ("SELECT b, sum(a) FROM t GROUP BY b", {"t": "ab"}),
        ("SELECT count(*) FROM t", {"t": ""}),
        ("SELECT b FROM t WHERE c > 1", {"t": "bc"}),
        ("SELECT DISTINCT b FROM t", {"t": "b"}),
        ("SELECT t.b, u.x FROM t JOIN u ON t.a = u.a AND u.y > t.c", {"t": "abc", "u": "axy"}),
        ("SELECT t.b FROM t LEFT ANTI JOIN u ON t.a = u.a", {"t": "ab", "u": "a"}),
        ("SELECT b FROM t UNION ALL SELECT x FROM u WHERE y = 1", {"t": "b", "u": "xy"}),
        ("SELECT a, b FROM t INTERSECT ALL SELECT a, x FROM u", {"t": "ab", "u": "ax"}),
        ("SELECT b, e FROM t LATERAL VIEW explode(d) AS e", {"t": "bd"}),
        ("SELECT a, rank() OVER (PARTITION BY b ORDER BY c) FROM t", {"t": "abc"}),
        ("SELECT a FROM t ORDER BY c LIMIT 3", {"t": "ac"}),
        ("SELECT b FROM t WHERE a > (SELECT max(y) FROM u)", {"t": "ab", "u": "y"}),
        ("SELECT b, c, count(d) FROM t GROUP BY ROLLUP (b, c)", {"t": "bcd"}),
        ("SELECT b, max(struct(c, a)) FROM t GROUP BY b", {"t": "abc"}),
        ("SELECT one.b FROM t one JOIN t other ON one.a = other.c", {"t": "abc"}),
    ],
)
def test_columns_that_a_result_follows_from(spark_runtime: SparkRuntime, sql: str, expected: dict[str, str]) -> None:
    needed = analyzed(spark_runtime, sql).needed
    assert {table: "".join(sorted(names)) for table, names in needed.items()} == expected


def test_rows_that_only_count_are_read_by_one_column(spark_runtime: SparkRuntime) -> None:
    query = analyzed(spark_runtime, "SELECT count(*) FROM t")
    assert query.columns_read("t", ["a", "b"]) == ["a"]
    assert analyzed(spark_runtime, "SELECT c, a FROM t").columns_read("t", ["a", "b", "c"]) == ["a", "c"]
