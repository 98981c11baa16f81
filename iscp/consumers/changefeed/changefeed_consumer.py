"""The consumer that writes a changefeed, and the feed's table as its sink (port FeedSink).

The consumer writes every change of a range, or all changes in sum, to the shard of its key, in order. The sink commits
the feed's shards and the job's record together.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from iscp.changefeed.model.lock_queue import FeedCommit, FeedSink
from iscp.changefeed.model.ulid import DRAWN_BYTES, UlidPlace, begin
from iscp.changefeed.table.feed_log import newest_text
from iscp.changefeed.table.feed_schema import OPERATION, ROW, SHARD, create_feed_table, lost_names
from iscp.changefeed.table.feed_table import FeedShardState, FeedTable, purged_names, read_purged
from iscp.changefeed.table.file_writer import FeedDraft, FeedRows
from iscp.consumers.validation import unwritable_name
from iscp.delta.rows.net_changes import CHANGE_TYPE, WRITES, conformed
from iscp.delta.rows.row_keys import row_hashes
from iscp.delta.sink.staging import FileStagedRanges, staged_rows
from iscp.delta.source.spark_read import load_version
from iscp.model.build.build_task import BuildId
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_job
from iscp.model.job.watermark_record import parse_record, position_of, record_key
from iscp.model.rows import key_ranges as ranges
from iscp.model.spec.spec import OnSchemaChange
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import Conflict, ErrorCode, InvalidRequest, IscpError, PermanentError, TableNotFound
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, Consumed, RangedConsumer, Retriever
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.source import Rows
from iscp.ports.system import Clock, Failpoints, Guard
from iscp.spark.spark_engine import arrow_batches
from iscp.spark.spark_errors import spark_faults
from iscp.spark.spark_frames import spark_schema
from iscp.system.late_imports import A, F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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


BATCH_ROWS_MAX = 10_000
"""Rows taken from Spark at a time; more come in further batches."""

_COUNT, _HASHES = "_iscp_count", ("_iscp_hash_1", "_iscp_hash_2")


class DeltaFeedSink:
    """A feed's table, which stays open from commit to commit. It is not thread safe: one consumer at work has one."""

    def __init__(
        self, uri: str, clock: Clock, failpoints: Failpoints, draw: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._uri = uri
        self._clock = clock
        self._failpoints = failpoints
        self._draw = draw
        self._table: FeedTable | None = None

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        try:
            if self._table is None and len(keys) == 1 and (text := newest_text(self._uri, keys[0])) is not None:
                return {keys[0]: text}
            return self._open().texts(keys)
        except TableNotFound:
            self._table = None
            return dict.fromkeys(keys)

    @contextmanager
    def begin(self, row: pa.Schema, key: Sequence[str], shards: int, range_id: int) -> Iterator[DeltaFeedCommit]:
        table = self._open_or_create(row, key, shards)
        table.widen(row)
        numbers = ranges.parts(range_id, table.description.shards)
        now_ms = int(self._clock.now_s() * 1000)
        seen = table.states(numbers)  # before the draft, which is of the columns that are there then
        with table.draft() as draft:
            yield DeltaFeedCommit(table, draft, seen, lambda place: begin(place, now_ms, self._draw(DRAWN_BYTES)))

    def open(self, row: pa.Schema, key: Sequence[str], shards: int) -> None:
        self._open_or_create(row, key, shards)

    def is_untouched(self, range_id: int) -> bool:
        table = self._open()
        return not _touched(table.states(ranges.parts(range_id, table.description.shards)))

    def ranges(self, build: BuildId) -> FileStagedRanges:
        return FileStagedRanges(self._uri, build, self._failpoints, passing=True)

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        with spark_faults(f"open what is staged for {self._uri}"):
            return staged_rows(session, self._uri, manifests)

    def tidy(self) -> None:
        if self._table is not None:
            self._table.tidy()

    def _open_or_create(self, row: pa.Schema, key: Sequence[str], shards: int) -> FeedTable:
        with suppress(TableNotFound):
            return self._open()
        try:
            create_feed_table(self._uri, row, shards, key)
        except IscpError as error:
            with suppress(TableNotFound):  # another range of the job may have been first
                return self._open()
            raise error
        return self._open()

    def _open(self) -> FeedTable:
        if self._table is None:
            self._table = FeedTable(self._uri, self._clock, self._failpoints)
        return self._table


class DeltaFeedCommit:
    """One commit of a feed (port FeedCommit). `began` gives the place at which a transaction begins behind
    another one.
    """

    def __init__(
        self,
        table: FeedTable,
        draft: FeedDraft,
        seen: Mapping[int, FeedShardState],
        began: Callable[[UlidPlace], UlidPlace],
    ) -> None:
        self._table = table
        self._draft = draft
        self._began = began
        self._seen = seen
        self._texts: dict[str, str] = {}
        self._texts_seen: dict[str, str | None] = {}
        self.row: pa.Schema = draft.description.row
        self.shards = draft.description.shards

    def add(self, shard: int, rows: pa.Table, operations: pa.Array, versions: pa.Array, net: bool) -> None:
        place = self._draft.places.get(shard) or self._began(self._seen[shard].place)
        self._draft.add(shard, place, FeedRows(rows, operations, versions, net))

    def get(self, key: str) -> str | None:
        self._texts_seen |= self._table.texts([key])
        return self._texts_seen[key]

    def put(self, key: str, value: str) -> None:
        self._texts[key] = value

    def commit(self) -> None:
        # Shards without rows too: what was taken for a difference is what is in them.
        self._table.commit(self._draft, self._seen, self._texts, self._texts_seen)

    def difference(self, present: DataFrame, where: str, more: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the changes from the feed's rows to those of the source, for one range.

        The feed is a bag of rows, into which a change puts one or from which it takes one.
        """
        # A purge moves no shard: the commit has to find that there was none meanwhile.
        self._texts_seen |= self._table.texts(purged_names(self.shards))
        if read_purged(self._table):
            raise PermanentError(
                f"{self._table.uri} was purged: what its readers hold does not follow from it",
                remedy="Register the job again, on another feed",
                code=ErrorCode.FEED_PURGED,
            )
        key = [F.col(quoted(name)) for name in self._table.description.key]
        with spark_faults("compare a feed with its source"):
            changes = (
                self._changes(present, where, key) if self.touched else present.withColumn(CHANGE_TYPE, F.lit("insert"))
            )
            ordered = changes.selectExpr("*", *more).orderBy(*key, F.col(CHANGE_TYPE).isin(*WRITES))
        yield from arrow_batches(ordered, BATCH_ROWS_MAX)

    @property
    def touched(self) -> bool:
        return _touched(self._seen)

    def insert_all(self, rows: DataFrame, key_hash: str, version: int, guard: Guard) -> int:
        """Sort and write each shard by all cores; return the number of rows. Shards without rows move too, as in
        `commit`.
        """
        from iscp.changefeed.spark.bulk_write import FeedStamp, write_ordered

        table, total = self._table, 0
        order = [F.col(quoted(name)).asc() for name in table.description.key]
        for shard, seen in self._seen.items():
            guard.check()
            low, high = ranges.hashes(self.shards + shard)
            of_shard = rows.where(F.col(key_hash).between(low, high))
            of_shard = conformed(of_shard, spark_schema(self.row))
            place = self._began(seen.place)
            stamp = FeedStamp("insert", version, net=True)
            adds, count = write_ordered(of_shard, table.uri, self._draft.description, shard, place, order, stamp)
            if count:
                self._draft.adopt(shard, place, count, adds)
            total += count
        return total

    def _changes(self, present: DataFrame, where: str, key: Sequence[Column]) -> DataFrame:
        feed_rows = self._read_rows(present, where)
        wanted = _fed_rows(present, feed_rows)
        values = F.any_value(F.struct(*[F.col(quoted(name)) for name in wanted.columns if name != _COUNT]))
        bags = _bag(feed_rows, -1).unionByName(_bag(wanted, 1)).groupBy(*_HASHES)
        differing = bags.agg(F.sum(_COUNT).alias(_COUNT), values.alias(ROW)).where(f"{_COUNT} <> 0")
        return _named(differing.select(f"{ROW}.*", _COUNT), key)

    def _read_rows(self, present: DataFrame, where: str) -> DataFrame:
        """Return the rows of the feed: those that were put in (1 in `_count`) and taken out (-1)."""
        session, uri = present.sparkSession, self._table.uri
        with spark_faults(f"open {uri}"):
            frame = load_version(session, uri).where(F.col(SHARD).isin(*self._seen))
            sign = F.when(F.col(OPERATION).isin(*WRITES), 1).otherwise(-1)
            rows = frame.select(f"{ROW}.*", sign.alias(_COUNT))
            return rows.where(where) if where else rows


def _touched(states: Mapping[int, FeedShardState]) -> bool:
    return any(state.seq for state in states.values())


def _fed_rows(present: DataFrame, feed_rows: DataFrame) -> DataFrame:
    """Return the rows with the columns and types of the feed's; columns that are not there any more are null."""
    return conformed(present, feed_rows.drop(_COUNT).schema).withColumn(_COUNT, F.lit(1))


def _bag(frame: DataFrame, sign: int) -> DataFrame:
    hashes = row_hashes(frame.drop(_COUNT))
    named = [each.alias(name) for each, name in zip(hashes, _HASHES, strict=True)]
    return frame.select("*", *named).withColumn(_COUNT, F.col(_COUNT) * sign)


def _named(rows: DataFrame, key: Sequence[Column]) -> DataFrame:
    """Return each row as often as it has changed, with its `_change_type`; a key with one row before and one now is
    updated.
    """
    from pyspark.sql import Window

    of_key = Window.partitionBy(*key)
    before, now = (F.sum(F.greatest(F.col(_COUNT) * sign, F.lit(0))).over(of_key) for sign in (-1, 1))
    is_new, updated = F.col(_COUNT) > 0, (before == 1) & (now == 1)
    kind = (
        F.when(updated & is_new, "update_postimage")
        .when(updated, "update_preimage")
        .when(is_new, "insert")
        .otherwise("delete")
    )
    copies = F.explode(F.sequence(F.lit(1), F.abs(F.col(_COUNT)).cast("int")))
    return rows.withColumn(CHANGE_TYPE, kind).withColumn(_COUNT, copies).drop(_COUNT)
