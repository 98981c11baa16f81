"""A replica: a Delta table that holds the source's rows, by key, with chosen columns and a filter.

Without a key it is append-only and holds every row ever inserted. What cannot be followed by changes is mended
by difference: the source's rows at a version against the target's own, by key.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.consumers.check import ReplicaCheck
from iscp.consumers.checks import CONSUMER_PATH, check_columns, wanted_columns
from iscp.core.errors import ErrorCode, InvalidRequest, PermanentError, TableNotFound
from iscp.core.iteration import DataType
from iscp.core.job import JobRow
from iscp.core.kept import OP, kept_op
from iscp.core.quoting import quoted
from iscp.core.spec import ConsumerSpec
from iscp.core.watermark import Position, Watermark
from iscp.ports.pipeline import (
    Catalog,
    Changes,
    ChangesUnavailable,
    CommitTag,
    ConsumeContext,
    Consumed,
    Needs,
    Retriever,
    Sink,
    SinkFactory,
    TableDescription,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = "_iscp_rows"
_DUPLICATES_SHOWN = 3
# Of these types, also within others, Spark cannot tell whether two values are equal.
_UNCOMPARED = re.compile(r':"(map|variant)"')


class Replica:
    """The kind `replica` (port ConsumerKind)."""

    name = "replica"
    shared_target = False
    needs = Needs()

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        if not spec.target:
            raise InvalidRequest(
                "is missing", field=f"{CONSUMER_PATH}.target", remedy="Give the path or URI of the target"
            )
        target = _normalized(spec.target, catalog)
        if target == source.uri or target.startswith(source.uri + "/") or source.uri.startswith(target + "/"):
            raise InvalidRequest(
                "is the source, or lies within it", field=f"{CONSUMER_PATH}.target", remedy="Choose another path"
            )
        check_columns(spec, source, catalog)
        _refuse_unusable(target, catalog)

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        return catalog.normalize(spec.target) if spec.target else ""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return wanted_columns(spec, source)

    def open(self, row: JobRow, sinks: SinkFactory) -> ReplicaConsumer:
        return ReplicaConsumer(row.spec.consumer, sinks(row.spec.consumer.target))

    def check(self, row: JobRow, sinks: SinkFactory) -> ReplicaCheck:
        return ReplicaCheck(row.spec.consumer, sinks(row.spec.consumer.target), self.open(row, sinks).filtered)


def _normalized(target: str, catalog: Catalog) -> str:
    try:
        return catalog.normalize(target)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=f"{CONSUMER_PATH}.target", remedy=error.remedy) from error


def _refuse_unusable(target: str, catalog: Catalog) -> None:
    """A target must be new, empty, or have been kept by iscp before."""
    try:
        there = catalog.describe(target)
    except TableNotFound:
        return
    fault, remedy = there.target_fault
    if fault:
        raise InvalidRequest(fault, field=f"{CONSUMER_PATH}.target", remedy=remedy, code=ErrorCode.TARGET_UNUSABLE)
    if not there.empty and not there.sink_seq:
        raise InvalidRequest(
            "is a table with rows that iscp did not write",
            field=f"{CONSUMER_PATH}.target",
            remedy="Choose a new path, or empty the table",
            code=ErrorCode.TARGET_UNUSABLE,
        )


class ReplicaConsumer:
    """Keeps one replica (port Consumer)."""

    def __init__(self, spec: ConsumerSpec, sink: Sink) -> None:
        self._spec = spec
        self._sink = sink

    def position(self, row: JobRow) -> Position:
        return self._sink.position(row)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        kept = self._kept(source)
        context.guard.check()
        return self._sink.claim(kept.schema.json(), _tag(context, None, DataType.SNAPSHOT))

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        tag = _tag(context, retriever, retriever.data_type)
        if retriever.data_type is DataType.TAIL:
            return self._tail(context, retriever, tag)
        wanted = self.filtered(retriever.snapshot)
        same_schema = self._sink.schema_matches(wanted.schema.json())
        comparable = self._spec.key and same_schema and not _UNCOMPARED.search(wanted.schema.json())
        if retriever.data_type is DataType.DIFFERENCE and comparable:
            return self._difference(context, wanted, tag)
        if not same_schema:
            self._refuse_duplicates(wanted)
            return Consumed(self._sink.replace(wanted, tag, context.guard), 0, 0)
        self._refuse_duplicates(wanted)
        manifest = self._sink.stage(wanted, tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _tail(self, context: ConsumeContext, retriever: Retriever, tag: CommitTag) -> Consumed:
        changes = retriever.changes(self._spec.key)
        frame = self._kept_changes(changes)
        if not self._sink.schema_matches(frame.drop(OP).schema.json()):
            raise ChangesUnavailable("the source's columns are not the target's any more")
        if self._appendable(changes, tag):
            position = self._sink.append(frame.drop(OP), tag, context.guard)
        else:
            position = self._sink.merge(context.session, frame, self._spec.key, tag, context.guard)
        return Consumed(position, changes.rows, 0)

    def _appendable(self, changes: Changes, tag: CommitTag) -> bool:
        """Whether rows can be added without a look at those that are there: new ones, whose keys cannot be there."""
        if changes.updates or changes.deletes:
            return False
        return not self._spec.key or self._sink.lacks(changes.bounds, tag.base_version)

    def _difference(self, context: ConsumeContext, wanted: DataFrame, tag: CommitTag) -> Consumed:
        """What the target lacks, has too much, or has otherwise than the source, as ordinary changes."""
        self._refuse_duplicates(wanted)
        key = self._spec.key
        held = self._sink.rows(context.session).select(*[F.col(quoted(name)) for name in wanted.columns])
        if _shared_keys(held, key):
            # A merge cannot take away one of two rows with one key.
            return Consumed(self._sink.replace(wanted, tag, context.guard), 0, 0)
        frame = _differing(wanted, held, key).persist()
        try:
            rows = frame.count()
            position = self._sink.merge(context.session, frame, key, tag, context.guard)
        finally:
            frame.unpersist(blocking=False)
        return Consumed(position, rows, 0)

    def _kept(self, frame: DataFrame) -> DataFrame:
        return frame.select(*[F.col(quoted(name)) for name in self._spec.columns]) if self._spec.columns else frame

    def filtered(self, frame: DataFrame) -> DataFrame:
        return self._kept(frame.where(self._spec.where) if self._spec.where else frame)

    def _kept_changes(self, changes: Changes) -> DataFrame:
        frame = changes.frame
        if self._spec.where:
            frame = frame.withColumn(OP, F.expr(kept_op(self._spec.where))).where(f"{OP} IS NOT NULL")
        if not self._spec.columns:
            return frame
        return frame.select(*[F.col(quoted(name)) for name in self._spec.columns], OP)

    def _refuse_duplicates(self, frame: DataFrame) -> None:
        if not self._spec.key:
            return
        shared = _shared_keys(frame, self._spec.key)
        if shared:
            raise PermanentError(
                f"rows of the source share a key, as {'; '.join(shared)}",
                field=f"{CONSUMER_PATH}.key",
                remedy="Choose a key that is unique, or mend the source",
                code=ErrorCode.DUPLICATE_KEY,
            )


def _shared_keys(frame: DataFrame, key: Sequence[str]) -> list[str]:
    counted = frame.groupBy(*[F.col(quoted(name)) for name in key]).agg(F.count("*").alias(_ROWS))
    shared = counted.where(f"{_ROWS} > 1").drop(_ROWS)
    return [str(row.asDict()) for row in shared.limit(_DUPLICATES_SHOWN).collect()]


def _differing(wanted: DataFrame, held: DataFrame, key: Sequence[str]) -> DataFrame:
    """Rows of `wanted` that `held` lacks or has otherwise (op `u`), and keys that only `held` has (op `d`)."""
    on = reduce(lambda a, b: a & b, [F.col(f"w.{quoted(name)}").eqNullSafe(F.col(f"h.{quoted(name)}")) for name in key])
    w, h = wanted.withColumn("_iscp_w", F.lit(1)).alias("w"), held.withColumn("_iscp_h", F.lit(1)).alias("h")
    same = reduce(
        lambda a, b: a & b,
        [F.col(f"w.{quoted(name)}").eqNullSafe(F.col(f"h.{quoted(name)}")) for name in wanted.columns],
    )
    joined = w.join(h, on, "full_outer").where(F.col("_iscp_w").isNull() | F.col("_iscp_h").isNull() | ~same)
    gone = F.col("_iscp_w").isNull()
    columns = [
        F.when(gone, F.col(f"h.{quoted(name)}")).otherwise(F.col(f"w.{quoted(name)}")).alias(name)
        for name in wanted.columns
    ]
    return joined.select(*columns, F.when(gone, "d").otherwise("u").alias(OP))


def _tag(context: ConsumeContext, retriever: Retriever | None, kind: DataType) -> CommitTag:
    return CommitTag(
        seq=context.position.seq + 1,
        job_id=context.row.job_id,
        source_id=context.source_id,
        from_version=retriever.from_version if retriever else -1,
        watermark=retriever.to if retriever else Watermark(),
        epoch=context.epoch,
        base_version=context.position.base_version,
        attempt=uuid.uuid4().hex[:12],
        kind=kind.value if retriever else "claim",
    )
