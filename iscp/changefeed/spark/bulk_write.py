"""Writes many rows of a changefeed by Spark: files that a commit adopts, in the order of their ulids."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from iscp.changefeed.model.ulid import UlidPlace, parse_ulid
from iscp.changefeed.spark.functions import listed, ulid_of, ulid_text_of
from iscp.changefeed.spark.stream import spark_place
from iscp.changefeed.table.feed_schema import KEY, NET, OPERATION, ROW, ULID, ULID_TEXT, VERSION, FeedDescription
from iscp.changefeed.table.file_writer import FILE_PREFIX, GROUP_ROWS, file_stats
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import Conflict, EngineError, InvalidRequest
from iscp.spark.spark_errors import spark_faults
from iscp.spark.spark_frames import spark_schema
from iscp.storage import files as storage
from iscp.storage.bounded_parquet import open_parquet
from iscp.storage.delta_errors import MESSAGE_LENGTH_MAX, delta_faults
from iscp.storage.locations import local_path, place
from iscp.storage.table_files import files_of

if TYPE_CHECKING:
    from pyspark.sql import Column


# --- files that Spark has written -------------------------------------------------------------------------------------
# What their footers say, and what a commit says of them.

FOOTER_READERS = 8
"""Threads that read the footers of the files that were written; more files queue."""


@dataclass(frozen=True, slots=True)
class UlidGroup:
    """Rows of a file, with the first and the last text of their ulids."""

    rows: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class FileFooter:
    """The footer of a file; `groups` are set for a file with ulids."""

    path: str
    size: int
    rows: int
    groups: tuple[UlidGroup, ...] = ()


def number_of(path: str) -> int:
    """Return the number of the partition that a sorted file was."""
    return int(path.rpartition("/")[2].split("-")[1])


def read_footers(uri: str, directory: str) -> list[FileFooter]:
    """Return the footers of all files in a directory of the table at `uri`. Raises StorageError."""
    with delta_faults(f"list {directory}"):
        found = files_of(uri).get_file_info(pafs.FileSelector(directory))
        paths = [each.path for each in found if each.is_file and each.path.endswith(".parquet")]
        with ThreadPoolExecutor(FOOTER_READERS, "iscp-feed-footer") as pool:
            return list(pool.map(partial(_read_footer, uri), paths))


def _read_footer(uri: str, path: str) -> FileFooter:
    with open_parquet(uri, path, None) as file:
        size, rows = file.size, file.metadata.num_rows
        if ULID_TEXT not in file.schema_arrow.names:
            return FileFooter(path, size, rows)
        counts = [file.metadata.row_group(number).num_rows for number in file.groups]
        bounds = [each.text_bounds or ("", "") for each in file.chunks(ULID_TEXT)]
    groups = (UlidGroup(count, *each) for count, each in zip(counts, bounds, strict=True))
    return FileFooter(path, size, rows, tuple(groups))


def check_adds(
    files: Sequence[FileFooter], partition: dict[str, str | None], first: UlidPlace, count: int
) -> Iterator[AddAction]:
    """Raises EngineError unless the files have all ulids from `first` on, each once."""
    at, rows = first, 0
    for file in files:
        begins = at
        for group in file.groups:
            if (parse_ulid(group.first), parse_ulid(group.last)) != (at.ulid(), at.ulid(group.rows - 1)):
                raise EngineError(f"{file.path} has other ulids than those of its rows")
            at = at.after(group.rows)
        at_ms, stats = int(time.time() * 1000), file_stats(begins, file.rows)
        yield AddAction(file.path, file.size, partition, at_ms, True, stats)
        rows += file.rows
    if rows != count:
        raise EngineError(f"{rows} rows were written of {count} that were sorted")


# --- the write --------------------------------------------------------------------------------------------------------
# Rows are sorted into files beside the feed's own first. A row's number is how many rows are in the files before its
# own, and its place there: whatever Spark does again when it writes the rows for good, the number is the same. Numbers
# that come from Spark's partitions are not: partitions may be computed again, with other rows, as soon as an executor
# is lost.

FILE_ROWS = 1024 * 1024
"""Rows of a file that Spark writes into a feed; more become several files."""

SPLIT_BYTES = 128 * 1024**2
"""Bytes of a sorted file that one task copies into the feed; a larger one is split between tasks."""


_METADATA, _NUMBER = "_metadata", "_number"
_UNORDERED = ("map<", "variant")
_MISFIT = "iscp-misfit-"
_MISFITS = (
    ("nulls", "The feed's column takes none"),
    ("texts that are no UTF-8", "Append them as binary, or decode them"),
)
_COMMITTER = {
    # Files of attempts that were given up would stay among the others.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_SORTED = {**_COMMITTER, "compression": "lz4", "maxRecordsPerFile": "0", "mapreduce.output.basename": "sorted"}
_FINAL = {
    **_COMMITTER,
    "compression": "zstd",
    "maxRecordsPerFile": str(FILE_ROWS),
    "mapreduce.output.basename": FILE_PREFIX.removesuffix("-"),
    "parquet.block.row.count.limit": str(GROUP_ROWS),
    "parquet.column.statistics.enabled": "true",
    "parquet.compression.codec.zstd.bufferPool.enabled": "true",
    f"parquet.enable.dictionary#{ULID}": "false",
    f"parquet.enable.dictionary#{ULID_TEXT}": "false",
}
_SESSION = {
    # One task for each sorted file, or part of a large one: else small files would come together in any order.
    "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES),
    "spark.sql.files.openCostInBytes": str(SPLIT_BYTES),
    # With fewer, Spark forgets the two above.
    "spark.sql.files.maxPartitionNum": str(2**31 - 1),
    # As Delta has it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}


@dataclass(frozen=True, slots=True)
class FeedStamp:
    """The values that all rows of a write share: `version` and `net` as in FeedRows."""

    operation: str
    version: int | None = None
    net: bool = False


def write_files(
    frame: DataFrame,
    uri: str,
    description: FeedDescription,
    shard: int,
    first: UlidPlace,
    order_by: Sequence[tuple[str, str]],
    operation: str,
) -> tuple[list[AddAction], int]:
    """Write the rows of a frame with the ulids from `first` on: files below the table, for a commit, and how many rows.

    The rows are sorted by `order_by`, each (column, "ascending") or (column, "descending"), nulls last; without it
    they stay in the order of the frame's partitions. Whoever does not commit the files deletes them.
    Raises InvalidRequest (they do not fit; there is not a file then), StorageError, EngineError, Canceled.
    """
    frame = _fit_columns(frame, description.row)
    order = [_order(frame, *each) for each in order_by]
    return write_ordered(frame, uri, description, shard, first, order, FeedStamp(operation))


def write_ordered(
    frame: DataFrame,
    uri: str,
    description: FeedDescription,
    shard: int,
    first: UlidPlace,
    order: Sequence[Column],
    stamp: FeedStamp,
) -> tuple[list[AddAction], int]:
    """Write a frame that has just the feed's columns, in an order that Spark knows, as `write_files` does."""
    _refuse_cut_times(frame)
    home = spark_place(frame.sparkSession, uri)
    name = uuid.uuid4().hex
    staged, final = (f"{description.folder(shard)}/{kind}{name}" for kind in ("staged-", FILE_PREFIX))
    with _delete_after(f"{place(uri)}/{staged}"):
        with _refusing_misfits(frame), _writing("sort the rows for a feed"):
            ordered = frame.orderBy(*order) if order else frame
            row = F.struct(*_checked(frame, description.row))
            ordered.select(row.alias(ROW)).write.options(**_SORTED).parquet(f"{home}/{staged}")
        sorted_files = sorted(read_footers(place(uri), staged), key=lambda file: number_of(file.path))
        count = sum(file.rows for file in sorted_files)
        if not count:
            return [], 0
        first.after(count)
        rows = _open_sorted(frame, f"{home}/{staged}")
        with _delete_after(f"{place(uri)}/{final}", only_failed=True):
            with _writing("write the rows of a feed"):
                numbered = _numbered(rows, sorted_files, description, first, stamp)
                numbered.write.options(**_FINAL).parquet(f"{home}/{final}")
            _delete_checksums(place(uri), final)
            filled = [file for file in read_footers(place(uri), final) if file.groups]
            written = sorted(filled, key=lambda file: file.groups[0].first)
            return list(check_adds(written, description.partition(shard), first, count)), count


@contextmanager
def _delete_after(directory: str, *, only_failed: bool = False) -> Iterator[None]:
    """Delete the directory afterwards, or only after a failure; a vacuum takes what cannot be deleted."""
    keep = False
    try:
        yield
        keep = only_failed
    finally:
        if not keep:
            with suppress(OSError):
                storage.remove_tree(directory)


def _delete_checksums(uri: str, directory: str) -> None:
    """Delete Hadoop's checksums beside each file on a local path: a commit that is given up deletes only what
    it knows.
    """
    path = local_path(uri)
    for checksum in path.joinpath(directory).glob(".*.crc") if path else ():
        checksum.unlink(missing_ok=True)


def _fit_columns(frame: DataFrame, row: pa.Schema) -> DataFrame:
    """Return the rows with the feed's columns in their order. Raises InvalidRequest for other columns and for
    streams.
    """
    wanted, given = (sorted(_column_texts(schema)) for schema in (spark_schema(row), frame.schema))
    if wanted != given:
        raise InvalidRequest(
            f"the rows have the columns {', '.join(_column_texts(frame.schema))}",
            about="rows",
            remedy=f"Cast them to the feed's: {', '.join(_column_texts(spark_schema(row)))}",
        )
    if frame.isStreaming:
        raise InvalidRequest("the rows are a stream", about="rows", remedy="Append what foreachBatch gives")
    return frame.select(*map(quoted, row.names))


def _column_texts(schema: StructType) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in schema]


def _order(frame: DataFrame, name: str, direction: str) -> Column:
    kind = frame.schema[name].dataType.simpleString()
    if any(word in kind for word in _UNORDERED):
        raise InvalidRequest(f"{name} is of type {kind}, which has no order", about="order_by", remedy="Sort by others")
    column = F.col(quoted(name))
    return column.asc_nulls_last() if direction == "ascending" else column.desc_nulls_last()


def _refuse_cut_times(frame: DataFrame) -> None:
    setting = "spark.sql.parquet.outputTimestampType"
    if frame.sparkSession.conf.get(setting) == "TIMESTAMP_MILLIS" and "timestamp" in frame.schema.simpleString():
        raise InvalidRequest("is TIMESTAMP_MILLIS, which cuts times off", field=setting, remedy="Unset it")


def _checked(frame: DataFrame, row: pa.Schema) -> Iterator[Column]:
    """Yield the columns; a value that the feed does not take fails the write, with `_MISFIT` and what it is."""
    for number, field in enumerate(row):
        column, given = F.col(quoted(field.name)), frame.schema[field.name]
        faults = []
        if given.nullable and not field.nullable:
            faults.append((column.isNull(), 0))
        if isinstance(given.dataType, StringType):
            faults.append((~F.is_valid_utf8(column), 1))
        checked = column
        for fault, says in faults:
            checked = F.when(fault, F.raise_error(F.lit(f"{_MISFIT}{number}.{says}."))).otherwise(checked)
        yield checked.alias(field.name)


@contextmanager
def _refusing_misfits(frame: DataFrame) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        if found := re.search(rf"{_MISFIT}(\d+)\.(\d)\.", str(error.__cause__)):
            column, (says, remedy) = frame.columns[int(found[1])], _MISFITS[int(found[2])]
            raise InvalidRequest(f"column {column} has {says}", about="rows", remedy=remedy) from error
        raise


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Translate Spark's errors; a Conflict becomes an EngineError, as it is no other writer's but a text of the
    application's.
    """
    try:
        with spark_faults(what):
            yield
    except Conflict as error:
        raise EngineError(f"{what}: {str(error.__cause__)[:MESSAGE_LENGTH_MAX]}") from error.__cause__


def _open_sorted(frame: DataFrame, directory: str) -> DataFrame:
    """Open the sorted rows in a session whose settings are ours.

    The session is one of the JVM alone, as pyspark's would become the one that the application's `toDF` makes frames
    of.
    """
    schema = StructType([StructField(ROW, frame.schema)])
    with spark_faults("open the sorted rows"):
        session: Any = frame.sparkSession._jsparkSession.newSession()
        for name, value in _SESSION.items():
            session.conf().set(name, value)
        reader = session.read().schema(session.parseDataType(schema.json())).option("__globPaths__", "false")
        return DataFrame(reader.format("parquet").load(directory), frame.sparkSession)


def _numbered(
    rows: DataFrame, files: Sequence[FileFooter], description: FeedDescription, first: UlidPlace, stamp: FeedStamp
) -> DataFrame:
    count = sum(file.rows for file in files)
    before = [0] * (number_of(files[-1].path) + 1)
    for file, total in zip(files, accumulate(file.rows for file in files), strict=True):
        before[number_of(file.path)] = total - file.rows
    name = F.col(f"{_METADATA}.file_name")
    at = files[0].path.rpartition("/")[2].index("-") + 2
    digits = F.substring(name, at, F.locate("-", name, at) - at)
    rows_before = F.get(listed(map(str, before)).cast("array<bigint>"), digits.cast("int"))
    # In a step of its own: it would be computed for each part of a ulid.
    rows = rows.select(ROW, (rows_before + F.col(f"{_METADATA}.row_index")).alias(_NUMBER))
    number = F.col(_NUMBER)
    columns = {
        ULID: ulid_of(first, count, number),
        ULID_TEXT: ulid_text_of(first, count, number),
        KEY: F.struct(*(_of_row(name).alias(name) for name in description.key)),
        OPERATION: F.lit(stamp.operation),
        VERSION: F.lit(stamp.version).cast("bigint"),
        NET: F.lit(stamp.net),
        ROW: F.col(ROW),
    }
    return rows.select(*(columns[name].alias(name) for name in description.file_schema.names))


def _of_row(name: str) -> Column:
    return F.col(f"{ROW}.{quoted(name)}")
