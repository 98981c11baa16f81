"""Writes many rows of a changefeed by Spark: files that a commit adopts, in the order of their ulids.

Rows are sorted into files beside the feed's own first. A row's number is how many rows are in the files before its
own, and its place there: whatever Spark does again when it writes them for good, it is the same. Numbers that come
from Spark's partitions are not: partitions may be computed anew, with other rows, as soon as an executor is lost.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from iscp.adapters.delta import storage
from iscp.adapters.delta.commits import place
from iscp.adapters.delta.faults import delta_faults
from iscp.adapters.delta.feed_draft import FILE_PREFIX, GROUP_ROWS, file_stats
from iscp.adapters.delta.feed_frame import spark_place
from iscp.adapters.delta.feed_functions import listed, ulid_of, ulid_text_of
from iscp.adapters.delta.feed_schema import KEY, NET, OPERATION, ROW, ULID, ULID_TEXT, VERSION, FeedDescription
from iscp.adapters.delta.spark_faults import spark_faults
from iscp.adapters.delta.table_files import files_of, local_path
from iscp.core.errors import EngineError, InvalidRequest
from iscp.core.quoting import quoted
from iscp.core.ulid import UlidPlace, parse_ulid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILE_ROWS = 1024 * 1024
"""Rows of one file."""

SPLIT_BYTES = 128 * 1024**2
"""Of a sorted file, for one task that writes it for good."""

FOOTER_READERS = 8
"""Threads that look into the files that were written."""

_METADATA, _NUMBER = "_metadata", "_number"
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
    # As Delta has it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file says of itself; `first` and `last`: the ulids' texts, of a file that has them."""

    path: str
    size: int
    rows: int
    first: str = ""
    last: str = ""


def write_files(
    frame: DataFrame,
    uri: str,
    description: FeedDescription,
    shard: int,
    first: UlidPlace,
    order_by: Sequence[str | tuple[str, str]],
    operation: str,
) -> tuple[list[AddAction], int]:
    """Write the rows of a frame with the ulids from `first` on: files below the table, for a commit, and how many rows.

    The rows are sorted by `order_by`, each a column or (column, "ascending") or (column, "descending"), nulls last;
    without it they stay in the order of the frame's partitions. Whoever does not commit the files deletes them.
    Raises InvalidRequest (they do not fit; there is not a file then), StorageError, EngineError, Canceled.
    """
    description.refuse_shard(shard)
    frame = _fitted(frame, description.row)
    order = [_order(frame, each) for each in order_by]
    files, home = files_of(place(uri), None), spark_place(frame.sparkSession, uri)
    name = uuid.uuid4().hex
    staged, final = (f"{description.folder(shard)}/{kind}{name}" for kind in ("staged-", FILE_PREFIX))
    with _deleted(f"{place(uri)}/{staged}"):
        with spark_faults("sort the rows for a feed"):
            ordered = frame.orderBy(*order) if order else frame
            row = F.struct(*(F.col(quoted(name)) for name in frame.columns))
            ordered.select(row.alias(ROW)).write.options(**_SORTED).parquet(f"{home}/{staged}")
        sorted_files = sorted(_footers(files, staged), key=lambda file: _number(file.path))
        count = sum(file.rows for file in sorted_files)
        if not count:
            return [], 0
        first.after(count)
        rows = _sorted_rows(frame, f"{home}/{staged}")
        _refuse_nulls(rows, frame, description.row)
        with _deleted(f"{place(uri)}/{final}", only_failed=True):
            with spark_faults("write the rows of a feed"):
                numbered = _numbered(rows, sorted_files, description, first, operation)
                numbered.write.options(**_FINAL).parquet(f"{home}/{final}")
            _delete_checksums(uri, final)
            written = sorted((file for file in _footers(files, final) if file.rows), key=lambda file: file.first)
            return list(_adds(written, description.partition(shard), first, count)), count


@contextmanager
def _deleted(directory: str, *, only_failed: bool = False) -> Iterator[None]:
    """What cannot be deleted a vacuum takes."""
    keep = False
    try:
        yield
        keep = only_failed
    finally:
        if not keep:
            with suppress(OSError):
                storage.remove_tree(directory)


def _delete_checksums(uri: str, directory: str) -> None:
    """Hadoop's, beside each file on a local path: a commit that is given up deletes only what it knows."""
    path = local_path(uri)
    for checksum in path.joinpath(directory).glob(".*.crc") if path else ():
        checksum.unlink(missing_ok=True)


def _fitted(frame: DataFrame, row: pa.Schema) -> DataFrame:
    """With the feed's columns in their order."""
    wanted, given = (sorted(_told(schema)) for schema in (_spark_schema(row), frame.schema))
    if wanted != given:
        raise InvalidRequest(
            f"the rows have the columns {', '.join(_told(frame.schema))}",
            field="rows",
            remedy=f"Cast them to the feed's: {', '.join(_told(_spark_schema(row)))}",
        )
    if frame.isStreaming:
        raise InvalidRequest("the rows are a stream", field="rows", remedy="Append what foreachBatch gives")
    return frame.select(*map(quoted, row.names))


def _spark_schema(row: pa.Schema) -> StructType:
    return from_arrow_schema(row, prefer_timestamp_ntz=True)


def _told(schema: StructType) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in schema]


def _order(frame: DataFrame, each: str | tuple[str, str]) -> Column:
    name, direction = (each, "ascending") if isinstance(each, str) else each
    if name not in frame.columns or direction not in ("ascending", "descending"):
        raise InvalidRequest(
            f"{each!r} says no order",
            field="order_by",
            remedy=f'Name any of {", ".join(frame.columns)}, or ("name", "descending")',
        )
    column = F.col(quoted(name))
    return column.asc_nulls_last() if direction == "ascending" else column.desc_nulls_last()


def _sorted_rows(frame: DataFrame, directory: str) -> DataFrame:
    """What was sorted, in a session whose settings are ours alone."""
    session: SparkSession = frame.sparkSession.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    with spark_faults("open the sorted rows"):
        return session.read.schema(StructType([StructField(ROW, frame.schema)])).parquet(directory)


def _refuse_nulls(rows: DataFrame, frame: DataFrame, row: pa.Schema) -> None:
    """Of columns that take none."""
    suspect = [field.name for field in row if not field.nullable and frame.schema[field.name].nullable]
    if not suspect:
        return
    with spark_faults("look for nulls in the rows of a feed"):
        found = rows.select(*(F.count_if(_of_row(name).isNull()).alias(name) for name in suspect)).first()
    for name, nulls in zip(suspect, found or (), strict=False):
        if nulls:
            raise InvalidRequest(f"column {name} has nulls", field="rows", remedy="The feed's column takes none")


def _numbered(
    rows: DataFrame, files: Sequence[_Footer], description: FeedDescription, first: UlidPlace, operation: str
) -> DataFrame:
    count = sum(file.rows for file in files)
    before = [0] * (_number(files[-1].path) + 1)
    for file, total in zip(files, accumulate(file.rows for file in files), strict=True):
        before[_number(file.path)] = total - file.rows
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
        OPERATION: F.lit(operation),
        VERSION: F.lit(None).cast("bigint"),
        NET: F.lit(False),
        ROW: F.col(ROW),
    }
    return rows.select(*(columns[name].alias(name) for name in description.file_schema.names))


def _of_row(name: str) -> Column:
    return F.col(f"{ROW}.{quoted(name)}")


def _number(path: str) -> int:
    """Of a sorted file: that of the partition that it was."""
    return int(path.rpartition("/")[2].split("-")[1])


def _footers(files: pafs.FileSystem, directory: str) -> list[_Footer]:
    """Of all files in a directory. Raises StorageError."""
    with delta_faults(f"look into {directory}"):
        found = files.get_file_info(pafs.FileSelector(directory))
        paths = [each.path for each in found if each.is_file and each.path.endswith(".parquet")]
        with ThreadPoolExecutor(FOOTER_READERS, "iscp-feed-footer") as pool:
            return list(pool.map(partial(_footer, files), paths))


def _footer(files: pafs.FileSystem, path: str) -> _Footer:
    with files.open_input_file(path) as stream:
        size = stream.size()
        found = pq.read_metadata(stream)
    names = [found.schema.column(number).path for number in range(len(found.schema))]
    if ULID_TEXT not in names or not found.num_rows:
        return _Footer(path, size, found.num_rows)
    column = names.index(ULID_TEXT)
    bounds = [found.row_group(group).column(column).statistics for group in range(found.num_row_groups)]
    return _Footer(path, size, found.num_rows, min(each.min for each in bounds), max(each.max for each in bounds))


def _adds(
    files: Sequence[_Footer], partition: dict[str, str | None], first: UlidPlace, count: int
) -> Iterator[AddAction]:
    """Raises EngineError unless the files have all ulids from `first` on, each once."""
    at, rows = first, 0
    for file in files:
        ends = (parse_ulid(file.first), parse_ulid(file.last))
        if ends != (at.ulid(), at.ulid(file.rows - 1)):
            raise EngineError(f"{file.path} has other ulids than those of its rows")
        yield AddAction(file.path, file.size, partition, int(time.time() * 1000), True, file_stats(at, file.rows))
        at, rows = at.after(file.rows), rows + file.rows
    if rows != count:
        raise EngineError(f"{rows} rows were written of {count} that were sorted")
