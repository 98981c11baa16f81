"""Reads a few rows of a table that iscp has written, for whoever looks at them, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.rows.parquet_files import ParquetRows
from iscp.adapters.delta.storage.action_paths import lies_elsewhere
from iscp.adapters.delta.storage.bounded_parquet import Allowance, TooLargeError
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.core.values.errors import FileLost, PermanentError
from iscp.ports.source import ChangesUnavailableError

FIRST_ROWS_BYTES_MAX = 64 * 1024**2
"""Bytes of memory that the files of the first rows may take, one after another; a table that needs more is refused."""

_REMEDY = "Read the table by Spark"


def read_first_rows(uri: str, rows_max: int) -> list[dict[str, Any]]:
    """Return so many rows of a table at most, of its newest version, in no order, by the names of their columns.

    Raises TableNotFound, StorageError, and PermanentError for a table that has what iscp's own never have, or too much.
    """
    with delta_faults(f"read {uri}"):
        table = open_delta(uri)
        metadata, features = table.metadata(), {*(table.protocol().reader_features or ())}
        mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
        if mapped or metadata.partition_columns or not features <= {"timestampNtz"}:
            raise _unreadable(uri, "has features that tables of rows left out do not have")
        adds = add_actions_of(table).to_pylist()
    found: list[dict[str, Any]] = []
    allowance = Allowance(FIRST_ROWS_BYTES_MAX)
    for add in adds:
        if len(found) >= rows_max:
            break
        if lies_elsewhere(add["path"]) or add["size_bytes"] > allowance.left:
            raise _unreadable(uri, f"has files of more than {FIRST_ROWS_BYTES_MAX // 1024**2} MiB, or elsewhere")
        found += _rows_of_file(uri, add["path"], add["size_bytes"], rows_max - len(found), allowance)
    return found


def _rows_of_file(uri: str, path: str, size: int, rows_max: int, allowance: Allowance) -> list[dict[str, Any]]:
    try:
        parquet = ParquetRows(uri, path, size)
        rows: list[dict[str, Any]] = parquet.read([*parquet.columns], allowance).slice(0, rows_max).to_pylist()
        return rows
    except TooLargeError:
        raise _unreadable(uri, f"has rows of more than {FIRST_ROWS_BYTES_MAX // 1024**2} MiB") from None
    except (ChangesUnavailableError, pa.ArrowException) as error:
        remedy = "Try again; if it lasts, resync the job"
        raise FileLost(f"cannot read {path} of {uri}: {error}", remedy=remedy) from error


def _unreadable(uri: str, why: str) -> PermanentError:
    return PermanentError(f"{uri} {why}", remedy=_REMEDY)
