"""A kind of consumer that keeps in a Delta table how many rows each of several tables has, and reads them itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.consumers.source_rows import commit_tag
from iscp.model.job.job_row import JobRow
from iscp.model.rows.key_ranges import Op
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import OP
from iscp.model.values.watermark import NOTHING_APPLIED, Position, SourceMark, SourceMarks, Watermark
from iscp.ports.consumer import (
    ConsumeContext,
    Consumed,
    Consumer,
    ConsumerEnvironment,
    ConsumerKind,
    Refreshed,
    RefreshOrder,
    Retriever,
)
from iscp.ports.source import Catalog, Rows, TableDescription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = (
    '{"type":"struct","fields":['
    '{"name":"name","type":"string","nullable":true,"metadata":{}},'
    '{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
)


class CountingView(Consumer):
    """All rows are written where all have to be recomputed, and else merged by name."""

    def __init__(self, row: JobRow, environment: ConsumerEnvironment) -> None:
        self._tables: Mapping[str, str] = row.spec.consumer.options["tables"]
        self._source = environment.source
        self._sink = environment.sink(row.spec.consumer.target)

    def position(self, row: JobRow) -> Position:
        return self._sink.position(row)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        return self._sink.claim(SCHEMA, commit_tag(context, "claim", NOTHING_APPLIED, Watermark()), first=True)

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        raise AssertionError("it is handed no rows")

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        marks = self._newest(context.row.table_uri, order)
        held = context.position
        if marks == held.sources and not order.full:
            return Refreshed(Consumed(held, 0, 0), "none", "no table has moved", committed=False)
        strategy = "full" if order.full else "incremental"
        tag = commit_tag(context, strategy, held.watermark.version, order.to.to)
        tag, session, sink = replace(tag, sources=marks), context.session, self._sink
        frame = session.sql(" UNION ALL ".join(self._counts(context, marks)))
        if order.full:
            position = sink.publish([sink.stage(Rows(lambda: frame), tag)], tag, context.guard)
        else:
            frame = session.sql(" UNION ALL ".join(self._counts(context, marks))).selectExpr(
                "*", f"'{Op.UPDATE}' AS {OP}"
            )
            position = sink.merge(session, Rows(lambda: frame), ["name"], tag, context.guard)
        return Refreshed(Consumed(position, len(marks), 0), strategy, order.full)

    def _newest(self, own: str, order: RefreshOrder) -> SourceMarks:
        spans = {uri: order.to if uri == own else self._source.newest(uri) for uri in self._tables.values()}
        return {uri: SourceMark(span.table_id, span.to) for uri, span in spans.items()}

    def _counts(self, context: ConsumeContext, marks: SourceMarks) -> list[str]:
        version = {name: marks[uri].watermark.version for name, uri in self._tables.items()}
        rows = {n: self._source.snapshot(context.session, uri, version[n]) for n, uri in self._tables.items()}
        return [f"SELECT '{name}' AS name, CAST({frame.count()} AS BIGINT) AS n" for name, frame in rows.items()]


class CountingViewKind(ConsumerKind):
    name = "view"

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        """Takes anything."""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return ()

    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        return {name: catalog.normalize(uri) for name, uri in spec.options["tables"].items()}

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> CountingView:
        return CountingView(row, environment)
