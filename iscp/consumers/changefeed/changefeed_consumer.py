"""Write one range of a changefeed: every change, or all changes in sum, to the shard of its key, in order."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from iscp.adapters.system.late_imports import A, F
from iscp.changefeed.model.feed_ports import FeedCommit, FeedSink
from iscp.changefeed.table.widening import lost_names
from iscp.consumers.validation import unwritable_name
from iscp.core.build.build_request import BuildId
from iscp.core.job.iteration import DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.watermark_record import parse_record, position_of, record_key
from iscp.core.rows import key_ranges as ranges
from iscp.core.spec.spec import OnSchemaChange
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import Conflict, ErrorCode, InvalidRequest, PermanentError
from iscp.core.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, Consumed, RangedConsumer, Retriever
from iscp.ports.rows import Rows
from iscp.ports.sink import Manifest, StagedRanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

SHARDS_MAX = ranges.RANGES_MAX
"""Shards of a changefeed; a range of a split table then has at least one for itself."""

_HASH, _CHANGE, _VERSION, _AT = "_key_hash", "_change_type", "_commit_version", "_commit_timestamp"
_BITS = 64


class ChangefeedConsumer(RangedConsumer):
    """A consumer that writes one range of the keys of a job's feed (also port RangeBuilt).

    A new feed gets `shards` shards.
    """

    def __init__(self, row: JobRow, sink: FeedSink, shards: int) -> None:
        self._row = row
        self._shards = shards
        self._spec = row.spec.consumer
        self._sink = sink

    def position(self, row: JobRow) -> Position:
        key = record_key(row.key, self._spec.target)
        return position_of(self._sink.records([key])[key])

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        return self._sink.records(keys)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Make the feed, and no more: the snapshot that follows is one commit, and fails what is on its way too."""
        schema = A.to_arrow_schema(source.schema)
        by_name = {name.lower(): name for name in schema.names}
        chosen = [schema.field(by_name[name.lower()]).with_name(name) for name in self._spec.columns]
        row = _row_schema(pa.schema(chosen) if chosen else schema)
        self._sink.open(row, self._key(row), self._shards)
        return context.position

    def go_on_from(self, context: ConsumeContext) -> Position | None:
        """Take the feed over as Consumer says, unless it has records of ranges, which say where each key stands."""
        own, *others = (record_key(self._row.key.of_range(each), self._spec.target) for each in _with_others(self._row))
        with self._begin(pa.schema([])) as commit:
            text = commit.get(own)
            if position_of(text).base_version != context.position.base_version or text is None:
                raise Conflict(f"the feed {self._spec.target} has moved: another writer has committed")
            if any(commit.get(each) is not None for each in others):
                return None
            record = replace(
                parse_record(text),
                seq=context.position.seq + 1,
                job_id=context.row.job_id,
                origin=context.row.origin,
                from_version=context.position.watermark.version,
                epoch=context.epoch,
                attempt=uuid.uuid4().hex[:12],
            )
            commit.put(own, record.to_json())
            context.guard.check()
            commit.commit()
        return record.position

    def settled(self, position: Position) -> bool:
        return not position.void

    def tidy(self) -> None:
        self._sink.tidy()

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        tail = retriever.data_type is DataType.TAIL
        first = retriever.next() if tail else None
        row = _row_schema(
            first[0].schema if first else pa.schema([]) if tail else A.to_arrow_schema(retriever.inserts.schema)
        )
        with self._begin(row) as commit:
            if row.names:
                self._refuse_lost(commit, row)
            tables = _each(first, retriever) if tail else self._differences(commit, retriever)
            rows = sum(_add(commit, table, net=not tail) for table in tables)
            retriever.update_watermark(commit)
            commit.commit()
        return Consumed(retriever.record.position, rows, 0)

    @property
    def range_built(self) -> ChangefeedConsumer:
        return self

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        """Return whether the feed has nothing yet: what other feeds lack is found by comparing all rows."""
        names = self._chosen_columns(source).columns
        return not unwritable_name(names) and self._sink.is_untouched(self._row.key.range_id)

    def ranges(self, build: BuildId) -> StagedRanges:
        return self._sink.ranges(build)

    def wanted(self, rows: Rows) -> Rows:
        return Rows(lambda: self._hashed(rows.frame))

    def _hashed(self, rows: DataFrame) -> DataFrame:
        """Add the hash of the key, and an order in which a shard's rows are found without reading all others."""
        passing = rows.where(self._spec.where) if self._spec.where else rows
        hashed = self._chosen_columns(passing).withColumn(_HASH, F.expr(ranges.hash_sql(self._spec.key)))
        shard = F.shiftright(_HASH, _BITS - SHARDS_MAX.bit_length() + 1)
        return hashed.sortWithinPartitions(shard, *map(quoted, self._spec.key))

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        """Publish staged rows, and give them ulids: these follow from the order of all rows, which is known only
        here.
        """
        staged = self._sink.staged_rows(context.session, manifests) if manifests else None
        row = _row_schema(pa.schema([]) if staged is None else A.to_arrow_schema(staged.schema))
        rows = 0
        with self._begin(row) as commit:
            if commit.touched:
                return None
            if staged is not None:
                self._refuse_lost(commit, row)
                try:
                    rows = commit.insert_all(staged, _HASH, retriever.to_version, context.guard)
                except InvalidRequest as error:
                    log.warning("feed.misfit", extra=logged_job(self._row) | {"error": str(error)})
                    return None
            retriever.update_watermark(commit)
            commit.commit()
        return Consumed(retriever.record.position, rows, sum(each.bytes for each in manifests))

    def _begin(self, row: pa.Schema) -> AbstractContextManager[FeedCommit]:
        return self._sink.begin(row, self._key(row), self._shards, self._row.key.range_id)

    def _key(self, row: pa.Schema) -> list[str]:
        """Return the names of the key's columns as the rows have them."""
        names = {name.lower(): name for name in row.names}
        return [names.get(name.lower(), name) for name in self._spec.key]

    def _chosen_columns(self, rows: DataFrame) -> DataFrame:
        return rows.select(*map(quoted, self._spec.columns)) if self._spec.columns else rows

    def _differences(self, commit: FeedCommit, retriever: Retriever) -> Iterator[pa.Table]:
        where = ranges.condition_sql(self._spec.key, self._row.key.range_id)
        version = f"CAST({retriever.to_version} AS BIGINT) AS {_VERSION}"
        hashed = f"{ranges.hash_sql(self._spec.key)} AS {_HASH}"
        return commit.difference(retriever.inserts.drop(_HASH, _VERSION, _AT), where, (version, hashed))

    def _refuse_lost(self, commit: FeedCommit, row: pa.Schema) -> None:
        """Raise PermanentError for lost columns with `on_schema_change` stop; otherwise the feed's rows have null from
        now on.
        """
        lost = lost_names(commit.row, row)
        if lost and self._row.spec.on_schema_change is OnSchemaChange.STOP:
            raise PermanentError(
                f"the source has no column {', '.join(lost)} any more",
                about="spec.iteration.on_schema_change",
                remedy="Bring it back; or set it to evolve: the feed has nulls there then",
                code=ErrorCode.SCHEMA_CHANGED,
            )


def _with_others(row: JobRow) -> list[int]:
    """Return the row's range, and then all that share keys with it."""
    return [row.key.range_id, *ranges.overlapping(row.key.range_id)]


def _each(first: tuple[pa.Table, pa.Table] | None, retriever: Retriever) -> Iterator[pa.Table]:
    pair = first
    while pair is not None:
        yield pair[0]
        pair = retriever.next()


def _row_schema(schema: pa.Schema) -> pa.Schema:
    """Return the job's columns, all nullable, and what is in them too: they may go, or come, as long as the feed
    lives.
    """
    return pa.schema([_nullable(field) for field in schema if field.name not in (_HASH, _CHANGE, _VERSION, _AT)])


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(kind.field(number)) for number in range(kind.num_fields)])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _add(commit: FeedCommit, table: pa.Table, net: bool) -> int:
    """Add each row to the shard that its key's hash lies in, in order; return the number of rows."""
    rows, levels = _shaped(table, commit.row), commit.shards.bit_length() - 1
    if not len(rows):
        return 0
    operations, versions = table[_CHANGE].combine_chunks(), table[_VERSION].combine_chunks()
    if not levels:
        commit.add(0, rows, operations, versions, net)
        return len(rows)
    hashes = table[_HASH].to_numpy()
    numbers = ((hashes.view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(64 - levels)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(numbers[order])) + 1, len(order))
    begin = 0
    for end in ends.tolist():
        picked = pa.array(order[begin:end])
        shard = int(numbers[order[begin]])
        commit.add(shard, rows.take(picked), operations.take(picked), versions.take(picked), net)
        begin = end
    return len(rows)


def _shaped(table: pa.Table, row: pa.Schema) -> pa.Table:
    """Return the feed's columns; those that the source lacks are null."""
    names = {name.lower(): name for name in table.schema.names}
    columns = []
    for field in row:
        name = names.get(field.name.lower())
        columns.append(pa.nulls(len(table), field.type) if name is None else table[name].cast(field.type))
    return pa.table(columns, schema=row)
