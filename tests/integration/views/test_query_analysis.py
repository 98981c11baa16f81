"""Queries of views read their tables and nothing else: what names anything besides is refused before it is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import restrict_query
from iscp.views.analysis.query_analysis import ShapeQuery, query_shaper

pytestmark = pytest.mark.spark

SCHEMAS = {
    "t": StructType(
        [
            StructField("a", LongType()),
            StructField("b", StringType()),
            StructField("l", ArrayType(LongType())),
            StructField("reflect", LongType()),
        ]
    ).json(),
    "u": StructType([StructField("a", LongType()), StructField("x", StringType())]).json(),
}


@pytest.fixture(scope="module")
def shape(spark_runtime: SparkRuntime) -> ShapeQuery:
    return query_shaper(spark_runtime.root)


@pytest.fixture(scope="module")
def elsewhere(spark_runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A table that is not the view's, also by a name in Spark's catalog, and a file."""
    top = tmp_path_factory.mktemp("elsewhere")
    write_deltalake(str(top / "secret"), pa.table({"a": [1]}))
    spark_runtime.root.sql(f"CREATE TABLE secret USING delta LOCATION '{top / 'secret'}'")
    (top / "file.csv").write_text("1\n")
    yield top
    spark_runtime.root.sql("DROP TABLE secret")


def refusal(shape: ShapeQuery, sql: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        shape(sql, SCHEMAS)
    assert refused.value.field == "sql"
    assert refused.value.remedy
    return refused.value


OTHER_TABLES = (
    "SELECT * FROM secret",
    "SELECT * FROM default.secret",
    "SELECT * FROM spark_catalog.default.secret",
    "SELECT * FROM t JOIN SECRET USING (a)",
    "SELECT a FROM t UNION ALL (TABLE secret)",
    "SELECT a FROM t WHERE a IN (SELECT a FROM secret)",
    "SELECT a, (SELECT max(a) FROM secret) AS m FROM t",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM secret s WHERE s.a = t.a)",
    "SELECT a FROM t, LATERAL (SELECT * FROM secret)",
    "FROM secret SELECT a",
    "FROM t |> JOIN secret USING (a)",
    "WITH s AS (SELECT * FROM secret) SELECT * FROM s",
    "SELECT * FROM (WITH secret AS (SELECT 1 AS a) SELECT * FROM secret) s JOIN secret USING (a)",
    "WITH x AS (SELECT * FROM secret), secret AS (SELECT 1) SELECT * FROM x",
    "SELECT * FROM delta.`{0}/secret`",
    "SELECT * FROM delta.`file://{0}/secret`",
    "SELECT * FROM csv.`{0}/file.csv`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM `parquet`.`{0}/none`",
    "SELECT * FROM secret VERSION AS OF 0",
    "SELECT * FROM delta.`{0}/secret@v0`",
    "SELECT a FROM t ORDER BY (SELECT max(a) FROM secret)",
    "SELECT max(a) OVER w FROM t WINDOW w AS (PARTITION BY (SELECT max(a) FROM secret))",
    "SELECT transform(l, x -> x + (SELECT max(a) FROM secret)) FROM t",
)


@pytest.mark.parametrize("sql", OTHER_TABLES)
def test_a_query_reads_its_own_tables_alone(shape: ShapeQuery, elsewhere: Path, sql: str) -> None:
    error = refusal(shape, sql.format(elsewhere))
    assert re.search(r"which is none of its tables|has RelationTimeTravel|none of its", error.message)
    there = refusal(shape, sql.format(elsewhere).replace("secret", "hidden")).message
    assert there == error.message.replace("secret", "hidden"), "as if it were not there"


BEYOND = {
    "calls java_method(), which calls Java": "SELECT java_method('java.lang.System', 'getenv', 'HOME') FROM t",
    "calls reflect(), which calls Java": "SELECT a FROM t WHERE `Reflect`('java.util.UUID', 'randomUUID') = b",
    "calls try_reflect(), which calls Java": "SELECT transform(l, x -> try_reflect('a.B', 'c')) FROM t",
    "calls reflect(), which": "SELECT system.builtin.reflect('a.B', 'c') FROM t",
    "calls input_file_name()": "SELECT input_file_name() FROM t",
    "calls default.f(), a function of a catalog": "SELECT default.f(a) FROM t",
    "calls nope(), which Spark does not have": "SELECT nope(a) FROM t",
    "calls from_protobuf()": "SELECT from_protobuf(b, 'M', '/etc/passwd') FROM t",
    "calls from_xml() with rowValidationXSDPath": "SELECT from_xml(b, 'a INT', map('rowValidationXSDPath', b)) FROM t",
    "calls from_xml() with options that are computed": "SELECT from_xml(b, 'a INT', map(concat('row', b), b)) FROM t",
    "calls schema_of_xml() with options that": "SELECT schema_of_xml('<a/>', str_to_map('a:b')) FROM t",
    "reads rows of table_changes()": "SELECT * FROM table_changes('secret', 0)",
    "reads rows of table_changes_by_path()": "SELECT * FROM t JOIN table_changes_by_path('{0}/secret', 0) USING (a)",
    "reads rows of sql_keywords()": "SELECT keyword FROM sql_keywords()",
    "has IDENTIFIER(": "SELECT IDENTIFIER('java_' || 'method')('a.B', 'c') FROM t",
    "has IDENTIFIER(…), which": "SELECT * FROM IDENTIFIER('sec' || 'ret')",
    "has TRANSFORM": "SELECT TRANSFORM(a) USING 'cat /etc/passwd' FROM t",
    "is no SELECT": "DROP TABLE t",
    "is no SELECT ": "INSERT INTO t SELECT * FROM u",
}


@pytest.mark.parametrize("said", BEYOND)
def test_a_query_calls_nothing_that_reaches_beyond_its_rows(shape: ShapeQuery, elsewhere: Path, said: str) -> None:
    assert said.strip() in refusal(shape, BEYOND[said].format(elsewhere)).message


@pytest.mark.parametrize(
    "where", ["GROUP BY {}", "HAVING {} > 0", "ORDER BY {}", "WINDOW w AS (PARTITION BY {})", "LIMIT {}"]
)
def test_wherever_it_stands(shape: ShapeQuery, where: str) -> None:
    call = "reflect('java.lang.Math', 'abs', 1)"
    assert "calls Java" in refusal(shape, f"SELECT count(*) FROM t {where.format(call)}").message
    assert "calls Java" in refusal(shape, f"SELECT * FROM t PIVOT (max(a) FOR b IN ({call}))").message


def test_a_refusal_says_the_line_and_the_column(shape: ShapeQuery) -> None:
    assert refusal(shape, "SELECT a,\n  b, reflect('a.B', 'c')\nFROM t").message.endswith("(line 2, column 6)")
    assert refusal(shape, "SELECT *\nFROM t JOIN\n\nsecret USING (a)").message.endswith("(line 4, column 1)")
    assert "near ')'" in refusal(shape, "SELECT a\nFROM t WHERE )").message


FINE = (
    "WITH s AS (SELECT a FROM t), r AS (SELECT * FROM S) SELECT r.a, u.x FROM r JOIN U USING (a)",
    "SELECT a, x.b FROM (WITH t AS (SELECT 1 AS a, 'x' AS b) SELECT * FROM t) x",
    "SELECT t.a, e FROM t LATERAL VIEW explode(l) AS e",
    "SELECT a, e FROM t, LATERAL explode(l) AS f(e)",
    "SELECT explode(sequence(1, a)) AS n FROM t",
    "SELECT a, r.id FROM t CROSS JOIN range(3) r",
    "SELECT reflect, 'java_method(1)' AS reads, `t`.`a` FROM t -- reflect('a.B', 'c')",
    "SELECT from_xml(b, 'a INT', map('mode', 'FAILFAST', 'rowTag', 'x')).a AS x, xpath_string(b, '/a') AS p FROM t",
    "SELECT from_json(b, 'a INT').a AS j, get_json_object(b, '$.x') AS g, from_csv(b, 'a INT') AS c FROM t",
    "SELECT date_format(TIMESTAMP '2020-01-01', 'y') AS y, extract(YEAR FROM DATE '2020-01-01') AS e FROM t",
    "SELECT max(a) OVER (PARTITION BY b ORDER BY a) AS m FROM t",
    "FROM t |> WHERE a > 1 |> SELECT a",
    "VALUES (1, 2), (3, 4)",
)


@pytest.mark.parametrize("sql", FINE)
def test_what_is_of_its_own_rows_passes(shape: ShapeQuery, sql: str) -> None:
    assert shape(sql, SCHEMAS).schema_json


def test_variables_of_the_nodes_environment_stay_out_of_queries(shape: ShapeQuery) -> None:
    assert os.environ["HOME"]
    found = shape("SELECT '${env:HOME}' AS h, '${system:user.dir}' AS d, '${spark.master}' AS m FROM t", SCHEMAS)
    assert [name in found.root.title for name in ("${env:HOME}", "${system:user.dir}", "${spark.master}")] == [True] * 3


def test_texts_of_xml_have_nothing_read(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    (tmp_path / "x.dtd").write_text('<!ENTITY e "read">')
    for name in ("x.dtd", "none.dtd"):
        text = f'<!DOCTYPE a SYSTEM "file://{tmp_path / name}"><a>&e;</a>'
        with pytest.raises(Exception, match="accessExternalDTD"):
            spark_runtime.root.sql(f"SELECT xpath_string('{text}', '/a')").collect()


def test_a_query_may_be_deep(spark_runtime: SparkRuntime) -> None:
    restrict_query(spark_runtime.root, f"SELECT a{' + abs(a)' * 150} AS n FROM t", ["t"])
