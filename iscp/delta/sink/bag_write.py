"""Takes few rows out of a large table and puts others in, without Spark: by deletion vectors, in one commit."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.delta.log.actions import FileKey, is_count, key_of_action, statistics_of
from iscp.delta.log.commits import APP_ID, commit_file
from iscp.delta.log.live_files import LoadState, NotReadableHere, StateReader, TableState, load_plain_state
from iscp.delta.log.readable_files import Places, pack_vectors, vectors_path
from iscp.delta.rows.data_file import ROW_CACHE, DataFile, RowCache, open_files
from iscp.delta.rows.net_changes import CHANGE_TYPE, arrow_schema, fits_arrow
from iscp.delta.rows.row_search import (
    CANDIDATES_MAX,
    SEARCHED_BYTES_MAX,
    Codes,
    beyond,
    find_keys,
    find_rows,
    row_codes,
)
from iscp.delta.sink.sink_position import tag_json
from iscp.model.rows.key_ranges import FileRows, files_to_merge
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.errors import Conflict
from iscp.ports.sink import CommitTag
from iscp.spark.spark_frames import are_utf8
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults, direct_work
from iscp.storage.locations import place
from iscp.storage.table_files import files_of
from iscp.system.late_imports import T, pc, pq

# --- files and actions of one commit ----------------------------------------------------------------------------------

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
    """Writes the files and actions of one commit that takes rows out of a table's files and adds others.

    `files` are all of the table's; `with_cdf`: it has a change data feed. `discard` frees what was written, if that is
    not committed.
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


# --- the writer of a target -------------------------------------------------------------------------------------------

VECTORS = {"delta.enableDeletionVectors": "true"}
"""The property of a table whose rows are taken out by deletion vectors."""

_CDF = "delta.enableChangeDataFeed"
_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz"})


@dataclass(frozen=True, slots=True)
class _Found:
    """Says where the rows with one of these keys are, and has these rows."""

    keys: pa.Table
    places: Sequence[Places]
    rows: pa.Table


@dataclass(slots=True)
class _Table:
    """The target as its log has it: its columns as Arrow has them, its files, and what was searched in it last."""

    state: TableState
    schema: pa.Schema
    files: Sequence[DataFile]
    _found: _Found | None = None

    def rows(self, places: Sequence[Places]) -> pa.Table:
        """Return the rows in these places of the files, in their order."""
        found = [file.read(self.schema, at) for file, at in zip(self.files, places, strict=True) if len(at)]
        return pa.concat_tables([self.schema.empty_table(), *found])

    def search(self, keys: pa.Table) -> _Found:
        """Find the rows with one of these `keys` (values of some columns). Raises NotReadableHere."""
        keys = self._fitted(keys, keys.schema.names)
        if self._found is None or not self._found.keys.equals(keys):
            self._found = _Found(keys, *find_keys(self.files, keys, self.schema))
        return self._found

    def all_rows(self, rows_max: int) -> _Found:
        """Return all rows. Raises NotReadableHere if they are more than `rows_max`."""
        if sum(rows_of(file) - len(file.gone) for file in self.files) > rows_max:
            raise NotReadableHere
        found = [_left_in(file, self.schema) for file in self.files]
        rows = pa.concat_tables([self.schema.empty_table(), *(part for _, part in found)])
        return _Found(rows, [places for places, _ in found], rows)

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the table's columns and types.

        Raises NotReadableHere if they have others, or texts are no UTF-8.
        """
        return self._fitted(rows, self.schema.names)

    def _fitted(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        try:
            found = rows.select(names).cast(pa.schema([self.schema.field(name) for name in names]))
        except (pa.ArrowException, KeyError) as error:
            raise NotReadableHere from error
        if not are_utf8(found):
            raise NotReadableHere
        return found


class BagWriter:
    """Writes one target: takes few rows out of it and puts others in.

    No file is rewritten for a row that goes, so that the commit costs what changes; finding the rows costs a pass over
    one column or some. A commit is exactly the next version or nothing, as with all writers of targets.

    The log's state is cached from commit to commit, and what was read of the table until the next commit.
    """

    def __init__(self, uri: str, cache: RowCache = ROW_CACHE, load_state: LoadState = load_plain_state) -> None:
        self._uri = uri
        self._cache = cache
        self._reader = StateReader(uri, load_state)
        self._opened: _Table | None = None

    def marks_rows(self, version: int) -> bool:
        """Return whether the table, at its version, is one whose rows deletion vectors take out.

        Raises StorageError.
        """
        with delta_faults(f"open {self._uri}"), suppress(NotReadableHere):
            return VECTORS.items() <= self._reader.read_state(version).configuration.items()
        return False

    def rows_with(self, keys: pa.Table, version: int) -> pa.Table | None:
        """Return the table's rows, at its version, that have one of these `keys` (values of some of its columns).

        Return None as `change` does. Raises StorageError.
        """
        with suppress(NotReadableHere), direct_work(), delta_faults(f"search rows of {self._uri}"):
            return self._open(version).search(keys).rows
        return None

    def few_rows(self, version: int, rows_max: int) -> pa.Table | None:
        """Return all rows of the table, at its version. Raises StorageError.

        Return None if they are more than `rows_max`, and as `change` does.
        """
        with suppress(NotReadableHere), direct_work(), delta_faults(f"read {self._uri}"):
            return self._open(version).all_rows(rows_max).rows
        return None

    def change(self, rows: pa.Table, tag: CommitTag) -> int | None:
        """Commit as the version after `tag.base_version`; `rows`: the table's columns, each row once, and WEIGHT.

        Return how many rows went or came, or None if only Spark can do it. Raises Conflict, ChangesUnavailableError if
        rows that go are not there, StorageError.
        """
        return self._commit(tag, lambda table: _change(table, rows))

    def replace_keys(self, rows: pa.Table, keys: pa.Table, tag: CommitTag) -> int | None:
        """Replace all rows that have one of these `keys` (values of some of the columns) by `rows`.

        Return and raise as `change` does.
        """
        return self._commit(tag, lambda table: _replacement(table, rows, table.search(keys)))

    def replace_all(self, rows: pa.Table, tag: CommitTag, rows_max: int) -> int | None:
        """Replace all rows by `rows`. Return and raise as `change` does.

        Return None also if there are more rows than `rows_max`.
        """
        return self._commit(tag, lambda table: _replacement(table, rows, table.all_rows(rows_max)))

    def _open(self, version: int) -> _Table:
        """Open the table. Raises NotReadableHere if it is not one that can be changed here."""
        state = self._reader.read_state(version)
        if self._opened is None or self._opened.state is not state:
            self._opened = _open(self._uri, state, self._cache)
        return self._opened

    def _commit(self, tag: CommitTag, decide: Callable[[_Table], RowChange]) -> int | None:
        commit = None
        try:
            with direct_work(), delta_faults(f"change rows of {self._uri}"):
                table = self._open(tag.base_version)
                change = decide(table)
                with_cdf = table.state.configuration.get(_CDF, "false").lower() == "true"
                commit = RowCommit(self._uri, table.files, with_cdf)
                content = commit.write(change, tag)
        except NotReadableHere:
            return None
        except BaseException:
            if commit is not None:
                commit.discard()
            raise
        finally:
            self._opened = None
        with direct_work(), delta_faults(f"change rows of {self._uri}"):
            # Whatever it raises, the commit may be there: then the files belong to it.
            created = files.create(commit_file(self._uri, tag.base_version + 1), content)
        if not created:
            commit.discard()
            raise Conflict(f"{self._uri} is not at version {tag.base_version} any more")
        return change.rows


def _open(uri: str, state: TableState, cache: RowCache) -> _Table:
    """Open the table. Raises NotReadableHere if it is not one that can be changed here."""
    schema = T.StructType.fromJson(json.loads(state.metadata["schemaString"]))
    configuration = state.configuration
    fit = (
        VECTORS.items() <= configuration.items()
        and state.features <= _FEATURES
        and not any(name.startswith("delta.constraints.") for name in configuration)
        and configuration.get("delta.appendOnly", "false").lower() == "false"
        and not state.metadata.get("partitionColumns")
        and fits_arrow(schema, (), lists=True)
        and sum(add.get("size") or 0 for add in state.adds.values()) <= SEARCHED_BYTES_MAX
        and all(is_count(statistics_of(add).get("numRecords")) for add in state.adds.values())
    )
    if not fit:
        raise NotReadableHere
    return _Table(state, arrow_schema(schema), open_files(uri, state.adds.values(), cache))


def _left_in(file: DataFile, schema: pa.Schema) -> tuple[Places, pa.Table]:
    """Return the places of the rows that the file still has, and these rows."""
    if (rows := rows_of(file)) > CANDIDATES_MAX:  # its statistics may say anything
        raise NotReadableHere
    places = np.setdiff1d(np.arange(rows), file.gone, assume_unique=True)
    with file.open_cached(schema) as groups:
        parts = [group.read(schema, places[slice(*np.searchsorted(places, [group.begin, group.end]))] - group.begin)
                 for group in groups]  # fmt: skip
    return places, pa.concat_tables([schema.empty_table(), *parts])


def _change(table: _Table, rows: pa.Table) -> RowChange:
    weights = rows[WEIGHT].to_numpy()
    fitted = table.fitted(rows)
    going, times = fitted.filter(pa.array(weights < 0)), -weights[weights < 0]
    places = find_rows(table.files, going, times)
    # The last digits of doubles are as they are in the table.
    exact = not any(pa.types.is_floating(each.type) for each in table.schema)
    return RowChange(places, _repeated(going, times) if exact else table.rows(places), _repeated(fitted, weights))


def _replacement(table: _Table, rows: pa.Table, found: _Found) -> RowChange:
    """Return the change that replaces what was found; rows that are to be there, and are, stay where they are."""
    wanted, target_rows = table.fitted(rows), found.rows
    mine, theirs = row_codes(target_rows, wanted)
    going = beyond(mine, theirs)
    parts = np.split(going, np.cumsum([len(at) for at in found.places])[:-1]) if found.places else []
    left = [at[part] for at, part in zip(found.places, parts, strict=True)]
    return RowChange(left, target_rows.filter(pa.array(going)), wanted.filter(pa.array(beyond(theirs, mine))))


def _repeated(rows: pa.Table, times: Codes) -> pa.Table:
    """Return each row as many times as `times` says; none if that is below 1."""
    return rows.take(pa.array(np.repeat(np.arange(len(rows)), np.maximum(times, 0))))
