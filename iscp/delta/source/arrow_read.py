"""Reads small changes and tables from the very files that the log names, without Spark: planning a job costs more.
Spark reads what cannot be read so for certain, as other layouts, older calendars, types that Arrow has otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyroaring import BitMap64

from iscp.delta.log.actions import is_count
from iscp.delta.log.commits import ChangeFile, Commit, Descriptor
from iscp.delta.log.live_files import NotReadableHere
from iscp.delta.log.readable_files import Places, load_vector
from iscp.delta.log.table_opening import add_actions_of, open_delta
from iscp.delta.rows.data_file import ParquetRows, partition_column
from iscp.delta.rows.net_changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, arrow_schema, fits_arrow
from iscp.model.sql.sql_names import fields_by_name, reserved_names
from iscp.model.values.errors import PermanentError, StorageError
from iscp.model.values.watermark import COLLATIONS, ColumnIds, collated_columns, column_ids, doubled_names
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.bounded_parquet import Allowance, TooLargeError
from iscp.storage.delta_errors import delta_faults, direct_work
from iscp.storage.locations import on_s3
from iscp.storage.regular_files import lies_elsewhere
from iscp.system.late_imports import T

# --- rows that a deletion vector changes ------------------------------------------------------------------------------
# The rows of a data file that a commit has changed by a deletion vector alone are found here (Delta protocol, "Add CDC
# File"). A file that a commit takes away and puts back with another vector lost the rows that only the later vector
# marks, and got back those that only the former one marks.

_READ_HERE = ("i", "u")
"""The ways of storing a vector by which it is inline, or below its table."""


class UnreadVectorError(Exception):
    """A vector is not read here, or is damaged: Spark reads it, or says what is wrong with it."""


def find_changed_places(uri: str, file: ChangeFile, rows: int, allowance: Allowance) -> Places | None:
    """Return the numbers of the changed rows of a file with `rows` rows, or None if all are.

    Raises UnreadVectorError, and TooLargeError where vectors and numbers take more memory than allowed.
    """
    if file.within is None and file.without is None:
        return None
    gone = BitMap64() if file.without is None else _read(uri, file.without, rows, allowance)
    if file.within is not None:
        chosen = _read(uri, file.within, rows, allowance) - gone
        allowance.take(len(chosen) * np.dtype(np.int64).itemsize)
        return np.array(chosen.to_array(), np.int64)
    allowance.take(rows * np.dtype(np.int64).itemsize)
    left = np.ones(rows, np.bool_)
    left[np.array(gone.to_array(), np.int64)] = False
    return np.flatnonzero(left)


def _read(uri: str, vector: Descriptor, rows: int, allowance: Allowance) -> BitMap64:
    size = vector.get("sizeInBytes")
    if vector.get("storageType") not in _READ_HERE or not is_count(size):
        raise UnreadVectorError
    allowance.take(size)
    try:
        found = load_vector(uri, vector)
    except (StorageError, PermanentError) as error:
        raise UnreadVectorError from error
    if len(found) and found.max() >= rows:
        raise UnreadVectorError
    return found


# --- changes and tables -----------------------------------------------------------------------------------------------

_FEED_ON = "delta.enableChangeDataFeed"
_MAPPING = "delta.columnMapping.mode"
# Reader features that leave files and rows as they are for a reader without deletion vectors.
FEATURES_READ = frozenset({"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
# Columns whose strings compare, or are read, in a way of their own.
_SPECIAL = ("__CHAR_VARCHAR_TYPE_STRING", COLLATIONS)
# The same of whole tables: of these deltalake says all that a reader must know, which of deletion vectors it does not.
_SNAPSHOT_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck"})
SNAPSHOT_FILES_MAX = 20_000
"""Files of a table whose rows are read here; more are left to Spark, which takes ten times as long for a small one."""

SNAPSHOT_FILE_BYTES = 16 * 1024
"""Bytes of each file of a table that count for nothing: what they hold is little beside what a file costs Spark."""

FILES_READ_AT_ONCE = 16
"""Files that are read side by side where a store may take long to answer. Local files are read one after another:
threads that wait for each other's lock of the interpreter took twice the processor time for thousands of small files.
"""

_CHUNKS_MAX = 100
# Whether a path is spelled in the log as in the file system is nobody's question then.
_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
_STAMPS_BYTES, _NULL_BYTES = 48, 16
"""Bytes in memory of a change's kind, version and time in each row, and of a column that its file does not have."""


def has_special_texts(metadata: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether texts of one of these columns compare, or are read, in a way of their own."""
    return any(mark in each for each in metadata for mark in _SPECIAL)


class NotDirectError(Exception):
    """Spark has to read these rows; the text says why."""

    def __init__(self, why: str = "some are in files that are read by Spark alone") -> None:
        super().__init__(why)


@dataclass(frozen=True)
class Shape:
    """A table as of a version: `schema_json` as Delta writes it, `features` are those that readers must know."""

    table_id: str
    schema_json: str
    partitions: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]

    @classmethod
    def of(cls, table: DeltaTable) -> Shape:
        metadata, protocol = table.metadata(), table.protocol()
        return cls(
            str(metadata.id),
            table.schema().to_json(),
            tuple(metadata.partition_columns),
            metadata.configuration,
            frozenset(protocol.reader_features or ()),
        )

    @cached_property
    def every_field(self) -> tuple[dict[str, Any], ...]:
        return tuple(json.loads(self.schema_json)["fields"])

    @cached_property
    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the fields that can have values: Delta reads no column of the type void."""
        return {field["name"]: field for field in self.every_field if field["type"] != "void"}

    @cached_property
    def _every_part(self) -> Mapping[str, Mapping[str, Any]]:
        return fields_by_name(self.fields.values())

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.fields)

    @cached_property
    def column_ids(self) -> ColumnIds:
        mapped = self.configuration.get(_MAPPING, "none") != "none"
        return column_ids(self.fields.values()) if mapped else {}

    @cached_property
    def collated(self) -> tuple[str, ...]:
        return collated_columns(self.every_field)

    @cached_property
    def reserved(self) -> tuple[str, ...]:
        return reserved_names(self.columns)

    @cached_property
    def doubled(self) -> tuple[str, ...]:
        return doubled_names(self.every_field)

    @property
    def cdf_on(self) -> bool:
        return self.configuration.get(_FEED_ON, "false").lower() == "true"

    def selected(self, columns: Sequence[str]) -> T.StructType:
        """Return these columns, or fields of structs by their paths, as Spark has them."""
        plain = [{**self._every_part[name], "metadata": {}} for name in columns]
        return T.StructType.fromJson({"type": "struct", "fields": plain})

    def readable(self, columns: Sequence[str], *, arrays: bool = False, lists: bool = False) -> bool:
        """Return whether these columns of the table's files can be read without Spark, and their changes be known.

        `arrays` and `lists` are as in `fits_arrow`.
        """
        return not self.unreadable(columns, arrays=arrays, lists=lists)

    def unreadable(self, columns: Sequence[str], *, arrays: bool = False, lists: bool = False) -> str:
        """Return why these columns cannot be read as `readable` has it; an empty text if they can."""
        if self.configuration.get(_MAPPING, "none") != "none":
            return "the names of its columns are mapped"
        if others := self.features - FEATURES_READ:
            return f"it has {', '.join(sorted(others))}"
        special = has_special_texts(self._every_part[name].get("metadata") or {} for name in columns)
        if special or not fits_arrow(self.selected(columns), (), arrays=arrays, lists=lists):
            return "it has columns of types that are read by Spark alone"
        return ""


def read_changes(
    uri: str,
    commits: Sequence[tuple[Commit, Sequence[ChangeFile]]],
    shape: Shape,
    columns: Sequence[str],
    by_cdf: bool,
    allowance: Allowance,
    *,
    new_schema: bool = True,
) -> pa.Table:
    """Return `columns` of all changes, with `_change_type`, `_commit_version` and `_commit_timestamp` (UTC), oldest
    first.

    `by_cdf`: what the commits added and removed counts only if the table has a change data feed. `new_schema`: a commit
    that carries the table's metadata may have changed its columns. Raises NotDirect, TooLarge where the rows would take
    more memory than allowed, and ChangesUnavailableError where a file is gone.
    """
    # Where columns stay as they were and no file came or went, no row is of another shape: a property was set.
    reshaped = any(commit.reshapes for commit, _ in commits) and (new_schema or any(files for _, files in commits))
    if by_cdf and not shape.cdf_on:
        raise NotDirectError("its change data feed is off")
    if why := shape.unreadable(columns, arrays=True):
        raise NotDirectError(why)
    if reshaped:
        raise NotDirectError("its columns may have changed")
    schema = arrow_schema(shape.selected(columns))
    with direct_work(), _unfit_left_to_spark():
        parts = [
            _stamped(_read_file(uri, file, shape, schema, allowance), file.change, commit)
            for commit, files in commits
            for file in files
        ]
        table = pa.concat_tables(parts) if parts else _stamped(schema.empty_table(), "insert", commits[0][0])
        table.validate(full=True)  # strings may hold bytes that are no text
    return table


def read_rows(uri: str, version: int, shape: Shape, bytes_max: int, allowance: Allowance) -> tuple[pa.Table, int]:
    """Return all rows as of `version`, of files that have no more than `bytes_max` together beyond SNAPSHOT_FILE_BYTES
    each, and the bytes of the files.

    Raises as `read_changes`, and StorageError where the log cannot be read.
    """
    if why := shape.unreadable(shape.columns):
        raise NotDirectError(why)
    if others := shape.features - _SNAPSHOT_FEATURES:
        raise NotDirectError(f"it has {', '.join(sorted(others))}")
    with direct_work(), delta_faults(f"open {uri}"), _unfit_left_to_spark():
        files = _files_at(open_delta(uri, version=version))
        counted = sum(max(0, (file.size or 0) - SNAPSHOT_FILE_BYTES) for file in files)
        if len(files) > SNAPSHOT_FILES_MAX or counted > bytes_max:
            raise NotDirectError(f"they are in {len(files):,} files, of {counted / 1024**2:.1f} MiB")
    return read_files(uri, files, shape, allowance), sum(file.size or 0 for file in files)


def read_files(uri: str, files: Sequence[ChangeFile], shape: Shape, allowance: Allowance) -> pa.Table:
    """Return all rows of chosen files of a table, which the log itself describes. Raises as `read_changes`."""
    if why := shape.unreadable(shape.columns):
        raise NotDirectError(why)
    schema = arrow_schema(shape.selected(shape.columns))
    with direct_work(), _unfit_left_to_spark():
        at_once = min(FILES_READ_AT_ONCE, max(1, len(files))) if on_s3(uri) else 1
        with ThreadPoolExecutor(at_once, "iscp-files") as pool:
            parts = list(pool.map(lambda file: _read_file(uri, file, shape, schema, allowance), files))
        table = pa.concat_tables([schema.empty_table(), *parts])
        table.validate(full=True)
        # What is done with each chunk takes longer than what is done with few rows.
        return table if len(parts) <= _CHUNKS_MAX else table.combine_chunks()


def _files_at(table: DeltaTable) -> list[ChangeFile]:
    """Return the files of a table, as if it had been written at once."""
    adds = add_actions_of(table).to_pylist()
    places = [(add["path"], add.get("partition") or {}) for add in adds]
    # For deltalake an empty text is a null, for Spark it is not: which of them the log has does not show.
    if not all(_PLAIN_PATH.fullmatch(path) and None not in values.values() for path, values in places):
        raise NotDirectError
    return [
        # Of the types that are read here Python spells values as the log does.
        ChangeFile(path, "insert", {name: str(value) for name, value in values.items()}, add["size_bytes"])
        for add, (path, values) in zip(adds, places, strict=True)
    ]


def fit_in_memory(
    uri: str, commits: Sequence[tuple[Commit, Sequence[ChangeFile]]], columns: Sequence[str], allowance: Allowance
) -> bool:
    """Return whether `columns` of all changes take no more than the allowance, whoever reads them.

    Where names are mapped, files have others: all of their columns count then.
    """
    try:
        with direct_work():
            for _, files in commits:
                for file in files:
                    if file.size is None:
                        return False
                    rows = ParquetRows(uri, file.path, file.size)
                    known = all(name.lower() in rows.columns for name in columns)
                    allowance.take(rows.read(columns if known else [*rows.columns], allowance).num_rows * _STAMPS_BYTES)
    except (TooLargeError, ChangesUnavailableError, StorageError, pa.ArrowException):
        return False
    return True


@contextmanager
def _unfit_left_to_spark() -> Iterator[None]:
    """Raise NotDirect for a value that does not fit the schema's type, and for a damaged file: Spark reports its own
    error.
    """
    try:
        yield
    except pa.ArrowException as unfit:
        raise NotDirectError(str(unfit)) from unfit


def _read_file(uri: str, file: ChangeFile, shape: Shape, schema: pa.Schema, allowance: Allowance) -> pa.Table:
    """Return the schema's columns, and `_change_type` where the file has one."""
    if (
        file.doubtful
        or file.size is None
        or lies_elsewhere(file.path)
        or not file.partition_values.keys() >= {*shape.partitions}
    ):
        raise NotDirectError
    parquet = ParquetRows(uri, file.path, file.size)
    try:
        places = find_changed_places(uri, file, len(parquet), allowance)
    except UnreadVectorError as error:
        raise NotDirectError from error
    raw, count = parquet.read((*schema.names, CHANGE_TYPE), allowance), len(parquet)
    if places is not None:
        raw, count = raw.take(pa.array(places)) if raw.num_columns else raw, len(places)
    repeated = sum(len(value or "") for value in file.partition_values.values())
    allowance.take(count * (_STAMPS_BYTES + _NULL_BYTES * len(schema) + repeated))
    if not parquet.calendar_is_known(raw):
        raise NotDirectError
    by_name = dict(zip(raw.schema.names, raw.columns, strict=True))
    columns = {
        field.name: _partition_value(file, field, count)
        if field.name in shape.partitions
        else _column(by_name.get(parquet.columns.get(field.name.lower(), field.name)), field, count)
        for field in schema
    }
    if not file.change:
        columns[CHANGE_TYPE] = raw[CHANGE_TYPE].cast(pa.string())
    return pa.table(columns)


def _column(column: pa.ChunkedArray | None, field: pa.Field, rows: int) -> pa.ChunkedArray | pa.Array:
    """Return a file's column as the table's type; one that is younger than the file is null in it."""
    return pa.nulls(rows, field.type) if column is None else column.cast(field.type)


def _partition_value(file: ChangeFile, field: pa.Field, rows: int) -> pa.Array:
    try:
        return partition_column(file.partition_values[field.name], field.type, rows)
    except NotReadableHere as error:
        raise NotDirectError from error


def _stamped(rows: pa.Table, change: str, commit: Commit) -> pa.Table:
    if change:
        rows = rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(change), len(rows)))
    at = pa.scalar(round(commit.committed_at_s * 1_000_000), pa.timestamp("us", "UTC"))
    rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(commit.version, pa.int64()), len(rows)))
    return rows.append_column(COMMIT_TIMESTAMP, pa.repeat(at, len(rows)))
