"""Of all statements of Spark's grammar, and of Delta's, none but a query gets past the parser; none writes anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import restrict_query
from tests.fakes.sql_statements import DELTA, DML, INSERT, QUERIES, SCRIPTS, SET, SINCE_4_2, STATEMENTS, UNTIL_4_1
from tests.fakes.tpc import QUERIES as TPC_QUERIES
from tests.fakes.tpc import Tpc

pytestmark = pytest.mark.spark

SPARK, DELTAS = "org.apache.spark.sql.catalyst.parser.SqlBase", "io.delta.sql.parser.DeltaSqlBase"
RULES = (
    (SPARK, "statement", STATEMENTS),
    (SPARK, "setResetStatement", SET),
    (SPARK, "dmlStatementNoWith", DML),
    (SPARK, "insertInto", INSERT),
    (SPARK, "queryPrimary", QUERIES["queryPrimary"]),
    (SPARK, "queryTerm", QUERIES["queryTerm"]),
    (DELTAS, "statement", DELTA),
)
QUERY = ("StatementDefault", "PassThrough")
"""The alternatives that are queries."""


def written(rule: str) -> str:
    return rule[0].upper() + rule[1:] + "Context"


def alternatives(jvm: Any, grammar: str, rule: str) -> set[str]:
    """How the grammar calls those of a rule."""
    by_name = jvm.java.lang.Class.forName
    base = by_name(f"{grammar}Parser${written(rule)}")
    found = [each for each in by_name(f"{grammar}Parser").getDeclaredClasses() if base.isAssignableFrom(each)]
    return {str(each.getSimpleName()).removesuffix("Context") for each in found if not each.equals(base)}


def alternative_of(jvm: Any, grammar: str, rule: str, sql: str) -> str:
    """As which of them the parser reads a text."""
    package = jvm
    for part in grammar.split("."):
        package, last = getattr(package, part) if part != grammar.rpartition(".")[2] else package, part
    antlr, spark = jvm.org.antlr.v4.runtime, jvm.org.apache.spark.sql.catalyst.parser
    lexer = getattr(package, f"{last}Lexer")(spark.UpperCaseCharStream(antlr.CharStreams.fromString(sql)))
    parser = getattr(package, f"{last}Parser")(antlr.CommonTokenStream(lexer))
    parser.removeErrorListeners()
    return str(getattr(parser, rule)().getClass().getSimpleName()).removesuffix("Context")


@pytest.mark.parametrize(("grammar", "rule", "samples"), RULES, ids=lambda each: each if isinstance(each, str) else "")
def test_the_corpus_has_every_statement_of_the_grammar(
    spark_runtime: SparkRuntime, grammar: str, rule: str, samples: dict[str, str]
) -> None:
    jvm, version = spark_runtime.root._jvm, spark_runtime.root.version
    if grammar == SPARK and tuple(map(int, version.split(".")[:2])) >= (4, 2):
        samples = {name: sql for name, sql in samples.items() if name not in UNTIL_4_1} | SINCE_4_2.get(rule, {})
    assert set(samples) == alternatives(jvm, grammar, rule), "each needs a text that is one"
    read = {name: alternative_of(jvm, grammar, rule, sql) for name, sql in samples.items()}
    assert {name: found for name, found in read.items() if name != found} == {}


STATEMENTS_THAT_ACT = {
    f"{rule}.{name}": sql
    for grammar, rule, samples in RULES
    if not rule.startswith("query")
    for name, sql in samples.items()
    if name not in QUERY
}
STATEMENTS_THAT_ACT |= {f"{rule}.{name}": sql for rule, samples in SINCE_4_2.items() for name, sql in samples.items()}
STATEMENTS_THAT_ACT |= {f"script.{number}": sql for number, sql in enumerate(SCRIPTS)}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that nobody is to touch."""
    there = tmp_path_factory.mktemp("elsewhere") / "there"
    there.mkdir()
    (there / "file").write_text("as it was")
    yield there
    assert [(each.name, each.read_text()) for each in there.iterdir()] == [("file", "as it was")]


@pytest.mark.parametrize("name", STATEMENTS_THAT_ACT)
def test_no_statement_passes_for_a_query(spark_runtime: SparkRuntime, elsewhere: Path, name: str) -> None:
    sql = STATEMENTS_THAT_ACT[name].replace("/any/dir", str(elsewhere))
    for each in (sql, f"WITH w AS (SELECT 1) {sql}", f"/* SELECT */ {sql}"):
        with pytest.raises((InvalidRequest, PySparkException)) as refused:
            restrict_query(spark_runtime.root, each, ["t", "u"])
        if isinstance(refused.value, InvalidRequest):
            assert re.match(r"is no SELECT, but \w+|has \w+, which is not understood", refused.value.message)


@pytest.mark.parametrize("rule", QUERIES)
def test_all_forms_of_a_query_pass(spark_runtime: SparkRuntime, rule: str) -> None:
    for sql in QUERIES[rule].values():
        _, named = restrict_query(spark_runtime.root, sql, ["t", "u"])
        assert named <= {"t", "u"}


@pytest.mark.parametrize("suite", TPC_QUERIES)
def test_the_queries_of_benchmarks_pass(spark_runtime: SparkRuntime, suite: str) -> None:
    tpc = Tpc(suite)
    for number in TPC_QUERIES[suite]:
        sql, tables = tpc.query(number)
        _, named = restrict_query(spark_runtime.root, sql, tables)
        assert named == set(tables)
