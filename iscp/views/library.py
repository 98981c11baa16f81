"""The functions of `iscp.views`: they take frames, and know nothing of tables on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.algebra.algebra import TableRows
from iscp.model.query_plan import ExplainedOperator, OperatorKind, explain_operators, undecided_reason
from iscp.model.sql.sql_names import WEIGHT as WEIGHT
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import ConfigurationError, InvalidRequest
from iscp.spark.java import log_store_jar
from iscp.spark.spark_engine import session_of
from iscp.views.analysis.query_analysis import AnalyzedQuery as AnalyzedQuery
from iscp.views.analysis.query_analysis import analyze_query
from iscp.views.catalyst.catalyst import Catalyst
from iscp.views.changes.signed_rows import Instants, TableChange
from iscp.views.changes.spark_plans import SparkPlans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class TableFrames:
    """A table before and after a change. `changed` has the rows that came and went, with 1 or -1 as WEIGHT (None: it
    did not change).
    """

    before: DataFrame
    after: DataFrame
    changed: DataFrame | None = None


def jar() -> Path:
    """Return the path of the JVM's part, which the session's class path has to have.

    Raises ConfigurationError if it has not been built.
    """
    found = log_store_jar()
    if found is None:
        raise ConfigurationError("the package's jar has not been built", remedy="Run scripts/setup")
    return found


def analyze(session: SparkSession, sql: str, tables: Mapping[str, StructType]) -> AnalyzedQuery:
    """Return the query as Spark analyzes it over tables with these columns, without reading a row.

    Views and settings of the session do not change. The query is analyzed by UTC, ANSI and Spark's own defaults,
    whatever these settings are. Raises InvalidRequest for anything that is no query over these tables, or does not
    follow from their rows.
    """
    schemas = {name: str(each.json()) for name, each in tables.items()}
    query = analyze_query(session_of(session.newSession), sql, schemas, by_value=True)
    return replace(query, catalyst=Catalyst(session))


def explain(query: AnalyzedQuery) -> tuple[ExplainedOperator, ...]:
    """Return how each operator follows a change of its input, and why in no cheaper way, as a tree in prefix order."""
    return explain_operators(query.root.operator)


def all_rows(query: AnalyzedQuery, tables: Mapping[str, DataFrame], at_s: float = 0.0) -> DataFrame:
    """Return all rows of the query. `at_s` is the Unix time that it is of, if it has a condition on the time."""
    frames = {name: TableFrames(each, each) for name, each in tables.items()}
    return _plans(query, frames, Instants(at_s, at_s)).result(query.root, TableRows.NEW).toDF(*query.columns.names)


@contextmanager
def follow(
    query: AnalyzedQuery, tables: Mapping[str, TableFrames], before_s: float = 0.0, after_s: float = 0.0
) -> Iterator[DataFrame | None]:
    """Yield the rows of the result that came and went, each once, with how many as WEIGHT, or None if there are none.

    They are released at the end. `before_s` and `after_s` are the Unix times that the rows before and after are of, if
    the query has a condition on the time. Raises InvalidRequest if changes of the query say nothing.
    """
    if query.undecided:
        raise InvalidRequest(undecided_reason(query.undecided), about="sql")
    with closing(_plans(query, tables, Instants(before_s, after_s))) as plans:
        found = plans.changes(query.root)
        yield None if found is None else found.named(*query.columns.names, WEIGHT).to_frame()


def _plans(query: AnalyzedQuery, tables: Mapping[str, TableFrames], instants: Instants) -> SparkPlans:
    nodes = [each for each in query.root.walk() if each.operator.kind is OperatorKind.TABLE]
    named = {each.operator.table: query.catalyst.names(each.plan) for each in nodes}
    if missing := sorted({*named} - {*tables}):
        raise InvalidRequest(f"the query reads {', '.join(missing)}, and no rows of them are given", about="tables")
    moves = {name: _table_change(query, name, columns, tables[name]) for name, columns in named.items()}
    return SparkPlans(query.catalyst, query.algebra, moves, instants)


def _table_change(query: AnalyzedQuery, name: str, columns: list[str], frames: TableFrames) -> TableChange:
    before, after = (each.select(*map(quoted, columns)) for each in (frames.before, frames.after))
    changed = frames.changed
    if changed is not None:
        read = map(quoted, query.columns_read(name, columns))
        changed = changed.select(*read, F.col(WEIGHT).cast("long").alias(WEIGHT))
    return TableChange(lambda at: before if at is TableRows.OLD else after, lambda: changed)
