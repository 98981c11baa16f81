"""Rows on their way to Spark and from it, frames whose rows Spark caches, and users' SQL, which is confined to its own
rows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from iscp.model.sql.parsed_sql import SqlPart, named_tables, refuse_beyond_row
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import InvalidRequest
from iscp.ports.source import Rows
from iscp.spark.spark_errors import spark_faults
from iscp.system.late_imports import A, F, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- texts that are no UTF-8 ------------------------------------------------------------------------------------------
# Spark makes and writes texts whose bytes are no UTF-8, and Arrow carries them as they are. Others do not: Python does
# not decode them, and delta-rs dies of one in a merge, and the process with it. So rows that have some are for Spark.

REPLACEMENT = "\ufffd"
"""Java and Python show this in the place of bytes that are no UTF-8; in texts it has another order than these."""

_REFUSED = "non UTF-8 data"
"""In what delta-rs says of a file that it reads, of which nothing is committed then."""


def are_utf8(values: pa.Table | pa.ChunkedArray) -> bool:
    """Return whether all texts are UTF-8, nested ones and those in dictionaries too."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_of_text_bytes(error: Exception) -> bool:
    """Return whether delta-rs has met a text that is no UTF-8 in a file."""
    return _REFUSED in str(error)


# --- rows to Spark and from it ----------------------------------------------------------------------------------------
# Rows in this process's memory are handed to Spark, and all rows of a frame are taken from it.


def frame_of_arrow(session: SparkSession, rows: pa.Table, schema: T.StructType | None = None) -> DataFrame:
    """Return a frame of `rows`, by `createDataFrame` and without two of its faults: it takes a batch without rows for
    the end, and loses what comes after; and it fails at an array's column without any batch.
    """
    batches = [batch for batch in rows.to_batches() if len(batch)]
    if not batches:
        batches = [pa.RecordBatch.from_arrays([pa.array([], each.type) for each in rows.schema], schema=rows.schema)]
    filled = pa.Table.from_batches(batches, rows.schema)
    return session.createDataFrame(filled) if schema is None else session.createDataFrame(filled, schema)


def rows_of_table(session: SparkSession, table: pa.Table) -> Rows:
    """Return few rows for whoever writes them; the session makes a frame of them only where one is wanted."""
    return Rows(lambda: frame_of_arrow(session, table), lambda: table)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return these columns as Spark has them; an instant without a zone stays one."""
    return A.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def columns_of(rows: Rows) -> T.StructType:
    """Return the columns of `rows` as Spark has them, without making a frame where there is a table."""
    return rows.frame.schema if rows.table is None else spark_schema(rows.table.schema)


def utf8_rows(frame: DataFrame) -> pa.Table | None:
    """Return the frame's rows; None if some texts are no UTF-8, so that only Spark can work with these rows."""
    rows = frame.toArrow()
    return rows if are_utf8(rows) else None


def arrow_of_frame(frame: DataFrame) -> pa.Table:
    """Return the frame's rows with all columns nullable: `toArrow` fails at a null struct whose fields may not
    be null.
    """
    wide = T.StructType.fromJson(json.loads(frame._jdf.schema().asNullable().json()))
    if wide == frame.schema:
        return frame.toArrow()
    return frame.select(*[F.col(quoted(each.name)).cast(each.dataType).alias(each.name) for each in wide]).toArrow()


# --- cached frames ----------------------------------------------------------------------------------------------------


def cached(frame: DataFrame) -> DataFrame:
    """Return `frame`, computed once and cached until `release` of what this returns.

    Each frame is cached for itself alone. Spark gives the rows that it caches of one query to every other one whose
    plan is the same, in all sessions of its JVM, and two reads of what a Delta table holds have the same plan whatever
    was committed between them: the later one would be given the rows of the earlier.

    A frame that is made of it cannot be released in its place: it has another plan, under which Spark caches nothing.
    """
    with spark_faults("have Spark keep rows"):
        mark = f"'{uuid.uuid4().hex}'"
        return frame.where(F.expr(f"{mark} = {mark}")).persist()


def release(frame: DataFrame) -> None:
    with spark_faults("have Spark keep rows no longer"):
        frame.unpersist(blocking=False)


# --- users' SQL -------------------------------------------------------------------------------------------------------
# Users' SQL, as Spark's own parser reads it, is confined to its own rows before Spark resolves any name. To analyze a
# query Spark opens what the query names: tables of catalogs, files by `parquet.`…``, functions. So the parsed tree is
# judged first (`iscp.model.sql.parsed_sql`), with all that its nodes are made of.

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
