"""Confines users' SQL, as Spark's own parser reads it, to its own rows, before Spark resolves any name.

To analyze a query Spark opens what it names: tables of catalogs, files by `parquet.`…``, functions. So the parsed tree
is judged first (`iscp.core.sql.parsed_sql`), with all that its nodes are made of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from iscp.core.sql.parsed_sql import SqlPart, named_tables, refuse_beyond_row
from iscp.core.values.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS_MAX = 100_000
"""Parts of one query or filter that are judged; one with more is refused."""

Parsed = Any
"""A plan or expression of the JVM, of which nothing is resolved."""


def restrict_query(session: SparkSession, sql: str, tables: Collection[str]) -> tuple[Parsed, frozenset[str]]:
    """Return the parsed query, and which of the tables it names.

    In the query each table is a temporary view with its whole name as one identifier: `lake.orders` is
    `` `lake.orders` ``. Names are compared without case and quotes, in all their parts. Raises InvalidRequest (`sql`)
    for a query that names anything but these tables and Spark's own functions. A query that Spark cannot read raises
    what Spark's parser raises. Nothing is resolved or read.
    """
    parsed = _parsed(session, sql)
    if several := [name.lower() for name in tables if "." in name]:
        jvm: Any = session._jvm
        parsed = jvm.io.iscp.plans.NamedTables.asViews(parsed, jvm.java.util.HashSet(several))
    # Judged as Spark will see it: a name of several parts that is left would be one of a catalog.
    return parsed, named_tables(_parts(session, parsed), tables, _functions_of(session))


def restrict_condition(session: SparkSession, condition: str) -> None:
    """Refuse a filter that uses anything but the rows' own columns and Spark's own functions. Raises as
    `restrict_query`.
    """
    refuse_beyond_row(_parts(session, _parser(session).parseExpression(condition)), _functions_of(session))


def run_nothing(session: SparkSession, plan: Parsed) -> Any:
    """Return the execution of a plan, in which Spark analyzes and optimizes, and executes no command whatever it
    finds.
    """
    jvm: Any = session._jvm
    java_session: Any = session._jsparkSession
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    return java_session.sessionState().executePlan(plan, skip)


def _parser(session: SparkSession) -> Any:
    java_session: Any = session._jsparkSession
    return java_session.sessionState().sqlParser()


def _parsed(session: SparkSession, sql: str) -> Parsed:
    try:
        return _parser(session).parsePlan(sql)
    except Py4JJavaError as error:  # of statements of which Spark 4.2 knows no more than their syntax, as CLOSE
        if str(error.java_exception.getClass().getSimpleName()) != "SqlScriptingException":
            raise
        remedy = "Write a query, as SELECT … or WITH …"
        raise InvalidRequest("is no SELECT, but a statement of a script", field="sql", remedy=remedy) from error


def _parts(session: SparkSession, parsed: Parsed) -> list[SqlPart]:
    jvm: Any = session._jvm
    described = str(jvm.io.iscp.plans.ParsedParts.json(parsed, PARTS_MAX))
    if not described:
        raise InvalidRequest(f"has more than {PARTS_MAX} parts", field="sql", remedy="Write less of it")
    return [SqlPart(**each) for each in json.loads(described)]


def _functions_of(session: SparkSession) -> Callable[[str], bool]:
    """Return a predicate for the names of functions that Spark has, with those of extensions that a deployment
    set up.

    Spark 4.2 registers them under names of three parts (`system.builtin.abs`), and 4.1 under one. Functions of a
    catalog are under three parts in both, and are nobody's own. Registries have names in small letters.
    """
    java_session: Any = session._jsparkSession
    state = java_session.sessionState()

    @cache
    def known() -> frozenset[str]:
        registries = state.functionRegistry(), state.tableFunctionRegistry()
        listed = "\n".join(str(registry.listFunction().mkString("\n")) for registry in registries)
        named = (name.rpartition(".") for name in listed.split("\n"))
        return frozenset(name for place, _, name in named if not place or place.startswith("system."))

    return lambda name: name.lower() in known()
