"""Compare a view with its query's result at the versions and instant of its last refresh, and recompute it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.near_rows import are_near, has_doubles
from iscp.consumers.commit_tag import commit_tag
from iscp.consumers.view.view_spec import ViewSpec
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import Watermark
from iscp.ports.consumer import Check, ConsumeContext, Consumed, ConsumerEnvironment
from iscp.ports.rows import Rows
from iscp.ports.sink import Compared, Sink
from iscp.views.refresh.table_spans import RefreshEnd, tables_at
from iscp.views.refresh.view_query import ViewQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ViewCheck(Check):
    """The comparison of a view."""

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
