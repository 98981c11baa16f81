"""Filters are of the row's own columns, and say the same of a row each time: the target could not follow others."""

from __future__ import annotations

import json
import os

import pytest

from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.views.analysis.query_analysis import condition_analyzer
from iscp.views.analysis.session_analysis import SessionAnalysis

from .conftest import Pipeline

pytestmark = pytest.mark.spark


def test_conditions_that_change_by_themselves_and_those_that_do_not(pipeline: Pipeline) -> None:
    source = DeltaCatalog().describe(pipeline.source)
    with pipeline.engine.session() as session:
        analyze = condition_analyzer(session)

        def passes(condition: str) -> bool:
            return analyze(source.schema_json, condition) == ""

        changing = (
            "current_date() > DATE '2020-01-01'",
            "now() > TIMESTAMP '2020-01-01'",
            "localtimestamp() > TIMESTAMP_NTZ '2020-01-01'",
            "unix_timestamp() > id",
            "v = current_user()",
            "v = current_database()",
            "rand() > 0.5",
            "v = uuid()",
        )
        assert [condition for condition in changing if passes(condition)] == []
        steady = ("id > 3", "v IS NULL OR v <> 'gone'", "date_trunc('day', timestamp_micros(id)) > DATE '2020-01-01'")
        assert [condition for condition in steady if not passes(condition)] == []


FIELDS = {"at": "timestamp", "day": "date", "local": "timestamp_ntz", "v": "string", "id": "long"}
AT_ONCE = (  # with what is said of each
    ("at > timestamp'now'", "timestamp'now'"),
    ("at > TIMESTAMP\t'  NOW '", "TIMESTAMP'  NOW '"),
    ("day = DATE /* of the node */ 'today'", "DATE'today'"),
    ("day > date-- 'a'\n\"tomorrow\"", 'date"tomorrow"'),
    ("day > date r'yesterday'", "dater'yesterday'"),
    (r"day > date'n\u006fw'", r"date'n\\u006fw'"),
    ("at > timestamp_ltz'today Asia/Tokyo'", "timestamp_ltz'today Asia/Tokyo'"),
    ("local > timestamp_ntz'yesterday'", "timestamp_ntz'yesterday'"),
    ("id > 3 OR NOT (day < date'now' - INTERVAL 7 DAYS)", "date'now'"),
    ("at > CAST('now' AS TIMESTAMP)", "CAST('now' AS TIMESTAMP)"),
    ("at > 'today'::timestamp", "CAST('today' AS TIMESTAMP)"),
    ("at > 'now'", "CAST('now' AS TIMESTAMP)"),
    ("at BETWEEN '2020-01-01' AND 'Tomorrow'", "CAST('Tomorrow' AS TIMESTAMP)"),
    ("day IN (date'2020-01-01', 'today')", "CAST('today' AS DATE)"),
    ("local > try_cast('no' || 'w' AS timestamp_ntz)", "concat('no', 'w')"),
    ("day > to_date('yesterday')", "CAST('yesterday' AS DATE)"),
    ("at > try_to_timestamp('now')", "'now'"),
    ("year('today') = id", "CAST('today' AS DATE)"),
    ("CASE WHEN id > 3 THEN datediff(day, 'today') > 7 END", "CAST('today' AS DATE)"),
)
FIXED = (
    "v = 'now'",
    "v IN ('now', 'today') OR v LIKE 'tomorrow%'",
    "v = 'timestamp\\'now\\''",
    "v = 'date' /* date'today' */ -- date'now'",
    "at > timestamp'epoch' AND v = 'now'",
    "day > 'epoch' AND at > to_timestamp('epoch')",
    "day > date'2020-01-01' AND at > '2020-01-01 10:00:00'",
    "CAST(v AS date) = day",
    "id = CAST(NULL AS string)",
)


def test_texts_that_spark_reads_as_the_time_change_and_texts_that_are_none_do_not(spark_runtime: SparkRuntime) -> None:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    analyze = condition_analyzer(spark_runtime.new_session())
    for condition, by in AT_ONCE:
        said = analyze(schema, condition)
        assert said.startswith("its outcome changes each time that it is evaluated, by "), condition
        assert by in said
        assert "makes the time at which it reads the condition" in said
    assert [condition for condition in FIXED if analyze(schema, condition)] == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("reflect('java.lang.System', 'getenv', 'HOME') = v", "calls reflect(), which calls Java (line 1, column 1)"),
        ("id > 3\n  AND v = `JAVA_METHOD`('a.B', 'c')", "calls java_method(), which calls Java (line 2, column 11)"),
        ("exists(array(1), x -> try_reflect('a.B', 'c') = v)", "calls try_reflect()"),
        ("input_file_name() LIKE '%x%'", "calls input_file_name()"),
        ("IDENTIFIER('ref' || 'lect')('a.B', 'c') = v", ""),
        ("default.f(v) = v", "calls default.f(), a function of a catalog"),
        ("nope(v)", "calls nope(), which Spark does not have built in (line 1, column 1)"),
        ("id IN (SELECT a FROM delta.`/etc/secret`)", "has a subquery"),
        ("id IN (TABLE secret)", ""),
        ("id = (FROM secret)", ""),
        ("_metadata.file_path = v", "names _metadata"),
        ("id > 3; DROP TABLE secret", "is not a SQL condition"),
        ("id > 3) OR (true", "is not a SQL condition"),
        ("id > 3 /* ", ""),
        ("v GLOB 'a'", "is not a condition that Spark takes: "),
        ("id > 3 /* /* */ OR reflect('java.lang.System', 'getenv', 'HOME') = v", ""),
        ("id >\n", "is not a SQL condition"),
    ],
)
def test_a_filter_is_of_the_rows_own_columns(
    spark_runtime: SparkRuntime, pipeline: Pipeline, where: str, said: str
) -> None:
    catalog = DeltaCatalog.of(spark_runtime.root, SessionAnalysis(spark_runtime.root))
    spec = ConsumerSpec("replica", pipeline.target("x"), ("id",), where=where)
    with pytest.raises(InvalidRequest) as refused:
        ReplicaKind().validate(spec, catalog.describe(pipeline.source), catalog)
    assert (refused.value.field, bool(refused.value.remedy)) == ("spec.iteration.consumer.where", True)
    assert said in refused.value.message


def test_variables_of_the_nodes_environment_stay_out_of_filters(spark_runtime: SparkRuntime) -> None:
    frame = spark_runtime.new_session().range(1)
    assert frame.where("'${env:HOME}' = concat('$', '{env:HOME}')").count() == 1
    assert frame.where(f"'${{env:HOME}}' = '{os.environ['HOME']}'").count() == 0
