"""A data file of a table: which rows of it are gone, and the others, of some columns or at some places."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iscp.adapters.delta.log.actions import is_count, statistics_of
from iscp.adapters.delta.log.deletion_vectors import GONE_ROWS_MAX, Places, read_vector
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.row_cache import ROW_CACHE, RowCache
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import REMEDY, place_of_file
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.table_files import open_input
from iscp.core.values.errors import ErrorCode, StorageError


@dataclass
class DataFile:
    """One file of the table at `uri`, by its `add` action; `gone` are its rows that a deletion vector takes out.

    `cache` has the rows of small files.
    """

    uri: str
    add: Mapping[str, Any]
    cache: RowCache = ROW_CACHE
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

    @property
    def is_small(self) -> bool:
        return (self.add.get("size") or 0) <= self.cache.file_bytes_max

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        """Return these columns of all rows, or of those in `places`, in their order. Raises as `groups`."""
        return pa.concat_tables([schema.empty_table(), *self.groups(schema, places)])

    def groups(self, schema: pa.Schema, places: Places | None = None) -> Iterator[pa.Table]:
        """Yield the same, one row group after another, as no more than that is decoded at a time. Raises as
        `open_groups`.
        """
        with self.open_groups() as groups:
            for group in groups:
                at = None if places is None else places[slice(*np.searchsorted(places, [group.begin, group.end]))]
                if at is None or len(at):
                    yield group.read(schema, None if at is None else at - group.begin)

    @contextmanager
    def open_groups(self) -> Iterator[Sequence[RowGroup]]:
        """Raises NotReadableHere where the file is not there, StorageError where it is none that is read."""
        path = self.add["path"]
        with storage_faults(f"read {path} of {self.uri}"):
            try:
                source = open_input(self.uri, path, self.add.get("size"))
            except FileNotFoundError as error:
                raise NotReadableHere from error  # Spark says what it misses
        with source, storage_faults(f"read {path} of {self.uri}"), _opened(source) as parquet:
            names = {name.lower(): name for name in parquet.schema_arrow.names}
            counts = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
            ends = np.cumsum(counts).tolist()
            yield [RowGroup(parquet, names, number, end - counts[number], end) for number, end in enumerate(ends)]

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
        yield [CachedRows(self.cache.rows((path, stamp, schema), lambda: self.read(schema)))]


def open_files(uri: str, adds: Iterable[Mapping[str, Any]], cache: RowCache = ROW_CACHE) -> list[DataFile]:
    """Return the files of a table, with what their deletion vectors take out. Raises NotReadableHere, StorageError."""
    opened, gone = [], 0
    for add in adds:
        opened.append(DataFile(uri, add, cache))
        gone += len(opened[-1].gone)
        if gone > GONE_ROWS_MAX:
            raise NotReadableHere
    return opened


CODED_BYTES_MAX = 2
"""Bytes that a text takes in a column's part of a file, up to which all of them are references to a few values."""


def _opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Open the file such that texts of few values are read as references to these: taking some of all rows copies
    none.
    """
    parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    coded = [name for place, name in enumerate(parquet.schema.names) if _is_coded(parquet, place)]
    if not coded:
        return parquet
    known = parquet.metadata
    return pq.ParquetFile(source, metadata=known, read_dictionary=coded, coerce_int96_timestamp_unit="us")


def _is_coded(parquet: pq.ParquetFile, place: int) -> bool:
    column = parquet.schema.column(place)
    if column.path != column.name or str(column.logical_type) != "String":
        return False
    parts = (parquet.metadata.row_group(number).column(place) for number in range(parquet.num_row_groups))
    return all(
        each.has_dictionary_page and each.total_uncompressed_size <= CODED_BYTES_MAX * each.num_values for each in parts
    )


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of an open file, with the rows from `begin` to `end`; `names` are its columns by their names in small
    letters.
    """

    parquet: pq.ParquetFile
    names: Mapping[str, str]
    number: int
    begin: int
    end: int

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        """Return these columns, of all rows or of some; a column that is younger than the file is null."""
        own = [self.names[name.lower()] for name in schema.names if name.lower() in self.names]
        rows, count = self.parquet.read_row_group(self.number, own), self.end - self.begin
        if places is not None:
            rows, count = rows.take(pa.array(places)), len(places)
        columns = [
            rows[self.names[each.name.lower()]].cast(each.type)
            if each.name.lower() in self.names
            else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class CachedRows:
    """All rows of a file, as if they were one row group of it."""

    rows: pa.Table
    begin: int = 0

    @property
    def end(self) -> int:
        return len(self.rows)

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        rows = self.rows.select(schema.names)
        return rows if places is None else rows.take(pa.array(places))
