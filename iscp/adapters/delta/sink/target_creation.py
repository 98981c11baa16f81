"""Creates the table that a job writes, and marks its commits as that job's."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction

from iscp.adapters.delta.log.commits import APP_ID, commit_file
from iscp.adapters.delta.rows.net_changes import fits_arrow
from iscp.adapters.delta.sink.bag_write import VECTORS
from iscp.adapters.delta.sink.row_commit import content_of, heads
from iscp.adapters.delta.sink.sink_position import tag_json
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.table_files import files_of
from iscp.adapters.system.late_imports import T
from iscp.core.values.errors import Conflict
from iscp.ports.sink import CommitTag


def create_target(uri: str, schema: Mapping[str, Any], properties: Mapping[str, str], tag: CommitTag) -> None:
    """Create the table. Raises deltalake's errors, OSError, Conflict.

    The table gets deletion vectors only if rows of it can be taken out by them. deltalake would give such a table
    features that it has no use for, and that others do not read.
    """
    if VECTORS.items() <= properties.items():
        if fits_arrow(T.StructType.fromJson(dict(schema)), ()):
            _commit_first(uri, schema, properties, tag)
            return
        properties = {name: value for name, value in properties.items() if name not in VECTORS}
    DeltaTable.create(
        uri,
        Schema.from_json(json.dumps(schema)),
        mode="error",
        configuration=dict(properties),
        storage_options=table_options(uri),
        commit_properties=commit_properties(tag),
    )


def commit_properties(tag: CommitTag) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"userMetadata": tag_json(tag)},
        app_transactions=[Transaction(APP_ID, tag.seq)],
        max_commit_retries=0,
    )


def _commit_first(uri: str, schema: Mapping[str, Any], properties: Mapping[str, str], tag: CommitTag) -> None:
    now_ms = int(time.time() * 1000)
    readers = ["deletionVectors"]
    if any(field["type"] == "timestamp_ntz" for field in schema["fields"]):
        readers.append("timestampNtz")
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": [*readers, "appendOnly", "changeDataFeed", "invariants"],
    }
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now_ms,
    }
    actions = [*heads("CREATE TABLE", tag, now_ms), {"protocol": protocol}, {"metaData": metadata}]
    files_of(uri).create_dir("_delta_log")
    if not files.create(commit_file(uri, 0), content_of(actions)):
        raise Conflict(f"{uri} has come to be meanwhile")
