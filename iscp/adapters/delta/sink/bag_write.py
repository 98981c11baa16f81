"""Takes few rows out of a large table and puts others in, without Spark: by deletion vectors, in one commit.

No file is written anew for a row that goes, so that the commit costs what changes; finding the rows costs a pass over
one column or some. Commits exactly the next version or nothing, as all writers of targets do.
"""

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
from pyspark.sql import types as T

from iscp.adapters.delta.log.actions import is_count, statistics_of
from iscp.adapters.delta.log.commits import APP_ID, commit_file
from iscp.adapters.delta.log.delta_errors import delta_faults, direct_work
from iscp.adapters.delta.log.table_state import NotReadableHere, StateReader, TableState
from iscp.adapters.delta.rows.deletion_vectors import Places, pack_vectors, vectors_path
from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, arrow_schema, fits_arrow
from iscp.adapters.delta.sink.row_search import DataFile, RowSearch
from iscp.adapters.delta.sink.sink_position import tag_json
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.table_files import files_of
from iscp.core.errors import Conflict
from iscp.core.file_merging import FileRows, files_to_merge
from iscp.core.sql_names import WEIGHT
from iscp.ports.sink import CommitTag

SEARCHED_BYTES_MAX = 8 * 1024**3
"""Bytes of a table's files in which rows are searched here; larger tables are left to Spark."""

VECTORS = {"delta.enableDeletionVectors": "true"}
"""Of a table whose rows are taken out so."""

_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz"})
_STATISTICS_LENGTH_MAX = 32
"""Characters of a text that statistics hold; Delta cuts longer ones, and of columns with such there are none here."""


@dataclass
class _Draft:
    """The files and actions of one commit; `discard` frees what was not committed."""

    uri: str
    actions: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def write(self, rows: pa.Table, path: str) -> int:
        """Bytes."""
        self.paths.append(path)
        store = files_of(self.uri)
        if "/" in path:
            store.create_dir(path.rpartition("/")[0])
        with store.open_output_stream(path) as stream:
            pq.write_table(rows, stream)
            return int(stream.tell())

    def write_bytes(self, content: bytes, path: str) -> None:
        self.paths.append(path)
        with files_of(self.uri).open_output_stream(path) as stream:
            stream.write(content)

    def discard(self) -> None:
        for path in self.paths:
            with suppress(OSError):
                files_of(self.uri).delete_file(path)


class BagWriter:
    """One target. Keeps what its log says from commit to commit."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._reader = StateReader(uri)

    def marks_rows(self, version: int) -> bool:
        """Whether the table, at its version, is one whose rows deletion vectors take out. Raises StorageError."""
        with delta_faults(f"open {self._uri}"), suppress(NotReadableHere):
            return VECTORS.items() <= self._reader.read(version).configuration.items()
        return False

    def change(self, rows: pa.Table, tag: CommitTag) -> bool:
        """Commit as the version after `tag.base_version`; `rows`: the table's columns, each row once, and WEIGHT.

        False: this is for Spark to do. Raises Conflict, ChangesUnavailableError where rows that go are not there,
        StorageError.
        """
        draft = _Draft(self._uri)
        try:
            with direct_work(), delta_faults(f"change rows of {self._uri}"):
                self._prepare(draft, rows, tag)
        except NotReadableHere:
            draft.discard()
            return False
        except BaseException:
            draft.discard()
            raise
        content = "\n".join(json.dumps(action, separators=(",", ":")) for action in draft.actions)
        with direct_work(), delta_faults(f"change rows of {self._uri}"):
            # Whatever it raises, the commit may be there: then the files belong to it.
            created = files.create(commit_file(self._uri, tag.base_version + 1), content.encode())
        if not created:
            draft.discard()
            raise Conflict(f"{self._uri} is not at version {tag.base_version} any more")
        return True

    def _prepare(self, draft: _Draft, rows: pa.Table, tag: CommitTag) -> None:
        state = self._reader.read(tag.base_version)
        schema = _schema_for(state, rows)
        now_ms = int(time.time() * 1000)
        draft.actions += heads("UPDATE", tag, now_ms)
        weights = rows[WEIGHT].to_numpy()
        try:
            held = rows.drop_columns([WEIGHT]).select(schema.names).cast(schema)
        except pa.ArrowException as error:
            raise NotReadableHere from error
        coming = _repeated(held, weights)
        going = held.filter(pa.array(weights < 0))
        data = [DataFile(self._uri, add) for add in state.adds.values()]
        places = RowSearch(going, -weights[weights < 0]).find(data) if len(going) else [_none() for _ in data]
        self._write_feed(draft, data, places, going, -weights[weights < 0], coming)
        merged = self._merge(draft, data, places, coming, schema, now_ms)
        self._mark_gone(draft, data, places, merged, now_ms)

    def _write_feed(
        self,
        draft: _Draft,
        data: Sequence[DataFile],
        places: Sequence[Places],
        going: pa.Table,
        times: Places,
        coming: pa.Table,
    ) -> None:
        """What others who follow this table read: rows that go as they are in it, as far as that may be another way."""
        if any(pa.types.is_floating(each.type) for each in going.schema):
            found = [file.read(going.schema, at) for file, at in zip(data, places, strict=True) if len(at)]
            gone = pa.concat_tables([going.schema.empty_table(), *found])
        else:
            gone = _repeated(going, times)
        kinds = pa.array(np.repeat(np.array(["delete", "insert"]), [len(gone), len(coming)]), pa.string())
        rows = pa.concat_tables([gone, coming]).append_column(CHANGE_TYPE, kinds)
        if len(rows):
            path = f"_change_data/cdc-{uuid.uuid4()}.parquet"
            size = draft.write(rows, path)
            draft.actions.append({"cdc": {"path": path, "partitionValues": {}, "size": size, "dataChange": False}})

    def _merge(
        self,
        draft: _Draft,
        data: Sequence[DataFile],
        places: Sequence[Places],
        coming: pa.Table,
        schema: pa.Schema,
        now_ms: int,
    ) -> frozenset[str]:
        """Write the rows that come, and with them those of files that are not to stay, whose paths it gives."""
        counts = {
            file.add["path"]: FileRows(_rows_of(file), _rows_of(file) - len(file.gone) - len(at))
            for file, at in zip(data, places, strict=True)
        }
        merged = files_to_merge(counts, len(coming))
        if not merged and not len(coming):
            return merged
        parts = [coming]
        for file, at in zip(data, places, strict=True):
            if file.add["path"] in merged:
                left = np.setdiff1d(np.arange(_rows_of(file)), np.concatenate([file.gone, at]), assume_unique=True)
                parts.append(file.read(schema, left))
        rows = pa.concat_tables(parts)
        path = f"part-{uuid.uuid4()}.snappy.parquet"
        size = draft.write(rows, path)
        draft.actions.append({"add": _added(path, size, rows, now_ms)})
        return merged

    def _mark_gone(
        self, draft: _Draft, data: Sequence[DataFile], places: Sequence[Places], merged: frozenset[str], now_ms: int
    ) -> None:
        name, vectors, marked = uuid.uuid4(), [], []
        for file, at in zip(data, places, strict=True):
            gone = np.union1d(file.gone, at)
            if file.add["path"] in merged or (len(at) and len(gone) == _rows_of(file)):
                draft.actions.append({"remove": _removed(file.add, now_ms)})
            elif len(at):
                draft.actions.append({"remove": _removed(file.add, now_ms)})
                marked.append(file.add)
                vectors.append(gone)
        content, descriptors = pack_vectors(name, vectors)
        if vectors:
            draft.write_bytes(content, vectors_path(name))
        for add, descriptor in zip(marked, descriptors, strict=True):
            stats = json.dumps(statistics_of(add) | {"tightBounds": False})
            draft.actions.append({"add": {**add, "dataChange": True, "stats": stats, "deletionVector": descriptor}})


def _schema_for(state: TableState, rows: pa.Table) -> pa.Schema:
    """The table's columns as Arrow has them; raises NotReadableHere where it is not a table to be changed here."""
    schema = T.StructType.fromJson(json.loads(state.metadata["schemaString"]))
    configuration = state.configuration
    size = sum(add.get("size") or 0 for add in state.adds.values())
    fit = (
        VECTORS.items() <= configuration.items()
        and state.features <= _FEATURES
        and not any(name.startswith("delta.constraints.") for name in configuration)
        and configuration.get("delta.appendOnly", "false").lower() == "false"
        and not state.metadata.get("partitionColumns")
        and fits_arrow(schema, ())
        and size <= SEARCHED_BYTES_MAX
        and {*schema.names} | {WEIGHT} == {*rows.schema.names}
        and all(is_count(statistics_of(add).get("numRecords")) for add in state.adds.values())
    )
    if not fit:
        raise NotReadableHere
    return arrow_schema(schema)


def _rows_of(file: DataFile) -> int:
    return int(statistics_of(file.add)["numRecords"])


def _none() -> Places:
    return np.empty(0, np.int64)


def _repeated(rows: pa.Table, times: Places) -> pa.Table:
    """Each row as often; none of those with a number below 1."""
    return rows.take(pa.array(np.repeat(np.arange(len(rows)), np.maximum(times, 0))))


def heads(operation: str, tag: CommitTag, now_ms: int) -> list[dict[str, Any]]:
    """The actions that say whose a commit is. `now_ms`: Unix milliseconds."""
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


def _removed(add: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    kept = {name: add[name] for name in ("size", "stats", "deletionVector") if add.get(name) is not None}
    file = {"path": add["path"], "partitionValues": {}, "extendedFileMetadata": True}
    return file | kept | {"deletionTimestamp": now_ms, "dataChange": True}


def _added(path: str, size: int, rows: pa.Table, now_ms: int) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": _statistics(rows),
    }


def _statistics(rows: pa.Table) -> str:
    """Of whole numbers and short texts, as Spark bounds them; of other columns none."""
    low, high = {}, {}
    for name in rows.schema.names:
        column = rows[name]
        if len(column) == column.null_count or not _bounded(column):
            continue
        low[name], high[name] = pc.min_max(column).as_py().values()
    nulls = {name: rows[name].null_count for name in rows.schema.names}
    return json.dumps({"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls})


def _bounded(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type):
        return bool(pc.max(pc.utf8_length(column)).as_py() < _STATISTICS_LENGTH_MAX)
    return bool(pa.types.is_integer(column.type))
