"""What functions make by a number: bounded where the number is written, and where it is computed, before it is made."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from iscp.model.sql.sql_names import SIZE_MAX
from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import run_nothing
from iscp.views.analysis.query_analysis import ShapeQuery, query_shaper

pytestmark = pytest.mark.spark

SCHEMA = T.StructType(
    [
        T.StructField("n", T.LongType()),
        T.StructField("s", T.StringType()),
        T.StructField("d", T.DateType()),
        T.StructField("w", T.TimestampType()),
    ]
)
ROW = "VALUES (3L, 'x', DATE '2020-01-01', TIMESTAMP '2020-01-01 00:00:00') AS t(n, s, d, w)"
BEYOND = SIZE_MAX + 1

SAME = (
    "repeat(s, CAST(n AS INT))",
    "space(CAST(n AS INT))",
    "lpad(s, CAST(n AS INT), '-')",
    "rpad(s, CAST(n AS INT), '-')",
    "lpad(X'01', CAST(n AS INT), X'02')",
    "array_repeat(s, CAST(n AS INT))",
    "array_insert(array(1), CAST(n AS INT), 2)",
    "array_insert(array(1), -CAST(n AS INT), 2)",
    "sequence(1L, n)",
    "sequence(n, 1L)",
    "sequence(1L, n, 2L)",
    "sequence(1L, CAST(NULL AS BIGINT))",
    "sequence(d, DATE '2020-02-01')",
    "sequence(d, DATE '2120-02-01', INTERVAL '1' MONTH)",
    "sequence(w, TIMESTAMP '2020-01-02 00:00:00', INTERVAL '1' HOUR)",
    "sequence(w, TIMESTAMP '2024-01-02 00:00:00')",
    "sequence(CAST(w AS TIMESTAMP_NTZ), TIMESTAMP_NTZ '2020-01-02 00:00:00', INTERVAL '1' HOUR)",
    "sequence(1, 1000)",
    "repeat('x', 1000)",
)
TOO_MUCH = (
    f"repeat(s, CAST(n AS INT) + {SIZE_MAX})",
    f"space(CAST(n AS INT) + {SIZE_MAX})",
    f"lpad(s, CAST(n AS INT) + {SIZE_MAX}, '-')",
    f"rpad(X'01', CAST(n AS INT) + {SIZE_MAX}, X'02')",
    f"array_repeat(s, CAST(n AS INT) + {SIZE_MAX})",
    f"array_insert(array(1), -CAST(n AS INT) - {SIZE_MAX}, 2)",
    f"sequence(1L, n + {SIZE_MAX})",
    "sequence(n, 9000000000000000000L)",
    "sequence(w, TIMESTAMP '2024-01-02 00:00:00', INTERVAL '1' SECOND)",
    "sequence(CAST(w AS TIMESTAMP_NTZ), TIMESTAMP_NTZ '2024-01-02 00:00:00', INTERVAL '1' SECOND)",
    "repeat(s, 1000 * 1000 * 1000)",
    "sequence(TIMESTAMP '2020-01-01 00:00:00', TIMESTAMP '2024-01-01 00:00:00', INTERVAL '1' SECOND)",
)
WRITTEN = (
    f"repeat(s, {BEYOND})",
    f"repeat(s, -{BEYOND})",
    f"space({BEYOND})",
    f"lpad(s, {BEYOND}, '-')",
    f"rpad(s, {BEYOND})",
    f"array_repeat(s, {BEYOND})",
    f"array_insert(array(1), {BEYOND}, 2)",
    f"sequence(0, {SIZE_MAX})",
    f"sequence(0, -{SIZE_MAX})",
    f"round(1.5D, {BEYOND})",
    f"format_number(1.5, {BEYOND})",
    f"format_string('%{BEYOND}d', 1)",
    "printf(s, 1)",
    "round(1.5D, 1 + 1)",
    "repeat(s, '5')",
    "transform(array(1), x -> repeat(s, 2000000000))",
)


@pytest.fixture(scope="module")
def shape(spark_runtime: SparkRuntime) -> ShapeQuery:
    return query_shaper(spark_runtime.root)


def bounded(runtime: SparkRuntime, value: str) -> DataFrame:
    """Of one row, as the query of a view computes it."""
    session = runtime.root
    jvm: Any = session._jvm
    plan = session.sql(f"SELECT {value} AS v FROM {ROW}")._jdf.queryExecution().analyzed()
    found = jvm.io.iscp.plans.SizeBounds.bounded(plan, SIZE_MAX, "too much")
    run_nothing(session, found).optimizedPlan()
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, found)
    return DataFrame(dataset, session)


@pytest.mark.parametrize("value", SAME)
def test_what_is_small_enough_is_what_it_was(spark_runtime: SparkRuntime, shape: ShapeQuery, value: str) -> None:
    plain = spark_runtime.root.sql(f"SELECT {value} AS v FROM {ROW}")
    found = bounded(spark_runtime, value)
    assert found.collect() == plain.collect()
    assert found.schema.simpleString() == plain.schema.simpleString()
    assert shape(f"SELECT {value} AS v FROM t", {"t": SCHEMA.json()}).schema_json


@pytest.mark.parametrize("value", TOO_MUCH)
def test_what_is_computed_fails_before_it_is_made(spark_runtime: SparkRuntime, value: str) -> None:
    with pytest.raises(PySparkException, match="too much"):
        bounded(spark_runtime, value).collect()


@pytest.mark.parametrize("value", WRITTEN)
def test_what_is_written_is_refused_by_name(shape: ShapeQuery, value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"calls \w+\(\) with"):
        shape(f"SELECT {value} AS v FROM t", {"t": SCHEMA.json()})


def test_rows_of_stack_are_bounded_wherever_it_stands(shape: ShapeQuery) -> None:
    for sql in (
        "SELECT stack({}, 1, 2) FROM t",
        "SELECT * FROM stack({}, 1, 2)",
        "SELECT a FROM t LATERAL VIEW {} x AS a",
    ):
        with pytest.raises(InvalidRequest, match=r"calls stack\(\) with 2000000000"):
            shape(sql.format("stack(2000000000, 1, 2)" if "VIEW" in sql else "2000000000"), {"t": SCHEMA.json()})


def test_a_disguised_number_makes_nothing_while_the_query_is_planned(shape: ShapeQuery) -> None:
    """Spark would compute it as a constant, and end."""
    sql = "SELECT length(repeat(x, m)) AS v FROM (SELECT s, 'a' AS x, 2000000000 AS m FROM t)"
    assert shape(sql, {"t": SCHEMA.json()}).schema_json
