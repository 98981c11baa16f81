"""Writes the files and actions of one commit that takes rows out of a table's files and adds others."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iscp.adapters.delta.log.action_fields import FileKey, key_of_action
from iscp.adapters.delta.log.actions import statistics_of
from iscp.adapters.delta.log.commits import APP_ID
from iscp.adapters.delta.log.deletion_vectors import Places, pack_vectors, vectors_path
from iscp.adapters.delta.rows.data_file import DataFile
from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE
from iscp.adapters.delta.sink.sink_position import tag_json
from iscp.adapters.delta.spark.text_bytes import are_utf8
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.locations import place
from iscp.adapters.delta.storage.table_files import files_of
from iscp.core.rows.file_merging import FileRows, files_to_merge
from iscp.ports.sink import CommitTag

_STATISTICS_LENGTH_MAX = 32
"""Characters of a text that statistics have; columns with longer ones get none here, as Delta would cut them."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """The rows that one commit takes out and puts in.

    `places` are those of the rows that go, file by file; `gone` has the same rows as they are in the table; `coming`
    has the rows that come.
    """

    places: Sequence[Places]
    gone: pa.Table
    coming: pa.Table

    @property
    def rows(self) -> int:
        return len(self.gone) + len(self.coming)


@dataclass
class RowCommit:
    """Writes one commit. `files` are all of the table's; `with_cdf`: it has a change data feed.

    `discard` frees what was written, if that is not committed.
    """

    uri: str
    files: Sequence[DataFile]
    with_cdf: bool
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    actions: list[dict[str, Any]] = field(default_factory=list)
    _paths: list[str] = field(default_factory=list)

    def write(self, change: RowChange, tag: CommitTag) -> bytes:
        """Write the files, and return the commit's content. Raises OSError, and pyarrow's errors."""
        self.actions += heads("UPDATE", tag, self.now_ms)
        if self.with_cdf:
            self._write_feed(change)
        merged = self._write_rows(change)
        self._mark_gone(change.places, merged)
        return content_of(self.actions)

    def discard(self) -> None:
        for path in self._paths:
            with suppress(OSError):
                files_of(self.uri).delete_file(path)

    def _write_feed(self, change: RowChange) -> None:
        """Write the change data that others read who follow this table."""
        if not change.rows:
            return
        kinds = np.repeat(np.array(["delete", "insert"]), [len(change.gone), len(change.coming)])
        rows = pa.concat_tables([change.gone, change.coming]).append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))
        path = f"_change_data/cdc-{uuid.uuid4()}.parquet"
        size = self._write_parquet(rows, path)
        self.actions.append({"cdc": {"path": path, "partitionValues": {}, "size": size, "dataChange": False}})

    def _write_rows(self, change: RowChange) -> frozenset[FileKey]:
        """Write the rows that come, and with them what is left of files that are not to stay.

        Return the keys of these files.
        """
        counts = {
            key_of_action(file.add): FileRows(rows_of(file), rows_of(file) - len(file.gone) - len(at))
            for file, at in zip(self.files, change.places, strict=True)
        }
        merged = files_to_merge(counts, len(change.coming))
        parts = [change.coming]
        for file, at in zip(self.files, change.places, strict=True):
            if key_of_action(file.add) in merged:
                left = np.ones(rows_of(file), np.bool_)
                left[file.gone] = left[at] = False
                parts.append(file.read(change.coming.schema, np.flatnonzero(left)))
        rows = pa.concat_tables(parts)
        if len(rows):
            path = f"part-{uuid.uuid4()}.snappy.parquet"
            size = self._write_parquet(rows, path)
            added = {"path": path, "partitionValues": {}, "size": size, "modificationTime": self.now_ms}
            self.actions.append({"add": added | {"dataChange": True, "stats": _statistics(rows)}})
        return merged

    def _mark_gone(self, places: Sequence[Places], merged: frozenset[FileKey]) -> None:
        marked, vectors = [], []
        for file, at in zip(self.files, places, strict=True):
            gone = np.sort(np.concatenate([file.gone, at]), kind="stable")  # no row is in both
            is_merged = key_of_action(file.add) in merged
            if len(at) or is_merged:
                self.actions.append({"remove": _removed(file.add, self.now_ms)})
            if len(at) and not is_merged and len(gone) < rows_of(file):
                marked.append(file.add)
                vectors.append(gone)
        if not vectors:
            return
        name = uuid.uuid4()
        content, descriptors = pack_vectors(name, vectors)
        self._paths.append(vectors_path(name))
        files.create(f"{place(self.uri)}/{vectors_path(name)}", content)
        for add, descriptor in zip(marked, descriptors, strict=True):
            stats = json.dumps(statistics_of(add) | {"tightBounds": False})
            self.actions.append({"add": {**add, "dataChange": True, "stats": stats, "deletionVector": descriptor}})

    def _write_parquet(self, rows: pa.Table, path: str) -> int:
        """Write the rows to a file, and return its size in bytes."""
        self._paths.append(path)
        store = files_of(self.uri)
        if "/" in path:
            store.create_dir(path.rpartition("/")[0])
        with store.open_output_stream(path) as stream:
            pq.write_table(rows, stream)
            return int(stream.tell())


def rows_of(file: DataFile) -> int:
    """Return how many rows the file has, with those that are gone."""
    return int(statistics_of(file.add)["numRecords"])


def heads(operation: str, tag: CommitTag, now_ms: int) -> list[dict[str, Any]]:
    """Return the actions that say whose a commit is. `now_ms`: Unix milliseconds."""
    about = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": APP_ID,
        "txnId": str(uuid.uuid4()),
        "userMetadata": tag_json(tag),
    }
    return [{"commitInfo": about}, {"txn": {"appId": APP_ID, "version": tag.seq, "lastUpdated": now_ms}}]


def content_of(actions: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the content of a commit's file."""
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def _removed(add: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    copied = {name: add[name] for name in ("size", "stats", "deletionVector") if add.get(name) is not None}
    file = {"path": add["path"], "partitionValues": {}, "extendedFileMetadata": True}
    return file | copied | {"deletionTimestamp": now_ms, "dataChange": True}


def _statistics(rows: pa.Table) -> str:
    """Return the statistics of the rows as JSON.

    Whole numbers and short texts have bounds, as Spark bounds them; other columns have none.
    """
    low, high = {}, {}
    for name in rows.schema.names:
        column = rows[name]
        if len(column) > column.null_count and _bounded(column):
            low[name], high[name] = pc.min_max(column).as_py().values()
    nulls = {name: rows[name].null_count for name in rows.schema.names}
    return json.dumps({"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls})


def _bounded(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type):
        # Rows of another file of the table, which Spark wrote, may have other texts.
        return are_utf8(column) and bool(pc.max(pc.utf8_length(column)).as_py() < _STATISTICS_LENGTH_MAX)
    return bool(pa.types.is_integer(column.type))
