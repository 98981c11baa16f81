"""What a checkpoint says of its table, without opening that: a few values of one column.

It has to be what the commits before it say. Where somebody has edited a log it is not, and then the checkpoint is what
every reader goes by that opens the table after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from iscp.adapters.delta.storage.table_files import files_of

_ID, _SCHEMA = "metaData.id", "metaData.schemaString"


def contradicts(uri: str, names: Sequence[str], table_id: str, schema_json: str) -> bool:
    """Whether the checkpoint in these files of the log says that the table has another id or schema.

    False where it cannot be read: whoever opens the table says so.
    """
    found = _metadata(uri, names)
    try:
        return found is not None and (found["id"], json.loads(found["schemaString"])) != (
            table_id,
            json.loads(schema_json),
        )
    except (TypeError, ValueError):
        return True  # for whoever opens the table to judge


def _metadata(uri: str, names: Sequence[str]) -> dict[str, Any] | None:
    store = files_of(uri)
    try:
        for name in names:
            with store.open_input_file(f"_delta_log/{name}") as file:
                parquet = pq.ParquetFile(file)
                if "metaData" not in parquet.schema_arrow.names:
                    continue
                column = parquet.read([_ID, _SCHEMA])["metaData"]
            for row in column.filter(column.is_valid()).to_pylist():
                return dict(row)
    except (pa.ArrowException, OSError, KeyError):
        return None
    return None
