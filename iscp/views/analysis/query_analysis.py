"""The analysis of users' SQL by Spark, without reading a row: of a query over named tables and of a filter, each with
the reason why it is refused; and the checks of the columns of a query's result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from iscp.algebra.algebra import Opaque, Rel, TypedColumn
from iscp.algebra.duck_text import translate
from iscp.algebra.lookup_plan import statements_of
from iscp.algebra.result_types import OTHER
from iscp.algebra.stored_query import with_fields_as_columns, without_unread_columns
from iscp.model.query_plan import NotRanged, QueryShape, undecided_reason
from iscp.model.sql.sql_names import RESERVED_PREFIX, SIZE_MAX, quoted, reserved_names, too_deep
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import first_line
from iscp.model.values.watermark import COLLATIONS
from iscp.spark.spark_engine import session_of, settings_for, without_rules
from iscp.spark.spark_errors import spark_faults, spark_message
from iscp.spark.spark_frames import restrict_condition, restrict_query, run_nothing
from iscp.system.late_imports import E, T
from iscp.views.catalyst.algebra_reader import QueryAlgebra, ResultKeys, read_algebra
from iscp.views.catalyst.catalyst import Catalyst, classes_of
from iscp.views.catalyst.plan_tree import SESSION_MARK, PlanNode, needed_columns, read_tree, stored_input
from iscp.views.catalyst.time_marks import VIEW_ZONE, TimeMarks, changing, special_time
from iscp.views.changes.group_changes import GroupSums, find_group_sums, find_sums_at_top
from iscp.views.ranges.range_ways import find_ranged_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- queries ----------------------------------------------------------------------------------------------------------
# A query that no view can maintain is refused.

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
    # What a query says of days is not to be another thing on a node of another zone: analyzed expressions retain it.
    "spark.sql.session.timeZone": VIEW_ZONE,
}


OPERATORS_NESTED_MAX = 100
"""Operators above each other of a query that DuckDB computes changes of; a deeper one is left to Spark."""

_TOO_MUCH = f"a function such as repeat or sequence would make more than {SIZE_MAX} characters or elements"

STACK_FULL = "StackOverflowError"
"""The error of the JVM for a query that is too deep for one of its threads, which goes on."""

ShapeQuery = Callable[[str, Mapping[str, str]], QueryShape]
"""A function as Catalog.query_shape."""


@dataclass(frozen=True, slots=True)
class AnalyzedQuery:
    """An analyzed query. `columns` are the result's; `catalyst` is that of the session whose plans the tree has.

    `stored` is the node whose rows are stored beside the target, as `sums` where these are there; `stored_keys` and
    `keys` distinguish its rows, and those of the result. `needed` has for each table the columns that the result
    follows from. `undecided` are functions that something in it is decided by, and that give another value each time.
    `named` are the tables that the query names. `algebra` is the same query for the planner.
    """

    root: PlanNode
    columns: T.StructType
    catalyst: Catalyst
    stored: PlanNode | None
    sums: GroupSums | None
    stored_keys: ResultKeys | None
    keys: ResultKeys | None
    needed: Mapping[str, frozenset[str]]
    undecided: str
    named: frozenset[str]
    algebra: QueryAlgebra

    @property
    def sums_at_top(self) -> GroupSums | None:
        """Return the groups at the top whose rows follow from stored sums, and are found by keys that they show."""
        return find_sums_at_top(self.catalyst, self.root) if self.keys is not None and self.stored is None else None

    def columns_read(self, table: str, names: Sequence[str]) -> list[str]:
        """Return the columns to read of a table's changed rows, among `names`; at least one, as it may be that rows
        only count.
        """
        needed = self.needed.get(table, frozenset())
        return [each for each in names if each in needed] or [*names[:1]]


def algebra_of(query: AnalyzedQuery) -> Rel:
    """Return a query in the algebra for others than Spark; what only Spark computes is opaque in it."""
    reason = undecided_reason(query.undecided) if query.undecided else ""
    if query.algebra.root.height > OPERATORS_NESTED_MAX:
        reason = f"more than {OPERATORS_NESTED_MAX} operators above each other"
    if not reason:
        return with_fields_as_columns(without_unread_columns(query.algebra.root))
    fields = [TypedColumn(number, each.name, OTHER) for number, each in enumerate(query.columns.fields)]
    return Opaque((), tuple(fields), "Query", reason)


def depth_of_stored(query: AnalyzedQuery) -> int | None:
    """Return how many operators lie above the input that is stored, each of which has one input, or None if none is."""
    if query.stored is None:
        return None
    depth, node = 0, query.root
    while node is not query.stored:
        depth, (node,) = depth + 1, node.inputs
    return depth


def analyze_query(
    session: SparkSession, sql: str, schemas: Mapping[str, str], *, by_value: bool = False
) -> AnalyzedQuery:
    """Return the analyzed query. `schemas` are those of the tables, as Delta and Spark write them (JSON).

    With `by_value` the result's former rows are found by their values, whatever its keys are. Raises InvalidRequest. A
    query that was registered is checked against its tables here too: another version of Spark may analyze it otherwise.
    """
    with spark_faults("analyze the query"):
        names: dict[int, str] = {}
        try:
            for name, schema_json in schemas.items():
                schema = _nullable(T.StructType.fromJson(json.loads(schema_json)))
                frame = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
                names[int(frame._jdf.queryExecution().logical().rdd().id())] = name
                frame.createOrReplaceTempView(quoted(name))
            with settings_for(session, _SETTINGS), without_rules(session, _UNFIT_RULES):
                return _analyze(session, sql, names, by_value=by_value)
        except E.AnalysisException as error:
            raise InvalidRequest(first_line(error), about="sql", remedy=_remedy(error)) from error
        except (E.PySparkException, Py4JJavaError) as error:
            if STACK_FULL in str(error):
                raise too_deep("sql") from error
            if _is_internal(error) and _fails_by_itself(session, sql, schemas):
                raise InvalidRequest(
                    f"is a query that Spark's own optimizer fails on, without iscp too: {spark_message(error)}",
                    field="sql",
                    remedy="Write it in another way, until `EXPLAIN` of it by Spark alone does not fail",
                ) from error
            raise
        finally:
            for name in schemas:
                session.catalog.dropTempView(name)


def _remedy(error: E.AnalysisException) -> str:
    """Return what to do about a query that Spark refuses."""
    if isinstance(error, E.ParseException) and "at or near '\"" in str(error):
        return 'Spark quotes names by backticks, as in `lake`.`orders`, and "…" is a text: write it so'
    return "Correct the query"


def _is_internal(error: E.PySparkException | Py4JJavaError) -> bool:
    """Return whether Spark says that it broke a rule of its own, and not that something it needs is missing or full."""
    return "SQLSTATE: XX" in str(error)


def _fails_by_itself(session: SparkSession, sql: str, tables: Collection[str]) -> bool:
    """Return whether plain Spark has a fault of its own with the query: then it is the query's, and does not pass."""
    try:
        run_nothing(session, restrict_query(session, sql, tables)[0]).optimizedPlan()
    except (E.PySparkException, Py4JJavaError) as error:
        return _is_internal(error)
    return False


def query_shaper(session: SparkSession) -> ShapeQuery:
    """Return a function that analyzes queries in sessions of their own; it runs no job."""

    def shape(sql: str, schemas: Mapping[str, str]) -> QueryShape:
        found = analyze_query(session_of(session.newSession), sql, schemas)
        stored = found.stored
        by_group = found.sums is not None or found.sums_at_top is not None
        whole = {name: _whole(found, name) for name in schemas}
        stored_operator = stored.operator if stored is not None else None
        schema_json, algebra = str(found.columns.json()), algebra_of(found)
        by_spark = translate(algebra).gaps
        return QueryShape(
            found.root.operator,
            schema_json,
            found.named,
            stored_operator,
            by_group,
            whole,
            found.undecided,
            by_spark,
            () if by_spark else statements_of(algebra),
        )

    return shape


def _whole(query: AnalyzedQuery, name: str) -> str:
    found = find_ranged_rows(query.catalyst, query.root, query.stored, query.sums, {name})
    return found.reason if isinstance(found, NotRanged) else ""


def _analyze(session: SparkSession, sql: str, names: Mapping[int, str], *, by_value: bool) -> AnalyzedQuery:
    parsed, named = restrict_query(session, sql, names.values())
    execution = run_nothing(session, parsed)
    analyzed = execution.analyzed()
    if not analyzed.deterministic():
        raise changing()
    _refuse_special_time(special_time(session, sql, analyzed))
    catalyst = Catalyst(session)
    marks = TimeMarks(session, catalyst)
    bounded = classes_of(session._jvm).sizes.bounded(analyzed, SIZE_MAX, _TOO_MUCH)
    marked = marks.marked(bounded)
    if marks.values or not bounded.fastEquals(analyzed):
        execution = run_nothing(session, marked)
    plan = catalyst.ordered(execution.optimizedPlan())
    kept = _Kept.of(catalyst, read_tree(catalyst, catalyst.reproducible(plan), names, marks.values))
    if (found := kept.root if by_value else kept.found_by_value) is not None:
        exact = catalyst.reproducible(plan, found.plan)
        if not exact.fastEquals(kept.root.plan):
            kept = _Kept.of(catalyst, read_tree(catalyst, exact, names, marks.values))
            found = kept.root if by_value else kept.found_by_value
    columns = T.StructType.fromJson(json.loads(analyzed.schema().json()))
    for each in columns.fields:
        each.metadata.pop(SESSION_MARK, None)  # or whoever groups by that column of the target merges what overlaps
    undecided = catalyst.undecided((found or kept.recomputed).plan, found and found.plan)
    return AnalyzedQuery(
        kept.root,
        columns,
        catalyst,
        kept.stored,
        kept.sums,
        kept.stored_keys,
        kept.keys,
        needed_columns(catalyst, kept.root),
        undecided,
        named,
        kept.algebra,
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A query's tree, and what of it is stored beside the target, as AnalyzedQuery has both."""

    root: PlanNode
    stored: PlanNode | None
    sums: GroupSums | None
    stored_keys: ResultKeys | None
    keys: ResultKeys | None
    algebra: QueryAlgebra

    @classmethod
    def of(cls, catalyst: Catalyst, root: PlanNode) -> _Kept:
        stored = stored_input(root)
        sums = find_group_sums(catalyst, root, stored)
        stored = stored if sums is None else sums.node
        algebra = read_algebra(catalyst, root)
        stored_keys = algebra.result_keys(stored) if stored else None
        return cls(root, stored, sums, stored_keys, algebra.result_keys(root), algebra)

    @property
    def found_by_value(self) -> PlanNode | None:
        """Return the operator whose former rows a refresh computes, and finds in a table, or None: keys find them."""
        return None if self.sums is not None or self._groups else self.stored or self.root

    @property
    def recomputed(self) -> PlanNode:
        """Return the operator of which a refresh has to know what it gave before the changes, in whole or by keys."""
        return self._groups or self.stored or self.root

    @property
    def _groups(self) -> PlanNode | None:
        """Return the groups whose rows are replaced by their keys."""
        keys = self.stored_keys if self.stored else self.keys
        return keys.node if keys is not None and keys.unique else None


def _refuse_special_time(found: str) -> None:
    if found:
        raise InvalidRequest(
            f"has {found}, of which Spark makes the time at which it reads the query, once and for all",
            field="sql",
            remedy="Write current_timestamp() or current_date()",
        )


def _nullable(schema: T.StructType) -> T.StructType:
    """Return the schema with all columns nullable.

    Tables become nullable later, and the optimizer drops what a column that is never null does not need.
    """
    for each in schema.fields:
        each.nullable = True
    return schema


# --- filters ----------------------------------------------------------------------------------------------------------

AnalyzeCondition = Callable[[str, str], str]
"""A function that returns why a condition (2nd) on rows of a schema (1st, JSON) is refused; empty: it is not. It raises
InvalidRequest for a condition that reads more than the rows.
"""


def condition_analyzer(beside: SparkSession) -> AnalyzeCondition:
    """Return a function that analyzes conditions in a session of its own; it runs no job."""
    session = session_of(beside.newSession)
    jvm: Any = session._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern

    def analyze(schema_json: str, condition: str) -> str:
        with spark_faults("analyze a condition"):
            schema = T.StructType.fromJson(json.loads(schema_json))
            rows = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
            try:
                restrict_condition(session, condition)
                execution = rows.where(condition)._jdf.queryExecution()
                execution.optimizedPlan()  # where constants are computed: what ends Spark ends it here, and not later
                plan = execution.analyzed()
            except E.AnalysisException as error:
                return first_line(error)
            except Py4JJavaError as error:
                if STACK_FULL in str(error):
                    raise too_deep("where") from error
                raise
            # The time and the user are taken for constants there, of each query again.
            changing = not plan.deterministic() or plan.containsPattern(patterns.CURRENT_LIKE())
            by = special_time(session, condition, plan)
            because = f", by {by}, of which Spark makes the time at which it reads the condition" if by else ""
            return f"its outcome changes each time that it is evaluated{because}" if changing or by else ""

    return analyze


# --- columns of a result ----------------------------------------------------------------------------------------------
# A table must be able to have columns of these names and types.

_SIGNS = " ,;{}()\n\t="
"""Signs that no column of a table without mapped names has (Delta's own rule)."""

_RESERVED = re.compile(rf"(?<!\w){RESERVED_PREFIX}\w*", re.IGNORECASE)
_REMEDIES = (
    (re.compile(r"void"), "Say of which type it is, as CAST(NULL AS STRING)"),
    (re.compile(r"interval.*"), "Cast it to a text; or give what it is counted in, as timestampdiff(SECOND, …, …)"),
    (re.compile(r"time\(\d\)"), "Cast it to a text"),
    (re.compile(r"(geometry|geography).*"), "Give it as WKB, by st_asbinary(…)"),
)
"""Remedies for types that Delta Lake lacks, as Spark writes them."""


def refuse_reserved_names(sql: str, field: str) -> None:
    """Raise InvalidRequest for a query in which a name begins as those that a view's rows are given themselves.

    Such a text is refused wherever it is: a column's name may come from a schema or a key that is one.
    """
    if found := _RESERVED.search(sql):
        raise InvalidRequest(
            f"has {found[0]}, and names that begin with {RESERVED_PREFIX} are those of columns that rows are given",
            field=field,
            remedy="Use another name",
        )


def refuse_columns(schema_json: str, field: str) -> None:
    """Raise InvalidRequest for columns that a table cannot have. `schema_json` is the result's, as Spark writes it."""
    seen: set[str] = set()
    for column in json.loads(schema_json)["fields"]:
        name = str(column["name"])
        if name.lower() in seen:
            raise InvalidRequest(
                f"gives two columns the name {name!r}", field=field, remedy="Give one of them another, by AS"
            )
        if reserved_names([name]):
            raise InvalidRequest(
                f"gives a column the name {name!r}, which a table's changes have themselves",
                field=field,
                remedy="Give it another, by AS",
            )
        if any(sign in name for sign in _SIGNS):
            raise InvalidRequest(
                f"gives a column the name {name!r}, which a table cannot have", field=field, remedy="Name it, by AS"
            )
        _refuse_type(name, column, field)
        seen.add(name.lower())


def _refuse_type(name: str, column: Mapping[str, Any], field: str) -> None:
    kinds = [*_types(column["type"])]
    for kind in kinds:
        for pattern, remedy in _REMEDIES:
            if isinstance(kind, str) and pattern.fullmatch(kind):
                raise InvalidRequest(
                    f"gives the column {name!r} a value of the type {kind}, which a table cannot keep",
                    field=field,
                    remedy=remedy,
                )
    within = [each for kind in kinds if isinstance(kind, Mapping) for each in kind.get("fields", ())]
    if any(COLLATIONS in each["metadata"] for each in (column, *within)):
        raise InvalidRequest(
            f"gives the column {name!r} a text with a collation, which a table cannot keep",
            field=field,
            remedy=f"Give it as {name} COLLATE UTF8_BINARY; conditions and groups may have collations",
        )


def _types(kind: Any) -> Iterator[Any]:
    """Yield a type, as Spark writes it, and the types that it is made of."""
    yield kind
    match kind:
        case {"type": "struct", "fields": fields}:
            for each in fields:
                yield from _types(each["type"])
        case {"type": "array", "elementType": element}:
            yield from _types(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _types(key)
            yield from _types(value)
