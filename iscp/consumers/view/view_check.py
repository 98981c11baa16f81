"""Beside the refreshes of a view: its comparison with its query's result, its explanation, and the build of its first
rows by ranges.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from iscp.consumers.source_rows import commit_tag
from iscp.consumers.view.view_consumer import ViewConsumer
from iscp.consumers.view.view_spec import ViewSpec
from iscp.delta.rows.net_changes import are_near, has_doubles
from iscp.model.build.build_task import BuildId, BuildTerms
from iscp.model.job.registration_id import logged_job
from iscp.model.query_plan import (
    CHANGED_ROWS,
    EXACT_REMEDY,
    ExplainedOperator,
    KeptTable,
    NotRanged,
    Operator,
    OperatorKind,
    OperatorUpkeep,
    QueryExplanation,
    QueryShape,
    explain_operators,
    undecided_reason,
    upkeep_of,
)
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX, quoted
from iscp.model.values.errors import EngineError, ErrorCode, PermanentError, StorageError, TableNotFound
from iscp.model.values.progress import UNKNOWN, TableSize
from iscp.model.values.watermark import NOTHING_APPLIED, Watermark
from iscp.ports.consumer import Check, ConsumeContext, Consumed, ConsumerEnvironment, Refreshed, RefreshOrder
from iscp.ports.sink import Compared, Manifest, Sink, StagedRanges
from iscp.ports.source import Catalog, ChangeSource, Rows
from iscp.spark.spark_errors import concerns_values, reading_changes, translating
from iscp.system.late_imports import E, F, T
from iscp.views.ranges.range_ways import RangedRows, RangeWay, find_ranged_rows
from iscp.views.refresh.refresh_choice import CostEstimator, Strategy
from iscp.views.refresh.table_spans import RefreshEnd, measuring, size_of_tables, tables_at
from iscp.views.refresh.view_query import ViewQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


# --- the comparison ---------------------------------------------------------------------------------------------------


class ViewCheck(Check):
    """Compares a view with its query's result at the versions and instant of its last refresh, and recomputes it."""

    def __init__(self, view: ViewSpec, sink: Sink, environment: ConsumerEnvironment) -> None:
        self._view = view
        self._sink = sink
        self._source = environment.source

    @contextmanager
    def compare(self, context: ConsumeContext, source: DataFrame) -> Iterator[Compared]:
        wanted = self._query(context).all_rows()
        if not self._sink.schema_matches(wanted.schema.json()):
            raise PermanentError(
                "the target's columns are not those of the query's result",
                remedy="`iscp-admin notify` has the view brought to them",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        with self._sink.compare(wanted, (), context.position.base_version) as compared:
            unlike = not compared.comparison.equal
            if unlike and has_doubles(wanted) and are_near(wanted, self._sink.rows(context.session)):
                compared = Compared(replace(compared.comparison, missing=0, extra=0, different=0, samples=()))
            yield compared

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        tag = commit_tag(context, "repair", watermark.version, watermark)
        if compared.repair is None:
            # Others have written, and all is equal again: the commit says so.
            return Consumed(self._sink.claim("", tag), 0, 0)
        query = self._query(context)
        rows = query.all_rows()
        tag = replace(tag, totals=query.totals)
        manifest = self._sink.stage(Rows(lambda: rows), tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _query(self, context: ConsumeContext) -> ViewQuery:
        end = RefreshEnd(tables_at(self._source, context.position.sources), context.position.as_of_s)
        return ViewQuery(context.session, self._source, self._view.query, end, listed=False)


# --- the explanation --------------------------------------------------------------------------------------------------

_RESULT, _STATE = "the result", "what is kept besides"


def explain_view(shape: QueryShape, tables: Mapping[str, str], target: str, catalog: Catalog) -> QueryExplanation:
    """Explain how a view follows changes, or would: its operators, what a change costs at each, and what is stored
    already.

    `tables` are URIs by their names in the query; `target` is empty where there is none yet.
    """
    found = {name: _size_of(uri, catalog) for name, uri in tables.items()}
    sizes = {name: size for name, size in found.items() if size is not None and size.bytes >= 0}
    stored = _stored_tables(target, catalog) if target else ()
    known = {}
    for each in stored:
        operator = shape.root if each.holds == _RESULT else shape.stored
        if operator is not None:
            known[operator] = each.size.rows
    estimator = CostEstimator({name: size.rows for name, size in sizes.items()}, known)
    nodes = [operator for _, operator in shape.root.walk()]
    explained = zip(nodes, explain_operators(shape.root), strict=True)
    return QueryExplanation(
        operators=tuple(_with_state(operator, each, shape, estimator) for operator, each in explained),
        columns=_columns(shape),
        tables=tables,
        notes=tuple(_notes(shape)),
        sizes=sizes,
        kept=stored,
        statements=shape.statements,
    )


def _with_state(
    operator: Operator, each: ExplainedOperator, shape: QueryShape, estimator: CostEstimator
) -> ExplainedOperator:
    if shape.by_group and operator is (shape.stored or shape.root):
        each = replace(each, upkeep=OperatorUpkeep.STATE, state="each group's count and sums")
    elif operator.adds_up:
        each = replace(each, state="its counts, sums and extremes, in the view's commits")
    elif operator is shape.stored:
        each = replace(each, state="its rows")
    if shape.undecided:
        each = replace(each, upkeep=OperatorUpkeep.WHOLE)
        if operator is shape.root:
            each = replace(each, reason=undecided_reason(shape.undecided), remedy=EXACT_REMEDY)
    return replace(each, costs=estimator.costs(operator, each.upkeep))


def _columns(shape: QueryShape) -> dict[str, str]:
    fields = json.loads(shape.schema_json)["fields"]
    kinds = {field["name"]: field["type"] for field in fields}
    return {name: kind if isinstance(kind, str) else kind["type"] for name, kind in kinds.items()}


def _stored_tables(target: str, catalog: Catalog) -> tuple[KeptTable, ...]:
    places = {target: _RESULT, target + VIEW_STATE_SUFFIX: _STATE}
    sizes = {uri: _size_of(uri, catalog) for uri in places}
    return tuple(KeptTable(uri, places[uri], size) for uri, size in sizes.items() if size is not None)


def _size_of(uri: str, catalog: Catalog) -> TableSize | None:
    """Return the size of a table, or None if there is no table."""
    try:
        return catalog.size(uri)
    except TableNotFound:
        return None
    except StorageError:
        return TableSize(UNKNOWN, UNKNOWN)


def _notes(shape: QueryShape) -> list[str]:
    kinds = {each.kind for _, each in shape.root.walk() if upkeep_of(each) is OperatorUpkeep.WHOLE}
    notes = [
        f"Costs are estimates for {CHANGED_ROWS:,} changed rows of a table, from the rows of tables alone: each passes "
        "every filter, and meets one row in a join."
    ]
    if shape.by_group:
        notes.append("Where many rows change the groups are recomputed for the keys that changed, by Spark.")
    if OperatorKind.LIMIT in kinds:
        notes.append(
            "Rows that tie in ORDER BY at the limit are ordered by all their columns; Spark alone may take others."
        )
    for name, why in shape.whole.items():
        how = f"on one node, as {why}" if why else "by ranges of it, on all nodes"
        notes.append(f"Registered on {name}, where that is large, its first rows are computed {how}.")
    if shape.by_spark:
        notes.append(f"Spark computes all changes, however small, as DuckDB has not: {'; '.join(shape.by_spark)}.")
    else:
        notes.append("Where few rows change DuckDB computes what follows, in the node's process and without Spark.")
    return notes


# --- the build by ranges ----------------------------------------------------------------------------------------------


class RangeBuiltView(ViewConsumer):
    """A view that can be built by ranges (port RangeRefreshed).

    Its first rows are built of ranges of its own table, which all nodes compute, joined with other tables. When the
    build is requested it is decided once of which versions of the tables all ranges are computed, and how, and written
    where the ranges are staged (BuildTerms). The iteration that publishes puts together what is staged: rows are the
    target's as they are, groups and totals are few.
    """

    _whole = ""
    """The reason why all rows are computed at once, though the table is large."""

    @property
    def range_refreshed(self) -> RangeBuiltView:
        return self

    def range_terms(self, context: ConsumeContext, order: RefreshOrder) -> BuildTerms | None:
        with translating("plan the view's ranges"):
            end = self._end(order.to)
            query = self._query(context, end)
            if not self._sink.schema_matches(query.analyzed.columns.json()):
                return None
            found = self._ranged(query)
        if isinstance(found, NotRanged):
            self._whole = found.reason
            return None
        return BuildTerms(end.marks, query.as_of_s, found.way.value, passing=found.way is not RangeWay.ROWS)

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        done = super().refresh(context, order)
        return replace(done, reason=f"{done.reason}, on one node: {self._whole}") if self._whole else done

    def ranges(self, build: BuildId) -> StagedRanges:
        return self._sink.ranges(build)

    def range_rows(self, rows: DataFrame, terms: BuildTerms) -> DataFrame:
        with translating("compute a range of the view"), reading_changes("open the view's tables"):
            # In no memory of the view's: ranges of it may be computed side by side.
            query = ViewQuery(rows.sparkSession, self._source, self._view.query, _end_of(self._source, terms))
            ranged = self._ranged_by(query, terms)
            if ranged is None:
                raise PermanentError(f"the view is built of ranges by {terms.way}, and would not be here")
            for node in ranged.own:
                columns = query.schemas[node.operator.table].names
                query.given.rows[node] = rows.select(*[F.col(quoted(name)) for name in columns])
            part = ranged.part(query.plans_at_ends())
            return part.toDF(*query.columns) if ranged.way is RangeWay.ROWS else part

    def publish_ranges(
        self, context: ConsumeContext, order: RefreshOrder, manifests: Sequence[Manifest], terms: BuildTerms
    ) -> Refreshed | None:
        with translating("publish the view"), measuring(self._clock) as parts, reading_changes("publish the view"):
            end = _end_of(self._source, terms)
            query = self._query_anew(context, end)
            try:
                consumed = self._publish(context, query, end, manifests, terms)
            except (EngineError, E.PySparkException, Py4JJavaError) as error:
                if not concerns_values(error):
                    raise
                log.warning("view.unpublished", extra=logged_job(context.row) | {"error": str(error)})
                return None
            if consumed is None:
                return None
            self._note.store()
            size = size_of_tables(self._source, end.marks)
        due_at_s = self._memory.due_at_s(end.instant_s, self._clock.now_s(), self._interval_s)
        reason = f"{order.full}, by ranges of {self._own}"
        done = Refreshed(consumed, Strategy.FULL, reason, parts_s=parts.parts_s, due_at_s=due_at_s)
        done = self._agreed_end(end, None).noted(done)
        return replace(done, rows_in=max(size.rows, 0), bytes_in=max(size.bytes, 0))

    def _publish(
        self,
        context: ConsumeContext,
        query: ViewQuery,
        end: RefreshEnd,
        manifests: Sequence[Manifest],
        terms: BuildTerms,
    ) -> Consumed | None:
        ranged = self._ranged_by(query, terms)
        if ranged is None:
            return None
        if ranged.way is RangeWay.ROWS:
            return self._publish_rows(context, query, end, manifests)
        plans = query.plans_at_ends()
        kinds = ranged.part(plans).schema
        if any(_shape(each) != kinds.simpleString() for each in manifests):
            return None
        session, empty = context.session, not manifests
        parts = session.createDataFrame([], kinds) if empty else self._sink.staged_rows(session, manifests)
        ranged.give(plans, parts, query.given)
        return self._write_all(context, query, end)

    def _publish_rows(
        self, context: ConsumeContext, query: ViewQuery, end: RefreshEnd, manifests: Sequence[Manifest]
    ) -> Consumed | None:
        """Publish the staged files as the target's; return None if their columns are others."""
        if not all(self._sink.schema_matches(each.schema_json) for each in manifests):
            return None
        if query.stores_totals:
            query.all_rows()  # finds out the totals of other tables
        own = end.tables[self._own].to
        tag = commit_tag(context, "snapshot", NOTHING_APPLIED, own, end.marks, query.as_of_s)
        position = self._sink.publish(manifests, replace(tag, totals=query.totals), context.guard)
        rows, size = (sum(getattr(each, name) for each in manifests) for name in ("rows", "bytes"))
        return Consumed(replace(position, sources=tag.sources), rows, size)

    def _ranged(self, query: ViewQuery) -> RangedRows | NotRanged:
        own = frozenset(name for name, uri in self._view.query.tables.items() if uri == self._own)
        return find_ranged_rows(query.analyzed.catalyst, query.analyzed.root, query.stored, query.sums, own)

    def _ranged_by(self, query: ViewQuery, terms: BuildTerms) -> RangedRows | None:
        """Return how the ranges were decided to be computed, or None if it would be decided otherwise here, as by a
        node of another version.
        """
        found = self._ranged(query)
        return None if isinstance(found, NotRanged) or found.way != terms.way else found


def _shape(manifest: Manifest) -> str:
    return T.StructType.fromJson(json.loads(manifest.schema_json)).simpleString()


def _end_of(source: ChangeSource, terms: BuildTerms) -> RefreshEnd:
    return RefreshEnd(tables_at(source, terms.sources), terms.as_of_s)
