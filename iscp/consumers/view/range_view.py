"""Build a view's first rows of ranges of its own table, which all nodes compute, joined with other tables.

When the build is requested it is decided once of which versions of the tables all ranges are computed, and how, and
written where its ranges are staged (BuildTerms). The iteration that publishes puts together what is staged: rows are
the target's as they are, groups and totals are few.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from iscp.adapters.delta.spark.spark_errors import concerns_values, reading_changes, translating
from iscp.adapters.system.late_imports import E, F, T
from iscp.consumers.commit_tag import commit_tag
from iscp.consumers.view.view_consumer import ViewConsumer
from iscp.core.build.build_request import BuildId
from iscp.core.build.build_terms import BuildTerms
from iscp.core.job.logged_jobs import logged_job
from iscp.core.query.range_query import NotRanged
from iscp.core.query.refresh_choice import Strategy
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import EngineError, PermanentError
from iscp.core.values.watermark import NOTHING_APPLIED
from iscp.ports.consumer import ConsumeContext, Consumed
from iscp.ports.refreshing import Refreshed, RefreshOrder
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.source import ChangeSource
from iscp.views.ranges.range_ways import RangedRows, RangeWay, find_ranged_rows
from iscp.views.refresh.refresh_parts import measuring
from iscp.views.refresh.table_spans import RefreshEnd, size_of_tables, tables_at
from iscp.views.refresh.view_query import ViewQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class RangeBuiltView(ViewConsumer):
    """A view that can be built by ranges (port RangeRefreshed)."""

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
