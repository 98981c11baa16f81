"""The rows of a job log's table, as the version that is opened has them."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import dataset

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.table_files import files_of
from iscp.core.values.errors import JobLogDamaged


def read_rows(uri: str, table: DeltaTable, schema: pa.Schema) -> tuple[pa.Table, int]:
    """Return all rows, and in how many files they are. Raises JobLogDamaged, StorageError."""
    try:
        names = add_actions_of(table).column("path").to_pylist()
        if not names:
            return schema.empty_table(), 0
        rows = dataset(names, schema=schema, filesystem=files_of(uri), format="parquet").to_table()
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise JobLogDamaged(
            f"a file of the job log {uri} is missing or corrupt: {error}",
            remedy="Restore it from a backup of the job log",
        ) from error
    except FOREIGN_ERRORS as error:
        raise storage_error(error, "cannot read the job log") from error
    return rows, len(names)
