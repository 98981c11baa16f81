"""Reads small changes from the very files that the commits name, without Spark: planning a Spark job costs more.

What cannot be read so for certain (other layouts, older calendars, types that Arrow has otherwise) is left to Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import types as T

from iscp.adapters.delta import storage
from iscp.adapters.delta.commits import ChangeFile, Commit, place
from iscp.adapters.delta.faults import direct_work, storage_faults
from iscp.adapters.delta.net import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, fits_arrow
from iscp.ports.pipeline import ChangesUnavailable

_FEED_ON = "delta.enableChangeDataFeed"
_MAPPING = "delta.columnMapping.mode"
# Reader features that leave files and rows as they are for a reader without deletion vectors.
_FEATURES_READ = frozenset({"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
# Spark wrote these files with dates of the calendar before 1582.
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
# Columns whose strings compare, or are read, in a way of their own.
_SPECIAL = ("__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
_ARROW_TYPES: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
# Of these types a partition's value is written in one way only.
_PARTITION_TYPES = (T.IntegralType, T.StringType, T.DateType)


class NotDirect(Exception):
    """These changes are for Spark to read."""


@dataclass(frozen=True)
class Shape:
    """What a table is as of a version: `schema_json` as Delta writes it, `features` those that readers must know."""

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
    def fields(self) -> dict[str, dict[str, Any]]:
        return {field["name"]: field for field in json.loads(self.schema_json)["fields"]}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.fields)

    @property
    def feed_on(self) -> bool:
        return self.configuration.get(_FEED_ON, "false").lower() == "true"

    def selected(self, columns: Sequence[str]) -> T.StructType:
        """These columns, as Spark has them."""
        plain = [{**self.fields[name], "metadata": {}} for name in columns]
        return T.StructType.fromJson({"type": "struct", "fields": plain})

    def readable(self, columns: Sequence[str]) -> bool:
        """Whether these columns of the table's files can be read without Spark, and their changes be told."""
        special = any(mark in (self.fields[name].get("metadata") or {}) for name in columns for mark in _SPECIAL)
        return (
            self.configuration.get(_MAPPING, "none") == "none"
            and self.features <= _FEATURES_READ
            and not special
            and fits_arrow(self.selected(columns), ())
        )


def read_changes(
    uri: str,
    commits: Sequence[tuple[Commit, Sequence[ChangeFile]]],
    shape: Shape,
    columns: Sequence[str],
    by_feed: bool,
) -> pa.Table:
    """`columns` of all changes, with `_change_type`, `_commit_version` and `_commit_timestamp` (UTC), oldest first.

    `by_feed`: what the commits added and removed counts only if the table has a change data feed. Raises NotDirect, and
    ChangesUnavailable where a file is gone.
    """
    if (by_feed and not shape.feed_on) or not shape.readable(columns) or any(commit.reshapes for commit, _ in commits):
        raise NotDirect
    schema = pa.schema([pa.field(name, _arrow_type(shape.fields[name]["type"])) for name in columns])
    with direct_work(), _unfit_left_to_spark():
        parts = [
            _stamped(_read_file(uri, file, shape, schema), file.change, commit)
            for commit, files in commits
            for file in files
        ]
        table = pa.concat_tables(parts) if parts else _stamped(schema.empty_table(), "insert", commits[0][0])
        table.validate(full=True)  # strings may hold bytes that are no text
    return table


@contextmanager
def _unfit_left_to_spark() -> Iterator[None]:
    """A value that does not fit the schema's type, a damaged file: Spark will say what it thinks of it."""
    try:
        yield
    except pa.ArrowException as unfit:
        raise NotDirect(str(unfit)) from unfit


def _read_file(uri: str, file: ChangeFile, shape: Shape, schema: pa.Schema) -> pa.Table:
    """The schema's columns, and `_change_type` where the file has one."""
    elsewhere = "://" in file.path or file.path.startswith("/")
    if file.masked or file.size is None or elsewhere or not file.partition_values.keys() >= {*shape.partitions}:
        raise NotDirect
    parquet = _open(uri, file.path)
    if any(mark in (parquet.metadata.metadata or {}) for mark in _LEGACY):
        raise NotDirect
    present = {name.lower(): name for name in parquet.schema_arrow.names}
    wanted = [present[name.lower()] for name in (*schema.names, CHANGE_TYPE) if name.lower() in present]
    raw, rows = parquet.read(wanted), parquet.metadata.num_rows
    columns = {
        field.name: _partition_value(file, shape, field, rows)
        if field.name in shape.partitions
        else _column(raw, present.get(field.name.lower()), field, rows)
        for field in schema
    }
    if not file.change:
        columns[CHANGE_TYPE] = raw[CHANGE_TYPE].cast(pa.string())
    return pa.table(columns)


def _open(uri: str, path: str) -> pq.ParquetFile:
    where = f"{place(uri)}/{unquote(path)}"
    try:
        with storage_faults(f"read {where}"):
            content, _ = storage.read(where)
    except FileNotFoundError as error:
        raise ChangesUnavailable(f"{path} is gone") from error
    return pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")


def _column(raw: pa.Table, name: str | None, field: pa.Field, rows: int) -> pa.ChunkedArray | pa.Array:
    """A column that is younger than the file is null in it."""
    return pa.nulls(rows, field.type) if name is None else raw[name].cast(field.type)


def _partition_value(file: ChangeFile, shape: Shape, field: pa.Field, rows: int) -> pa.Array:
    if not isinstance(shape.selected([field.name]).fields[0].dataType, _PARTITION_TYPES):
        raise NotDirect
    text = file.partition_values[field.name] or None  # an empty text is a null (Delta protocol)
    return pa.repeat(pa.scalar(text, pa.string()).cast(field.type), rows)


def _stamped(rows: pa.Table, change: str, commit: Commit) -> pa.Table:
    if change:
        rows = rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(change), len(rows)))
    at = pa.scalar(round(commit.committed_at_s * 1_000_000), pa.timestamp("us", "UTC"))
    rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(commit.version, pa.int64()), len(rows)))
    return rows.append_column(COMMIT_TIMESTAMP, pa.repeat(at, len(rows)))


def _arrow_type(name: str) -> pa.DataType:
    decimal = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _ARROW_TYPES[name]
