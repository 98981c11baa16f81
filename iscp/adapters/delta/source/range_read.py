"""Reads ranges of a table's snapshot by Spark: exactly the files, and parts of files, that are in them.

Which these are follows from the names of all files, so that every node has to list the same ones: Spark's snapshot has
them all, whatever kind of checkpoint they are in.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp.adapters.delta.log.commits import ChangeFile
from iscp.adapters.delta.log.readable_files import require_readable
from iscp.adapters.delta.rows.schema_evolution import without_void
from iscp.adapters.delta.source.arrow_read import NotDirectError, Shape, read_files
from iscp.adapters.delta.source.open_table import open_version
from iscp.adapters.delta.source.spark_read import action_json, frame_of_files, frames_of_places, open_log
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.adapters.delta.spark.spark_errors import reading_changes
from iscp.adapters.delta.storage.bounded_parquet import Allowance, TooLargeError
from iscp.adapters.system.late_imports import F, frame_of_java
from iscp.core.build.build_pieces import RangeFiles, SnapshotFile, files_in_range, row_spans
from iscp.core.values.errors import InvalidRequest, StorageError
from iscp.core.values.progress import UNKNOWN, TableSize
from iscp.ports.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTINGS_CACHED_MAX = 4
"""Snapshots whose files are remembered for the next range; of others they are listed again."""

RANGE_BYTES_MAX = 1024**3
"""Memory for the rows of a range that are read and staged without Spark; Spark does it where they take more."""

_UNREAD = frozenset({"stats"})
"""The fields that take most of an action's room, and that no reader of chosen files needs."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of a snapshot, and of each the action as JSON.

    `shape`: what the table is then; None: only Spark opens it.
    """

    files: tuple[SnapshotFile, ...]
    shape: Shape | None
    actions: Mapping[SnapshotFile, str]


class DeltaRangeReader:
    """Port RangeReader. Safe for threads."""

    def __init__(self, bytes_max: int = RANGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._listings: OrderedDict[tuple[str, int, str], _Listing] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> Rows | None:
        what = f"read a range of {uri} at version {version}"
        with reading_changes(what):
            opened = open_log(session, uri, version)
            listing = self._list_opened(session, uri, version, opened[2])
        found = files_in_range(listing.files, piece_bytes, range_id)
        if found.empty:
            return None

        def read_by_spark() -> DataFrame:
            with reading_changes(what):
                return _frame_of(opened, session, listing, found)

        return Rows(read_by_spark, partial(self._read_directly, uri, listing, found))

    def _read_directly(self, uri: str, listing: _Listing, found: RangeFiles) -> pa.Table | None:
        if not self._bytes_max or listing.shape is None or found.parts:
            return None
        chosen = [_file(json.loads(listing.actions[file])["add"]) for file in found.whole]
        try:
            return read_files(uri, chosen, listing.shape, Allowance(self._bytes_max))
        except (NotDirectError, TooLargeError):
            return None

    def size(self, session: SparkSession, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        listing = self._list(session, uri, version)
        return files_in_range(listing.files, piece_bytes, range_id).size

    @contextmanager
    def read_once(self, rows: Rows) -> Iterator[Rows]:
        with ExitStack() as stack:

            def cache() -> DataFrame:
                frame = cached(rows.frame)
                stack.callback(release, frame)
                return frame

            yield Rows(cache, lambda: rows.table)

    def _list(self, session: SparkSession, uri: str, version: int) -> _Listing:
        with reading_changes(f"list the files of {uri} at version {version}"):
            return self._list_opened(session, uri, version, open_log(session, uri, version)[2])

    def _list_opened(self, session: SparkSession, uri: str, version: int, snapshot: Any) -> _Listing:
        key = uri, version, str(snapshot.metadata().id())
        with self._lock:
            if (known := self._listings.get(key)) is not None:
                self._listings.move_to_end(key)
                return known
        listing = _list_files(session, uri, version, snapshot)
        with self._lock:
            self._listings[key] = listing
            if len(self._listings) > LISTINGS_CACHED_MAX:
                self._listings.popitem(last=False)
        return listing


def _frame_of(opened: tuple[Any, Any, Any], session: SparkSession, listing: _Listing, found: RangeFiles) -> DataFrame:
    whole = [listing.actions[file] for file in found.whole]
    frames = [frame_of_files(opened, session, whole)] if whole else []
    for file, pieces in found.parts.items():
        # By its place in the file, which rows that are gone have too, a row belongs to one group for certain.
        spans_of = partial(row_spans, pieces=pieces)
        frames += frames_of_places(opened, session, listing.actions[file], file.path, spans_of)
    return without_void(reduce(lambda one, other: one.unionAll(other), frames))


def _list_files(session: SparkSession, uri: str, version: int, snapshot: Any) -> _Listing:
    frame = frame_of_java(snapshot.allFiles().toDF(), session)
    action = action_json(frame, _UNREAD)
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint") - F.coalesce(
        "deletionVector.cardinality", F.lit(0)
    )
    vector = F.to_json("deletionVector")
    found = frame.select("path", "size", rows.alias("rows"), vector.alias("vector"), action.alias("action"))
    table = sorted(found.toArrow().to_pylist(), key=lambda row: (str(row["path"]), str(row["vector"])))
    require_readable(uri, ((row["path"], row["vector"] and json.loads(row["vector"])) for row in table))
    files = tuple(SnapshotFile(row["path"], _size_of(row), _vector_id(row["vector"])) for row in table)
    shape = None
    with suppress(StorageError, InvalidRequest):  # of a table that only Spark opens nothing is read without it
        shape = open_version(uri, version, None)[0]
    actions = (f'{{"add":{row["action"]}}}' for row in table)
    return _Listing(files, shape, dict(zip(files, actions, strict=True)))


def _file(add: Mapping[str, Any]) -> ChangeFile:
    return ChangeFile(
        add["path"], "insert", add.get("partitionValues") or {}, add["size"], without=add.get("deletionVector")
    )


def _size_of(row: Mapping[str, Any]) -> TableSize:
    return TableSize(UNKNOWN if row["rows"] is None else row["rows"], row["size"])


def _vector_id(text: str | None) -> str:
    if text is None:
        return ""
    vector = json.loads(text)
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset', 0)}"
