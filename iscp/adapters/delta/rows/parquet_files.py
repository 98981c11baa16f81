"""Parquet files read into memory: how much their rows take there, and of which calendar their dates are.

A file's own size bounds nothing: 8 MiB of a text that repeats itself are gigabytes once they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.storage.bounded_parquet import Allowance, BoundedParquet, decoded_bytes
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.table_files import open_input
from iscp.ports.source import ChangesUnavailableError

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
        """Return those of the `wanted` columns that the file has; texts may come as dictionaries.

        Raises TooLarge where they would take more than the allowance once decoded; no more is in memory at any time.
        """
        names = [self.columns[name.lower()] for name in wanted if name.lower() in self.columns]
        file, groups = self._parquet, self._parquet.groups
        bound, coded = file.decoded_bytes_max(groups, names, allowance.left), False
        if bound > allowance.left:
            bound, coded = file.decoded_bytes_max(groups, names, allowance.left, coded=True), True
        with allowance.reserve(bound):
            rows = file.read_groups(groups, names, None, file.texts if coded else ())
            allowance.take(sum(map(decoded_bytes, rows.columns)) if coded else rows.nbytes)
        return rows

    def calendar_is_known(self, rows: pa.Table) -> bool:
        """Return whether the calendar of dates and times in these rows is known, whoever wrote them."""
        named = self._parquet.metadata.metadata or {}
        if named.get(_SPARK_VERSION, b"") >= _NEW_CALENDAR_SINCE and not any(mark in named for mark in _LEGACY_MARKS):
            return True
        return not has_early_days(rows)


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
