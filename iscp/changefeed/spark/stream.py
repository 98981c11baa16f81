"""A changefeed as a streaming source of Spark, in the order of its ulids: format `changefeed`.

Offsets are cursors. A batch is what lies between two of them, in whichever files that is now: Delta's own source
follows the commits, so that a purge ends it, and so does a compaction with a vacuum where it is behind. Planned where
the driver is, from what the log says of the files; read by executors, which need iscp-delta[node] as well.

Spark 4.1 passes a source in Python neither its limit nor its trigger, and where a stream goes on only by a question for
the parts between an offset and the same one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage.bucket_keys import BUCKETS_VARIABLE
from iscp.adapters.delta.storage.locations import place
from iscp.changefeed.model.cursor import Cursor
from iscp.changefeed.spark.partition import FeedPart, read_part
from iscp.core.values.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iscp.changefeed.spark.plan import FeedPlan

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
    from iscp.changefeed.spark.plan import FeedPlan  # not for executors: it takes seconds to load

    return FeedPlan(uri)


def _offset(cursor: Cursor) -> Offset:
    fields: Offset = json.loads(cursor.text)
    return fields
