"""Has Spark analyze a query over named tables, without reading a row, and refuses what cannot be kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from iscp.adapters.delta.query.catalyst import Catalyst
from iscp.adapters.delta.query.direct.group_plan import find_group_query
from iscp.adapters.delta.query.group_sums import GroupSums, find_group_sums
from iscp.adapters.delta.query.needed_columns import needed_columns
from iscp.adapters.delta.query.plan_tree import SESSION_MARK, PlanNode, ResultKeys, kept_input, read_tree, result_keys
from iscp.adapters.delta.query.ranged.range_ways import find_ranged_rows
from iscp.adapters.delta.query.special_times import special_time
from iscp.adapters.delta.query.time_marks import VIEW_ZONE, TimeMarks, changing
from iscp.adapters.delta.spark.spark_engine import settings_for, without_rules
from iscp.adapters.delta.spark.spark_errors import first_line, said_by, spark_faults
from iscp.adapters.delta.spark.user_sql import refuse_command, restrict_query
from iscp.core.errors import InvalidRequest
from iscp.core.query_plan import QueryShape
from iscp.core.range_query import NotRanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What these make of a plan suits one execution of it, and not another one over changed rows.
_UNFIT_RULES = (
    "MergeScalarSubqueries",
    "DecimalAggregates",
    "InferWindowGroupLimit",
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "PushProjectionThroughLimitAndOffset",
    "PropagateEmptyRelation",  # what it leaves of INTERSECT ALL, the optimizer fails on when it sees it again
)
_SETTINGS = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.optimizer.runtimeFilter.semiJoinReduction.enabled": "false",
    "spark.sql.cbo.enabled": "false",
    # What a query says of days is not to be another thing on a node of another zone: analyzed expressions keep it.
    "spark.sql.session.timeZone": VIEW_ZONE,
}


ShapeQuery = Callable[[str, Mapping[str, str]], QueryShape]
"""As Catalog.query_shape."""


@dataclass(frozen=True, slots=True)
class AnalyzedQuery:
    """`columns` are the result's; `catalyst` is that of the session whose plans the tree has.

    `kept`: the node whose rows are kept beside the target, as `sums` where these are there; `kept_keys` and `keys`:
    what distinguishes its rows, and those of the result. `needed`: of each table the columns that the result follows
    from. `undecided`: functions that something in it is decided by, and that give another value each time.
    """

    root: PlanNode
    columns: StructType
    catalyst: Catalyst
    kept: PlanNode | None
    sums: GroupSums | None
    kept_keys: ResultKeys | None
    keys: ResultKeys | None
    needed: Mapping[str, frozenset[str]]
    undecided: str

    def columns_read(self, table: str, names: Sequence[str]) -> list[str]:
        """Of a table's changed rows, whose columns are `names`; at least one, as it may be that rows only count."""
        needed = self.needed.get(table, frozenset())
        return [each for each in names if each in needed] or [*names[:1]]


def analyze_query(session: SparkSession, sql: str, schemas: Mapping[str, str]) -> AnalyzedQuery:
    """`schemas`: of each table, as Delta and Spark write it (JSON). Raises InvalidRequest."""
    with spark_faults("analyze the query"):
        names: dict[int, str] = {}
        try:
            for name, schema_json in schemas.items():
                schema = _nullable(StructType.fromJson(json.loads(schema_json)))
                frame = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
                names[int(frame._jdf.queryExecution().logical().rdd().id())] = name
                frame.createOrReplaceTempView(_quoted(name))
            with settings_for(session, _SETTINGS), without_rules(session, _UNFIT_RULES):
                return _analyze(session, sql, names)
        except AnalysisException as error:
            raise InvalidRequest(first_line(error), field="sql", remedy="Correct the query") from error
        except (PySparkException, Py4JJavaError) as error:
            if _is_internal(error) and _fails_by_itself(session, sql):
                raise InvalidRequest(
                    f"is a query that Spark's own optimizer fails on, without iscp too: {said_by(error)}",
                    field="sql",
                    remedy="Write it in another way, until `EXPLAIN` of it by Spark alone does not fail",
                ) from error
            raise
        finally:
            for name in schemas:
                session.catalog.dropTempView(name)


def _is_internal(error: PySparkException | Py4JJavaError) -> bool:
    """Whether Spark says that it broke a rule of its own, and not that something it needs is missing or full."""
    return "SQLSTATE: XX" in str(error)


def _fails_by_itself(session: SparkSession, sql: str) -> bool:
    """Whether plain Spark has a fault of its own with the query: then it is the query's, and does not pass."""
    try:
        session.sql(sql)._jdf.queryExecution().optimizedPlan()
    except (PySparkException, Py4JJavaError) as error:
        return _is_internal(error)
    return False


def query_shaper(session: SparkSession) -> ShapeQuery:
    """Analyzes queries in sessions of their own; runs no job."""

    def shape(sql: str, schemas: Mapping[str, str]) -> QueryShape:
        with spark_faults("open a Spark session"):
            apart = session.newSession()
        with spark_faults("parse the query"):
            try:
                named = restrict_query(apart, sql, schemas)
            except AnalysisException as error:
                raise InvalidRequest(first_line(error), field="sql", remedy="Correct the query") from error
        found = analyze_query(apart, sql, schemas)
        kept = found.kept
        by_group = found.sums is not None or find_group_query(found.catalyst, found.root, found.columns) is not None
        whole = {name: _whole(found, name) for name in schemas}
        kept_operator = kept.operator if kept is not None else None
        schema_json = str(found.columns.json())
        return QueryShape(found.root.operator, schema_json, named, kept_operator, by_group, whole, found.undecided)

    return shape


def _whole(query: AnalyzedQuery, name: str) -> str:
    found = find_ranged_rows(query.catalyst, query.root, query.kept, query.sums, {name})
    return found.reason if isinstance(found, NotRanged) else ""


def _analyze(session: SparkSession, sql: str, names: Mapping[int, str]) -> AnalyzedQuery:
    state: Any = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(sql)
    refuse_command(session, parsed)
    execution = state.executePlan(parsed, getattr(state, "executePlan$default$2")())
    analyzed = execution.analyzed()
    if not analyzed.deterministic():
        raise changing()
    _refuse_special_time(special_time(session, sql, analyzed))
    catalyst = Catalyst(session)
    marks = TimeMarks(session, catalyst)
    marked = marks.marked(analyzed)
    if marks.values:
        execution = state.executePlan(marked, getattr(state, "executePlan$default$2")())
    plan = catalyst.reproducible(execution.optimizedPlan())
    root = read_tree(catalyst, plan, names, marks.values)
    columns = StructType.fromJson(json.loads(analyzed.schema().json()))
    for each in columns.fields:
        each.metadata.pop(SESSION_MARK, None)  # or whoever groups by that column of the target merges what overlaps
    kept = kept_input(root)
    sums = find_group_sums(catalyst, root, kept)
    kept = kept if sums is None else sums.node
    kept_keys = result_keys(catalyst, kept) if kept else None
    keys, needed = result_keys(catalyst, root), needed_columns(catalyst, root)
    undecided = catalyst.undecided(_recomputed_before(kept or root, kept_keys if kept else keys).plan)
    return AnalyzedQuery(root, columns, catalyst, kept, sums, kept_keys, keys, needed, undecided)


def _recomputed_before(rows: PlanNode, keys: ResultKeys | None) -> PlanNode:
    """The node of which it has to be known what it gave before the changes. Groups are replaced by their keys."""
    return keys.node if keys is not None and keys.unique else rows


def _refuse_special_time(found: str) -> None:
    if found:
        raise InvalidRequest(
            f"has {found}, of which Spark makes the time at which it reads the query, once and for all",
            field="sql",
            remedy="Write current_timestamp() or current_date()",
        )


def _nullable(schema: StructType) -> StructType:
    """Tables become nullable later, and the optimizer drops what a column that is never null does not need."""
    for each in schema.fields:
        each.nullable = True
    return schema


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
