"""Changefeeds in Spark: functions for ulids, frames behind a cursor, and a streaming source of the format `changefeed`,
in the order of its ulids (docs/changefeed.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from iscp.changefeed.model.ulid import ULID_BYTES, Cursor, parse_ulid, ulid_text
from iscp.changefeed.spark.functions import listed, register_functions
from iscp.changefeed.spark.partition import FeedPart, part_columns, read_part
from iscp.changefeed.table.feed_schema import SHARD, ULID_TEXT
from iscp.changefeed.table.feed_table import FeedTable, read_purged
from iscp.changefeed.table.page_reader import BEFORE_ALL, BEHIND_ALL, FeedFile, FeedFiles, overlapping
from iscp.delta.log.table_opening import bring_up, list_again, open_delta
from iscp.model.settings.variables import BUCKETS_VARIABLE
from iscp.model.values.errors import InvalidRequest
from iscp.spark.spark_errors import spark_faults
from iscp.storage.delta_errors import delta_faults
from iscp.storage.locations import on_s3, place
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# --- the streaming source ---------------------------------------------------------------------------------------------
# Offsets are cursors. A batch is what lies between two of them, in whichever files that is now: Delta's own source
# follows the commits, so that a purge ends it, and so does a compaction with a vacuum where it is behind. Parts are
# planned where the driver is, from what the log says of the files, and read by executors, which need iscp-delta[node]
# as well.
#
# Spark 4.1 passes a source in Python neither its limit nor its trigger, and where a stream goes on only by a question
# for the parts between an offset and the same one.

FORMAT_NAME = "changefeed"
STARTING_CURSOR = "startingCursor"
ROWS_MAX = "maxRowsPerTrigger"
EARLIEST, LATEST = "earliest", "latest"

BATCH_ROWS_MAX = 32 * 1024
"""Rows given to Spark at a time; more come in further batches."""

Offset = dict[str, Any]
"""A cursor's fields."""


class ChangefeedSource(DataSource):
    """`spark.readStream.format("changefeed")`, and `spark.read` too."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return _plan(self._uri()).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangefeedReader(self._uri(), self._starting(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ChangefeedStream(self._uri(), self._starting(), schema, self._rows_max())

    def _uri(self) -> str:
        if not (uri := self.options.get("path")):
            raise InvalidRequest("names no feed", field="path", remedy=".load(URI)")
        if not uri.startswith(("/", "file:", "s3:", "s3a:")):
            raise InvalidRequest(f"{uri} is relative to nothing that is known", about="path", remedy="Give all of it")
        return place(uri)

    def _starting(self) -> str:
        return self.options.get(STARTING_CURSOR, EARLIEST)

    def _rows_max(self) -> int | None:
        if (text := self.options.get(ROWS_MAX)) is None:
            return None
        if not text.isdecimal() or not int(text):
            raise InvalidRequest(f"is {text!r}", field=ROWS_MAX, remedy="Give a number of rows from 1 on")
        return int(text)


@dataclass
class PlannedPart(InputPartition):
    part: FeedPart


class _PartReader:
    """Reads parts, on executors; what plans them stays behind."""

    def __init__(self, uri: str, starting: str, schema: StructType) -> None:
        self._uri = uri
        self._starting = starting
        self._schema = schema
        self._plan: FeedPlan | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_plan": None}

    def _load_plan(self) -> FeedPlan:
        if self._plan is None:
            self._plan = _plan(self._uri)
        return self._plan

    def _start(self) -> Cursor:
        if self._starting == EARLIEST:
            return self._load_plan().first_cursor()
        if self._starting == LATEST:
            return self._load_plan().last_cursor()
        return self._load_plan().own(Cursor.parse(self._starting))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None:  # of nothing at all, pyspark makes one that is none
            return
        assert isinstance(partition, PlannedPart)
        for rows in read_part(self._uri, partition.part, to_arrow_schema(self._schema)):
            yield from rows.to_batches(BATCH_ROWS_MAX)


class ChangefeedReader(_PartReader, DataSourceReader):
    """All that is behind a cursor, as of now."""

    def partitions(self) -> list[InputPartition]:
        start = self._start()
        end = self._load_plan().last_cursor()
        return [PlannedPart(part) for part in self._load_plan().parts(start, end)]


class ChangefeedStream(_PartReader, DataSourceStreamReader):
    """One query's. `_at`: the offset that was given last, or, after a restart, before it."""

    def __init__(self, uri: str, starting: str, schema: StructType, rows_max: int | None) -> None:
        super().__init__(uri, starting, schema)
        self._rows_max = rows_max
        self._began: Cursor | None = None
        self._at: Cursor | None = None
        self._cut = False

    def initialOffset(self) -> Offset:  # noqa: N802
        return _offset(self._beginning())

    def latestOffset(self) -> Offset:  # noqa: N802
        self._refuse_unknown_trigger(self._cut)
        if self._at is not None:
            self._at, _ = self._load_plan().end(self._at, self._rows_max)
        elif self._starting == LATEST:
            # Not what has come since: were it requested again after a kill, Spark would begin later.
            self._at = self._beginning()
        else:
            self._at, self._cut = self._load_plan().end(self._beginning(), self._rows_max)
        return _offset(self._at)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start != end:
            self._cut = False
            return [PlannedPart(part) for part in self._load_plan().parts(self._cursor(start), self._cursor(end))]
        self._refuse_unknown_trigger(self._cut)
        self._at = self._cursor(end)
        if self._starting == LATEST and self._began is None:  # of a first batch, which is an empty one
            self._began = self._at
        return []

    def commit(self, end: Offset) -> None:
        """Do nothing: a purge reads cursors that are stored by name."""

    def _beginning(self) -> Cursor:
        if self._began is None:
            self._began = self._start()
        return self._began

    def _cursor(self, offset: Offset) -> Cursor:
        return self._load_plan().own(Cursor.parse(json.dumps(offset)))

    def _refuse_unknown_trigger(self, cut: bool) -> None:
        """Spark's wrapper for Trigger.AvailableNow (off by default: a single batch is run then) requests the end before
        anything else, and but once: cut short, it would be the end of all, and behind a restart lie before its start.
        """
        if cut:
            raise InvalidRequest(
                "goes not with Trigger.AvailableNow, which takes all in one batch",
                field=ROWS_MAX,
                remedy="Leave it out, or trigger by a processing time",
            )


def register_source(spark: SparkSession) -> None:
    """Make the format known to the session. Raises EngineError."""
    with spark_faults(f"register the format {FORMAT_NAME}"):
        context = spark.sparkContext
        if str(context.master).startswith("local"):
            # Python workers are the JVM's children, and the runtime of iscp may keep keys for S3 out of the JVM.
            s3 = ("AWS_", BUCKETS_VARIABLE)
            context.environment |= {name: value for name, value in os.environ.items() if name.startswith(s3)}
        with _active(spark):
            spark.dataSource.register(ChangefeedSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Spark searches the active session for a format of this name, which may be another one that has it already."""
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _plan(uri: str) -> FeedPlan:

    return FeedPlan(uri)


def _offset(cursor: Cursor) -> Offset:
    fields: Offset = json.loads(cursor.text)
    return fields


# --- the plan of a read -----------------------------------------------------------------------------------------------
# The read between two cursors of a changefeed is planned in parts that are read by themselves, and so are the ends of
# batches.

PART_BYTES = 32 * 1024**2
"""Bytes of the files that one task of Spark reads, unless it is a single file; the others go to further tasks."""

PART_FILES_MAX = 256
"""Files that one task of Spark reads; the others go to further tasks."""

_ULIDS = pa.schema([pa.field(ULID_TEXT, pa.string(), nullable=False)])


class FeedPlan:
    """One reader's hold on a feed; not to be used from several threads at once."""

    def __init__(self, uri: str) -> None:
        """Raises TableNotFound, ConfigurationError, StorageError."""
        self._table = FeedTable(uri, SystemClock(), EnvironmentFailpoints())
        with delta_faults(f"open the feed {uri}"):
            self._delta = open_delta(place(uri))
        self._listed = FeedFiles()

    @property
    def shards(self) -> int:
        return self._table.description.shards

    def schema(self) -> StructType:
        """Return the table's schema for Spark: Delta and Spark write schemas alike."""
        return StructType.fromJson(json.loads(self._delta.schema().to_json()))

    def own(self, cursor: Cursor) -> Cursor:
        """Raises InvalidRequest for a cursor of another feed."""
        cursor.refuse_foreign(self._table.description.feed_id, self.shards)
        return cursor

    def refuse_purged(self, cursor: Cursor) -> Cursor:
        """Raises CursorBehind where what it would have next is gone."""
        cursor.refuse_behind(read_purged(self._table))
        return cursor

    def first_cursor(self) -> Cursor:
        """The one behind which all is that is left."""
        return self._cursor(read_purged(self._table))

    def last_cursor(self) -> Cursor:
        """Return the cursor behind which all rows come that will be appended."""
        return self._cursor(self._table.last_ulids())

    def end(self, start: Cursor, rows_max: int | None) -> tuple[Cursor, bool]:
        """Return the end of a batch that begins at `start` and has up to `rows_max` rows, and whether rows are left
        behind it.

        Raises CursorBehind, StorageError.
        """
        last = self.last_cursor()
        everything = self._cursor(
            {shard: max(ulid, start.get(shard, ulid)) for shard, ulid in {**start, **last}.items()}
        )
        if rows_max is None:
            self.refuse_purged(start)
            return everything, False
        files = self._files(start, everything)
        self.refuse_purged(start)
        reached, rows = dict(start), 0
        for span in overlapping(files):
            shard = span[0].shard
            count, ulid = self._first_rows(span, reached.get(shard, BEFORE_ALL), everything[shard], rows_max - rows)
            if count:
                rows, reached[shard] = rows + count, ulid
            if rows == rows_max:
                break
        else:
            return everything, False
        return self._cursor(reached), self._cursor(reached) != everything

    def parts(self, start: Cursor, end: Cursor) -> list[FeedPart]:
        """Raises CursorBehind, StorageError."""
        files = self._files(start, end)
        # After the files: what was purged of those is known then.
        self.refuse_purged(start)
        feed = self._table.description.feed_id
        return [
            FeedPart(feed, shard, tuple(file.path for file in group), start.get(shard, BEFORE_ALL), end[shard])
            for shard, group in _groups(files)
        ]

    def _cursor(self, ulids: Mapping[int, str]) -> Cursor:
        return Cursor(self._table.description.feed_id, ulids)

    def _files(self, start: Mapping[int, str], end: Mapping[int, str]) -> list[FeedFile]:
        """Return the files that may have rows between the two cursors, as of now."""
        with delta_faults("list the files of a feed"):
            bring_up(self._delta)
            return self._listed.between(self._delta, start, end)

    def _first_rows(self, span: Sequence[FeedFile], after: str, upto: str, limit: int) -> tuple[int, str]:
        """Return how many rows, up to `limit`, lie behind `after` up to `upto`, and the last one's ulid."""
        rows = sum(file.rows if file.rows is not None else limit + 1 for file in span)
        last = max(file.last for file in span)
        if rows <= limit and after < span[0].first and last <= upto:
            return rows, last
        if len(span) == 1 and (dense := _dense(span[0])):
            begin, end = max(dense.start, _index(after) + 1), min(dense.stop, _index(upto) + 1)
            count = min(max(end - begin, 0), limit)
            return count, ulid_text((begin + count - 1).to_bytes(ULID_BYTES, "big"))
        part = FeedPart("", span[0].shard, tuple(file.path for file in span), after, upto)
        found = pa.concat_tables(
            [_ULIDS.empty_table(), *part_columns(self._table.uri, part, _ULIDS.names)], promote_options="permissive"
        )
        found = found.sort_by(ULID_TEXT)[:limit]
        return len(found), found[ULID_TEXT][-1].as_py() if len(found) else after


def _groups(files: Sequence[FeedFile]) -> Iterator[tuple[int, list[FeedFile]]]:
    """Yield files of a shard that are read together, and the shard."""
    group: list[FeedFile] = []
    for file in files:
        full = len(group) == PART_FILES_MAX or sum(each.size for each in group) + file.size > PART_BYTES
        if group and (full or group[0].shard != file.shard):
            yield group[0].shard, group
            group = []
        group.append(file)
    if group:
        yield group[0].shard, group


def _index(text: str) -> int:
    return int.from_bytes(parse_ulid(text), "big") if text else -1


def _dense(file: FeedFile) -> range | None:
    """Return the numbers of the file's ulids, where they follow one another, as in most files but those of a
    compaction.
    """
    if not file.rows or file.first == BEFORE_ALL or file.last == BEHIND_ALL:
        return None
    numbers = range(_index(file.first), _index(file.last) + 1)
    return numbers if numbers.stop - numbers.start == file.rows else None  # there may be too many for len()


# --- frames -----------------------------------------------------------------------------------------------------------
# A changefeed behind a cursor is a frame of Spark, of only those files that may have rows there.


def frame_behind(spark: SparkSession, uri: str, cursor: Cursor | None) -> DataFrame:
    """Return the rows behind a cursor, or all that are left, as of now, in no order.

    Raises InvalidRequest for a cursor of another feed, CursorBehind, TableNotFound, ConfigurationError, StorageError.
    """
    plan = FeedPlan(uri)
    if cursor is not None:
        plan.own(cursor)
    with spark_faults(f"read the feed {uri}"):
        log, snapshot = list_again(partial(_snapshot, spark, spark_place(spark, uri)))
        # After the files: what was purged of those is known then.
        behind = plan.first_cursor() if cursor is None else plan.refuse_purged(cursor)
        shards = plan.shards
        chosen = snapshot.allFiles().filter(_may_lie_behind(behind, shards)._jc).collectAsList()
        rest = [getattr(log, f"createDataFrame$default${place_}")() for place_ in (3, 4)]
        files = spark._jvm.scala.jdk.javaapi.CollectionConverters.asScala(chosen).toSeq()  # type: ignore[union-attr]
        frame = DataFrame(log.createDataFrame(snapshot, files, *rest), spark)
        return frame.where(F.col(ULID_TEXT) > _ulid_of(behind, shards, F.col(SHARD)))


def spark_place(spark: SparkSession, uri: str) -> str:
    """Return the place of a table for Hadoop: its scheme for S3 is `s3a`, unless it was set otherwise, and a local path
    gets the scheme `file`, as the default may be another file system.
    """
    at = place(uri)
    if not on_s3(at):
        return f"file:{at}"
    if spark._jsc.hadoopConfiguration().get("fs.s3.impl"):
        return at
    return at.replace("s3://", "s3a://", 1)


def _snapshot(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Return Delta's log of the table, and its newest snapshot."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, uri)
    return log, log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def _may_lie_behind(cursor: Mapping[int, str], shards: int) -> Column:
    """Return the condition that a file, as the log has it, may have rows behind the cursor."""
    shard = F.col("partitionValues")[SHARD].cast("int")
    last = F.get_json_object("stats", f"$.maxValues.{ULID_TEXT}")
    return F.coalesce(last > _ulid_of(cursor, shards, shard), F.lit(True))


def _ulid_of(cursor: Mapping[int, str], shards: int, shard: Column) -> Column:
    """Return the ulid of a file's shard in the cursor, without a condition for each shard: there may be many."""
    return F.get(listed(cursor.get(number, "") for number in range(shards)), shard)


# --- what applications call -------------------------------------------------------------------------------------------

__all__ = ["read", "register"]


def register(spark: SparkSession) -> None:
    """Give the session the functions `ulid_time`, `ulid_text`, `ulid_binary` and `ulid_at`, and the format
    `changefeed`. Raises EngineError."""
    register_functions(spark)
    register_source(spark)


def read(spark: SparkSession, uri: str | Path, cursor: Cursor | str | None = None) -> DataFrame:
    """Return the rows of a changefeed behind a cursor (or its text), or all that are left: as of now, in no order.

    Raises InvalidRequest for a cursor of another feed, CursorBehind where rows that come next were purged,
    TableNotFound, ConfigurationError, StorageError, EngineError.
    """
    return frame_behind(spark, os.fspath(uri), None if cursor is None else Cursor.of(cursor))
