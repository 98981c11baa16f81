"""Parquet files read into memory: how much their rows take there, and of which calendar their dates are.

A file's own size bounds nothing: 8 MiB of a text that repeats itself are gigabytes once they are decoded.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import place_of_file
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.table_files import UNSAID_BYTES_MAX
from iscp.ports.source import ChangesUnavailableError

_FIXED_BYTES = 17
"""The widest number, a decimal, with its bits of the null bitmap."""

_OFFSET_BYTES = 4
_AT_LENGTH = frozenset({"PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "RLE", "BIT_PACKED"})
"""Encodings in which each text is written out; the last two are those of the levels."""
_BY_DICTIONARY = frozenset({"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"})
"""Encodings that pyarrow reads as dictionaries."""

# As Spark decides it (DataSourceUtils.getRebaseSpec), whose versions compare as texts. 3.0 still wrote INT96 as before.
_SPARK_VERSION, _NEW_CALENDAR_SINCE = b"org.apache.spark.version", b"3.1.0"
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_CALENDARS_AGREE_FROM_DAY = -25_567
"""1900-01-01: dates differ before 1582-10-15, instants until the last time zone left its local mean time."""


class TooLargeError(Exception):
    """The rows would take more memory than they are allowed."""


class Allowance:
    """Counts the bytes of memory that the rows of a range may still take. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises TooLarge where less is left."""
        with self._lock:
            if size > self.left:
                raise TooLargeError
            self.left -= size


class ParquetRows:
    """The rows of one file of a table. Columns are found without regard to case.

    Raises ChangesUnavailableError where the file is gone, StorageError, and pyarrow's errors where it is damaged.
    """

    def __init__(self, uri: str, path: str, size: int) -> None:
        """`path` is as the log has it, below the table, and so is `size`, in bytes."""
        where = place_of_file(uri, path)
        try:
            with storage_faults(f"read {where}"):
                self._content, _ = files.read(where, size + UNSAID_BYTES_MAX)
                self._parquet = self._open()
        except FileNotFoundError as error:
            raise ChangesUnavailableError(f"{path} is gone") from error
        self.columns = {name.lower(): name for name in self._parquet.schema_arrow.names}

    def __len__(self) -> int:
        return int(self._parquet.metadata.num_rows)

    def read(self, wanted: Sequence[str], allowance: Allowance) -> pa.Table:
        """Return those of the `wanted` columns that the file has; texts may come as dictionaries.

        Raises TooLarge where they would take more than the allowance once decoded; no more is in memory at any time.
        """
        names = [self.columns[name.lower()] for name in wanted if name.lower() in self.columns]
        if self._decoded_bytes_max(names) <= allowance.left:
            rows = self._parquet.read(names)
            allowance.take(rows.nbytes)
            return rows
        if self._dictionary_bytes_max(names) > allowance.left:
            raise TooLargeError
        texts = [name for name in names if _is_text(self._parquet.schema_arrow.field(name).type)]
        rows = self._open(texts).read(names)
        allowance.take(sum(map(_decoded_bytes, rows.columns)))
        return rows

    def calendar_is_known(self, rows: pa.Table) -> bool:
        """Return whether the calendar of dates and times in these rows is known, whoever wrote them."""
        named = self._parquet.metadata.metadata or {}
        if named.get(_SPARK_VERSION, b"") >= _NEW_CALENDAR_SINCE and not any(mark in named for mark in _LEGACY_MARKS):
            return True
        return not has_early_days(rows)

    def _open(self, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
        source = pa.BufferReader(self._content)
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", read_dictionary=list(dictionaries) or None)

    def _decoded_bytes_max(self, names: Sequence[str]) -> int:
        """Return how many bytes the columns take at most once decoded, by the footer alone.

        A text may be as long as its chunk, and each of the chunk's values may be that text.
        """
        total = 0
        for chunk, length in self._chunks(names):
            if chunk.physical_type != "BYTE_ARRAY":
                total += chunk.num_values * (_FIXED_BYTES + length)
            elif _AT_LENGTH.issuperset(chunk.encodings):
                total += chunk.num_values * _OFFSET_BYTES + chunk.total_uncompressed_size
            else:
                total += chunk.num_values * (_OFFSET_BYTES + chunk.total_uncompressed_size)
        return total

    def _dictionary_bytes_max(self, names: Sequence[str]) -> float:
        """Return how many bytes the columns take at most while texts are dictionaries, by the footer alone; infinite
        where they cannot be.
        """
        total = 0
        for chunk, length in self._chunks(names):
            if chunk.physical_type == "BYTE_ARRAY" and not _BY_DICTIONARY.issuperset(chunk.encodings):
                return math.inf
            total += chunk.num_values * (_FIXED_BYTES + length) + chunk.total_uncompressed_size
        return float(total)

    def _chunks(self, names: Sequence[str]) -> Iterator[tuple[pq.ColumnChunkMetaData, int]]:
        """Yield the chunks of the columns, with the bytes of each value where a type has a fixed number of them, else
        0.

        The column `a.b` and a field `b` of `a` have the same path there, and pyarrow reads both for either.
        """
        footer, roots = self._parquet.metadata, {name.partition(".")[0] for name in names}
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for number, chunk in enumerate(map(group.column, range(group.num_columns))):
                if chunk.path_in_schema.partition(".")[0] in roots:
                    yield chunk, max(0, footer.schema.column(number).length)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return how many bytes a column takes when each of its rows has its own text."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = (pc.sum(pc.binary_length(each.dictionary).take(each.indices)).as_py() or 0 for each in column.chunks)
    return sum(lengths) + len(column) * _OFFSET_BYTES


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
