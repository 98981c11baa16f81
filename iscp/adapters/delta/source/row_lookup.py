"""Finds the rows of a source that have some keys, in its data files and without Spark."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from iscp.adapters.delta.log.commits import commit_stamp
from iscp.adapters.delta.log.live_files import (
    LoadState,
    NotReadableHere,
    StateReader,
    TableState,
    load_plain_state,
)
from iscp.adapters.delta.rows.data_file import DataFile, open_files
from iscp.adapters.delta.rows.net_changes import arrow_schema
from iscp.adapters.delta.rows.parquet_files import has_early_days
from iscp.adapters.delta.rows.row_search import SEARCHED_BYTES_MAX, find_keys, read_all
from iscp.adapters.delta.source.arrow_read import Shape
from iscp.adapters.delta.storage.action_paths import lies_elsewhere
from iscp.adapters.delta.storage.bounded_parquet import Allowance
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work

TABLES_MAX = 64
"""Sources of a node whose files are remembered from one lookup to the next; of the longest unused they are forgotten,
and their log is read again."""


class _OpenedVersion(NamedTuple):
    """The files of a version, whose commit has this stamp."""

    version: int
    stamp: tuple[int, ...] | None
    state: TableState
    files: list[DataFile]


@dataclass
class _Files:
    """The files of one table, as of the versions that were searched last: a refresh reads two of them."""

    reader: StateReader
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: _OpenedVersion | None = None
    _before: _OpenedVersion | None = None

    def at(self, version: int) -> list[DataFile]:
        """Return the files of `version`. Raises NotReadableHere."""
        with self._lock:
            before = self._before
            if before and before.version == version and commit_stamp(self.reader.uri, version) == before.stamp:
                return before.files
            state = self.reader.read_state(version)
            if self._opened is None or self._opened.state is not state:
                self._before = self._opened
                stamp = commit_stamp(self.reader.uri, version)
                self._opened = _OpenedVersion(version, stamp, state, self._open([*state.adds.values()]))
            return self._opened.files

    def added(self, version: int) -> list[Mapping[str, Any]]:
        """Raises NotReadableHere."""
        with self._lock:
            return [*self.reader.read_state(version).adds.values()]

    def _open(self, adds: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        # A clone has its files elsewhere.
        elsewhere = any(lies_elsewhere(add["path"]) for add in adds)
        if elsewhere or sum(add.get("size") or 0 for add in adds) > SEARCHED_BYTES_MAX:
            raise NotReadableHere
        return open_files(self.reader.uri, adds)


class RowLookup:
    """Safe for threads."""

    def __init__(self, load_state: LoadState = load_plain_state) -> None:
        self._load_state = load_state
        self._tables: OrderedDict[str, _Files] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self, uri: str, version: int, shape: Shape, keys: pa.Table, columns: Sequence[str], rows_max: int
    ) -> pa.Table | None:
        """Return rows with these keys as ChangeSource.rows_with; `shape` is that of the version. Raises
        StorageError.
        """
        in_paths = not {*columns}.isdisjoint(shape.partitions)
        if in_paths or not shape.readable(columns) or has_early_days(keys):
            return None
        schema = arrow_schema(shape.selected(columns))
        with suppress(NotReadableHere, pa.ArrowException), direct_work():
            keys = keys.cast(pa.schema([schema.field(name) for name in keys.schema.names]))
            with delta_faults(f"search rows of {uri}"):
                _, rows = find_keys(self._files(uri).at(version), keys, schema, rows_max)
            rows.validate(full=True)  # texts may hold bytes that are none, which is no fault of the storage
            return rows if len(rows) <= rows_max and not has_early_days(rows) else None
        return None

    def all_rows(
        self, uri: str, version: int, shape: Shape, columns: Sequence[str], bytes_max: int, room: Allowance
    ) -> pa.Table | None:
        """Return these columns of all rows as ChangeSource.all_rows; `shape` is that of the version, and `room` for all
        rows in memory. Raises StorageError.
        """
        if not {*columns}.isdisjoint(shape.partitions) or not shape.readable(columns):
            return None
        schema = arrow_schema(shape.selected(columns))
        with suppress(NotReadableHere, pa.ArrowException), direct_work():
            with delta_faults(f"read rows of {uri}"):
                files = self._files(uri).at(version)
                if sum(each.add.get("size") or 0 for each in files) > bytes_max:
                    return None
                rows = read_all(files, schema, room)
            rows.validate(full=True)
            return None if has_early_days(rows) else rows
        return None

    def added(self, uri: str, version: int, files_max: int) -> list[str] | None:
        """Return the actions that added the files of a version, as commits have them; None: they are more, or the log
        is not read here.

        Raises StorageError.
        """
        with suppress(NotReadableHere):
            found = self._files(uri).added(version)
            return [json.dumps({"add": each}) for each in found] if len(found) <= files_max else None
        return None

    def _files(self, uri: str) -> _Files:
        with self._lock:
            found = self._tables.pop(uri, None) or _Files(StateReader(uri, self._load_state))
            self._tables[uri] = found
            if len(self._tables) > TABLES_MAX:
                self._tables.popitem(last=False)
            return found
