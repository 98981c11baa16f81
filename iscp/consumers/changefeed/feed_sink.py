"""A changefeed's table as the sink of a job (port FeedSink): the feed's shards and the job's record in one commit."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.hashing import row_hashes
from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, WRITES
from iscp.adapters.delta.rows.schema_evolution import conformed
from iscp.adapters.delta.sink.staged_ranges import FileStagedRanges
from iscp.adapters.delta.sink.staging import staged_rows
from iscp.adapters.delta.source.spark_read import load_version
from iscp.adapters.delta.spark.arrow_frame import spark_schema
from iscp.adapters.delta.spark.spark_engine import arrow_batches
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.system.late_imports import F
from iscp.changefeed.model.ulid import DRAWN_BYTES, UlidPlace, begin
from iscp.changefeed.table.feed_log import newest_text
from iscp.changefeed.table.feed_purge import purged_names, read_purged
from iscp.changefeed.table.feed_schema import OPERATION, ROW, SHARD, create_feed_table
from iscp.changefeed.table.feed_table import FeedShardState, FeedTable
from iscp.changefeed.table.file_writer import FeedDraft, FeedRows
from iscp.core.build.build_request import BuildId
from iscp.core.rows import key_ranges as ranges
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import ErrorCode, IscpError, PermanentError, TableNotFound
from iscp.ports.sink import Manifest
from iscp.ports.system import Clock, Failpoints, Guard

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
        wanted = _shaped(present, feed_rows)
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


def _shaped(present: DataFrame, feed_rows: DataFrame) -> DataFrame:
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
