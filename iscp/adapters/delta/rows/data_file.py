"""A data file of a table: which rows of it are gone, and the others, of some columns or at some places."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.adapters.delta.log.actions import is_count, statistics_of
from iscp.adapters.delta.log.deletion_vectors import GONE_ROWS_MAX, Places, read_vector
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.row_cache import ROW_CACHE, RowCache
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import REMEDY, place_of_file
from iscp.adapters.delta.storage.bounded_parquet import (
    FIXED_BYTES,
    Allowance,
    BoundedParquet,
    TooLargeError,
    decoded_bytes,
    open_parquet,
)
from iscp.adapters.delta.storage.delta_errors import storage_faults
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
                RowGroup(parquet, names, coded, number, end - counts[number], end) for number, end in enumerate(ends)
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
    letters, and `coded` those whose texts are read as references.
    """

    parquet: BoundedParquet
    names: Mapping[str, str]
    coded: frozenset[str]
    number: int
    begin: int
    end: int

    def read(self, schema: pa.Schema, places: Places | None = None, allowance: Allowance | None = None) -> pa.Table:
        """Return these columns, of all rows or of some; a column that is younger than the file is null.

        Raises NotReadableHere where what is returned takes more than the allowance, or decoding it more than
        GROUP_BYTES_MAX.
        """
        allowance = Allowance(ROWS_BYTES_MAX) if allowance is None else allowance
        own = [self.names[name.lower()] for name in schema.names if name.lower() in self.names]
        count = self.end - self.begin if places is None else len(places)
        columns = []
        try:
            rows = self._decode(own, None if places is None else pa.array(places))
            for each in schema:
                there = self.names.get(each.name.lower())
                allowance.take(count * FIXED_BYTES if there is None else decoded_bytes(rows[there]))
                columns.append(pa.nulls(count, each.type) if there is None else rows[there].cast(each.type))
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
