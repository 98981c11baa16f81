"""A data file of a table: which rows of it are gone, and the others, of some columns or at some places. Beside it lie
the rows of a Parquet file as they are in memory, and the cache of rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.delta.log.actions import is_count, statistics_of
from iscp.delta.log.live_files import NotReadableHere
from iscp.delta.log.readable_files import GONE_ROWS_MAX, Places, read_vector
from iscp.model.sql.sql_names import path_of
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.ports.source import ChangesUnavailableError
from iscp.storage import files
from iscp.storage.bounded_parquet import (
    FIXED_BYTES,
    Allowance,
    BoundedParquet,
    TooLargeError,
    decoded_bytes,
    open_parquet,
)
from iscp.storage.delta_errors import storage_faults
from iscp.storage.regular_files import REMEDY, place_of_file
from iscp.storage.table_files import open_input
from iscp.system.late_imports import pc
from iscp.system.recent_values import RecentValues

# --- rows of Parquet files --------------------------------------------------------------------------------------------
# The rows of a file are read into memory with a bound: a file's own size bounds nothing, as 8 MiB of a text that
# repeats itself are gigabytes once they are decoded. The calendar of the rows' dates follows from what the file says of
# its writer.

# As Spark decides it (DataSourceUtils.getRebaseSpec), whose versions compare as texts. 3.0 still wrote INT96 as before.
_SPARK_VERSION, _NEW_CALENDAR_SINCE = b"org.apache.spark.version", b"3.1.0"
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_CALENDARS_AGREE_FROM_DAY = -25_567
"""1900-01-01: dates differ before 1582-10-15, instants until the last time zone left its local mean time."""


class ParquetRows:
    """The rows of one file of a table. Columns are found without regard to case.

    Raises ChangesUnavailableError where the file is gone, StorageError, and pyarrow's errors where it is damaged.
    """

    def __init__(self, uri: str, path: str, size: int) -> None:
        """`path` is as the log has it, below the table, and so is `size`, in bytes."""
        try:
            with storage_faults(f"read {path} of {uri}"), open_input(uri, path, size) as opened:
                self._parquet = BoundedParquet(opened.read(), opened.path)
        except FileNotFoundError as error:
            raise ChangesUnavailableError(f"{path} is gone") from error
        self.columns = {name.lower(): name for name in self._parquet.schema_arrow.names}

    def __len__(self) -> int:
        return int(self._parquet.metadata.num_rows)

    def read(self, wanted: Sequence[str], allowance: Allowance) -> pa.Table:
        """Return those of the `wanted` columns, or fields of structs by their paths, that the file has; texts may come
        as dictionaries.

        Raises TooLarge where they would take more than the allowance once decoded; no more is in memory at any time.
        """
        places = {name: place for name in wanted if (place := find_part(name, self.columns))}
        names = [*dict.fromkeys(place[0] for place in places.values())]
        file, groups = self._parquet, self._parquet.groups
        bound, coded = file.decoded_bytes_max(groups, names, allowance.left), False
        if bound > allowance.left:
            bound, coded = file.decoded_bytes_max(groups, names, allowance.left, coded=True), True
        with allowance.reserve(bound):
            rows = file.read_groups(groups, names, None, file.texts if coded else ())
            allowance.take(sum(map(decoded_bytes, rows.columns)) if coded else rows.nbytes)
        if all(len(place) == 1 for place in places.values()):
            return rows
        return pa.table(
            {name if path else column: part_of(rows[column], path) for name, (column, *path) in places.items()}
        )

    def calendar_is_known(self, rows: pa.Table) -> bool:
        """Return whether the calendar of dates and times in these rows is known, whoever wrote them."""
        named = self._parquet.metadata.metadata or {}
        if named.get(_SPARK_VERSION, b"") >= _NEW_CALENDAR_SINCE and not any(mark in named for mark in _LEGACY_MARKS):
            return True
        return not has_early_days(rows)


def find_part(name: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return a column among those of a file, which has their names by small letters, and the path to a field in it;
    empty: the file has no such column.
    """
    if name.lower() in columns:
        return (columns[name.lower()],)
    column, *path = path_of(name)
    return (columns[column.lower()], *path) if path and column.lower() in columns else ()


def part_of(column: pa.ChunkedArray, path: Sequence[str]) -> pa.ChunkedArray:
    """Return a column, or the field at a path in its structs, which is null where they are.

    Raises pa.ArrowInvalid where the structs have no field of exactly this name: older files have fewer.
    """
    kind = column.type
    for name in path:
        if not pa.types.is_struct(kind) or len(kind.get_all_field_indices(name)) != 1:
            raise pa.ArrowInvalid(f"there is no field {name}")
        kind = kind.field(name).type
    return pc.struct_field(column, list(path)) if path else column


def has_early_days(rows: pa.Table) -> bool:
    """Return whether dates or times of these rows are of days on which calendars differ."""
    return any(map(_is_early, rows.columns))


def _is_early(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_date(column.type) and not pa.types.is_timestamp(column.type):
        return False
    earliest = pc.min(column.cast(pa.timestamp("s") if pa.types.is_date(column.type) else column.type))
    return bool(earliest.is_valid and earliest.value < _first_of(earliest.type))


def _first_of(kind: pa.DataType) -> int:
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
    return _CALENDARS_AGREE_FROM_DAY * 86_400 * per_second


# --- the cache of rows ------------------------------------------------------------------------------------------------

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of decoded rows in a node's cache, of all tables together; the longest unused are dropped, and read again."""

CACHED_FILE_BYTES_MAX = 4 * 1024**2
"""Bytes of a data file whose rows are cached; of a larger one only what a change needs is read, each time."""


class RowCache:
    """Caches the decoded rows of small data files between the changes of their tables, as a data file never changes.
    Threads may share it.
    """

    def __init__(self, bytes_max: int = CACHED_BYTES_MAX, file_bytes_max: int = CACHED_FILE_BYTES_MAX) -> None:
        self.file_bytes_max = file_bytes_max
        self._rows: RecentValues[Hashable, pa.Table] = RecentValues(bytes_max, attrgetter("nbytes"))

    def rows(self, file: Hashable, read: Callable[[], pa.Table]) -> pa.Table:
        """Return the rows of `file`, which names a file and the columns of it; if they are not cached, `read` returns
        them, or raises.
        """
        found = self._rows.get(file)
        return self._rows.put(file, read()) if found is None else found


ROW_CACHE = RowCache()
"""The cache of this process."""


# --- data files -------------------------------------------------------------------------------------------------------

_WHOLE, _DAY = re.compile(r"-?\d+", re.ASCII), re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@dataclass
class DataFile:
    """One file of the table at `uri`, by its `add` action; `gone` are its rows that a deletion vector takes out.

    `cache` has the rows of small files, `partitions` are the table's columns that are in paths.
    """

    uri: str
    add: Mapping[str, Any]
    cache: RowCache = ROW_CACHE
    partitions: Sequence[str] = ()
    gone: Places = field(init=False)

    def __post_init__(self) -> None:
        """Raises NotReadableHere where its vector is not read here, StorageError where it cannot be."""
        vector = self.add.get("deletionVector")
        if not vector:
            self.gone = np.empty(0, np.int64)
            return
        rows, counted = statistics_of(self.add).get("numRecords"), vector.get("cardinality")
        rows_max = rows if is_count(rows) else sys.maxsize
        if is_count(counted) and counted > rows_max:
            raise self._beyond(rows_max)
        self.gone = read_vector(self.uri, vector)
        if len(self.gone) and self.gone[-1] >= rows_max:
            raise self._beyond(rows_max)

    def _beyond(self, rows: int) -> StorageError:
        return StorageError(
            f"the deletion vector of {self.add['path']} of {self.uri} takes out more than the {rows} rows of the file",
            code=ErrorCode.LOG_CORRUPT,
            remedy=REMEDY,
        )

    @cached_property
    def partition(self) -> Mapping[str, str | None]:
        """Return the values of columns that the log has in place of the file, as texts, by names in small letters.

        Raises NotReadableHere where one is not there, or no text.
        """
        values = self.add.get("partitionValues") or {}
        if not all(each in values and isinstance(values[each], str | None) for each in self.partitions):
            raise NotReadableHere
        return {each.lower(): values[each] for each in self.partitions}

    @property
    def is_small(self) -> bool:
        return (self.add.get("size") or 0) <= self.cache.file_bytes_max

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        """Return these columns of all rows, or of those in `places`, in their order. Raises as `groups`."""
        return pa.concat_tables([schema.empty_table(), *self.groups(schema, places, Allowance(ROWS_BYTES_MAX))])

    def groups(
        self, schema: pa.Schema, places: Places | None = None, allowance: Allowance | None = None
    ) -> Iterator[pa.Table]:
        """Yield the same, one row group after another, as no more than that is decoded at a time. Raises as
        `open_groups`, and NotReadableHere where a row group has more rows than are read, or all have more than the
        allowance.
        """
        with self.open_groups() as groups:
            for group in groups:
                at = None if places is None else places[slice(*np.searchsorted(places, [group.begin, group.end]))]
                if at is None or len(at):
                    yield group.read(schema, None if at is None else at - group.begin, allowance)

    @contextmanager
    def open_groups(self) -> Iterator[Sequence[RowGroup]]:
        """Raises NotReadableHere where the file is not there, StorageError where it is none that is read."""
        path = self.add["path"]
        with storage_faults(f"read {path} of {self.uri}"), ExitStack() as stack:
            try:
                parquet = stack.enter_context(open_parquet(self.uri, path, self.add.get("size")))
            except FileNotFoundError as error:
                raise NotReadableHere from error  # Spark says what it misses
            names = {name.lower(): name for name in parquet.schema_arrow.names}
            counts = [parquet.metadata.row_group(number).num_rows for number in parquet.groups]
            ends, coded = np.cumsum(counts).tolist(), _coded(parquet)
            yield [
                RowGroup(parquet, names, self.partition, coded, number, end - counts[number], end)
                for number, end in enumerate(ends)
            ]

    @contextmanager
    def open_cached(self, schema: pa.Schema) -> Iterator[Sequence[RowGroup | CachedRows]]:
        """Yield the row groups as `open_groups`; of a small file all columns of the table, which are cached for the
        next time.
        """
        if not self.is_small:
            with self.open_groups() as groups:
                yield groups
            return
        stamp = files.stamp(path := place_of_file(self.uri, self.add["path"]))
        if not stamp:
            raise NotReadableHere
        key = (path, stamp, schema, tuple(self.partition.items()))
        yield [CachedRows(self.cache.rows(key, lambda: self.read(schema)))]


def partition_column(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return the value of a partition, as the log has it, for so many rows; None: they are null in it.

    Raises NotReadableHere for types whose values are written in several ways, for other spellings than writers have,
    and for an empty text, which is a null by Delta's protocol, and none to Spark.
    """
    if text is None:
        return pa.nulls(count, kind)
    is_spelled_so = (
        (pa.types.is_integer(kind) and _WHOLE.fullmatch(text))
        or (pa.types.is_date32(kind) and _DAY.fullmatch(text))
        or (pa.types.is_string(kind) and text)
    )
    if is_spelled_so:
        with suppress(pa.ArrowException):
            return pa.repeat(pa.scalar(text, pa.string()).cast(kind), count)
    raise NotReadableHere


def open_files(
    uri: str, adds: Iterable[Mapping[str, Any]], cache: RowCache = ROW_CACHE, partitions: Sequence[str] = ()
) -> list[DataFile]:
    """Return the files of a table, with what their deletion vectors take out. Raises NotReadableHere, StorageError."""
    opened, gone = [], 0
    for add in adds:
        opened.append(DataFile(uri, add, cache, partitions))
        gone += len(opened[-1].gone)
        if gone > GONE_ROWS_MAX:
            raise NotReadableHere
    return opened


GROUP_BYTES_MAX = 512 * 1024**2
"""Bytes of memory that the columns of a row group which are read together may take; a file with more is left to
Spark, unless some of its rows alone are wanted, for which one column is read after the other."""

ROWS_BYTES_MAX = 1024**3
"""Bytes of memory that the rows of a file may take which are read together; more are left to Spark."""

CODED_BYTES_MAX = 2
"""Bytes that a text takes in a column's part of a file, up to which all of them are references to a few values."""


def _coded(parquet: BoundedParquet) -> frozenset[str]:
    """Return the texts of few values, which are read as references to these: taking some of all rows copies none."""
    schema = parquet.schema
    return frozenset(schema.column(place).path for place in range(len(schema)) if _is_coded(parquet, place))


def _is_coded(parquet: BoundedParquet, place: int) -> bool:
    column = parquet.schema.column(place)
    if column.path != column.name or str(column.logical_type) != "String":
        return False
    parts = parquet.chunks(column.path)
    return all(each.has_dictionary and each.unpacked <= CODED_BYTES_MAX * each.values for each in parts)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of an open file, with the rows from `begin` to `end`; `names` are its columns by their names in small
    letters, `partition` is as in DataFile, and the texts of `coded` columns are read as references.
    """

    parquet: BoundedParquet
    names: Mapping[str, str]
    partition: Mapping[str, str | None]
    coded: frozenset[str]
    number: int
    begin: int
    end: int

    def read(self, schema: pa.Schema, places: Places | None = None, allowance: Allowance | None = None) -> pa.Table:
        """Return these columns, of all rows or of some; a column that is younger than the file is null.

        Raises NotReadableHere where what is returned takes more than the allowance, or decoding it more than
        GROUP_BYTES_MAX, and for a value of a partition that is not read here.
        """
        allowance = Allowance(ROWS_BYTES_MAX) if allowance is None else allowance
        there = {low: name for low, name in self.names.items() if low not in self.partition}
        parts = [find_part(name, there) for name in schema.names]
        own = [*dict.fromkeys(place[0] for place in parts if place)]
        count = self.end - self.begin if places is None else len(places)
        columns = []
        try:
            rows = self._decode(own, None if places is None else pa.array(places))
            for each, place in zip(schema, parts, strict=True):
                if place:
                    values = part_of(rows[place[0]], place[1:])
                    allowance.take(decoded_bytes(values))
                    columns.append(values.cast(each.type))
                else:
                    text = self.partition.get(each.name.lower())
                    allowance.take(count * (FIXED_BYTES + len(text or "")))
                    columns.append(partition_column(text, each.type, count))
        except TooLargeError as error:
            raise NotReadableHere from error
        return pa.table(columns, schema=schema)

    def _decode(self, names: Sequence[str], at: pa.Array | None) -> Mapping[str, pa.ChunkedArray]:
        """Decode the columns together, or one after the other where that takes too much and only some rows are taken of
        each.
        """
        read, number = self.parquet.read_groups, [self.number]
        try:
            rows = read(number, names, GROUP_BYTES_MAX, self.coded)
            return dict(zip(rows.column_names, (rows if at is None else rows.take(at)).columns, strict=True))
        except TooLargeError:
            if at is None:
                raise
            return {name: read(number, [name], GROUP_BYTES_MAX, self.coded)[name].take(at) for name in names}


@dataclass(frozen=True, slots=True)
class CachedRows:
    """All rows of a file, as if they were one row group of it."""

    rows: pa.Table
    begin: int = 0

    @property
    def end(self) -> int:
        return len(self.rows)

    def read(self, schema: pa.Schema, places: Places | None = None, allowance: Allowance | None = None) -> pa.Table:
        """Return the columns, which are in memory already."""
        rows = self.rows.select(schema.names)
        return rows if places is None else rows.take(pa.array(places))
