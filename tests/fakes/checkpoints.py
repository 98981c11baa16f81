"""Checkpoints that say other things than the commits before them: no writer makes them, whoever edits a log does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

ANOTHER_ID = "0a1b2c3d-0000-4000-8000-00000000a000"


def edit_checkpoint(uri: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Make a checkpoint of the newest version, of which `edit` has changed the table's metadata."""
    DeltaTable(uri).create_checkpoint()
    path = max(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))
    rows = pq.read_table(path)
    edited = [{**row, "metaData": edit(row["metaData"])} if row.get("metaData") else row for row in rows.to_pylist()]
    pq.write_table(pa.Table.from_pylist(edited, rows.schema), path)
    path.with_name("_last_checkpoint").unlink()


def another_table_with(column: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def edit(metadata: dict[str, Any]) -> dict[str, Any]:
        schema = json.loads(metadata["schemaString"])
        schema["fields"].append({"name": column, "type": "long", "nullable": True, "metadata": {}})
        return {**metadata, "id": ANOTHER_ID, "schemaString": json.dumps(schema)}

    return edit
