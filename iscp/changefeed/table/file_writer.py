"""The files of a feed's commit, while they are written: each has its shard's rows in the order of their ulids.

A file is visible once the log names it. Files that are written and not committed are deleted.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from iscp.changefeed.model.ulid import UlidPlace, ulid_text
from iscp.changefeed.table.feed_schema import (
    KEY,
    NET,
    OPERATION,
    ROW,
    ULID,
    ULID_TEXT,
    VERSION,
    FeedDescription,
    ulid_columns,
)
from iscp.model.values.errors import InvalidRequest
from iscp.ports.system import Clock, Failpoints
from iscp.storage.delta_errors import delta_faults

FAILPOINT_WRITE = "feed.write"

FILE_ROWS = 256 * 1024
"""Rows of a feed's file; more become several files."""

GROUP_ROWS = 32 * 1024
"""Rows of a row group, the least that a reader takes from a file; more become several groups."""

BUFFERED_ROWS_MAX = 1024 * 1024
"""Rows of all shards together that wait for their files to be full; beyond them the largest shard's rows are written.
"""

WRITERS = 2
"""Threads that write a feed's files; more files queue."""

FILE_PREFIX = "feed-"
"""Files with such a name are in order and have small row groups; a compaction gives its files other names."""


@dataclass(frozen=True, slots=True)
class FeedRows:
    """Rows in their order, and an operation for each.

    `versions`: the source's version that each change is of; `net`: they are what changed in all since the version
    before, as the single changes were not to be had.
    """

    rows: pa.Table
    operations: pa.Array | pa.ChunkedArray
    versions: pa.Array | pa.ChunkedArray | None = None
    net: bool = False


@dataclass(slots=True)
class _Shard:
    """`place` follows the last row that was added, `written` the last one that is in a file."""

    place: UlidPlace
    written: UlidPlace
    waiting: list[pa.Table] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.place.low - self.written.low


class FeedDraft:
    """The files of one commit; a context manager, which deletes them at its end unless they are `committed`.

    The draft is used by one thread.
    """

    def __init__(self, description: FeedDescription, files: pafs.FileSystem, clock: Clock, failpoints: Failpoints):
        self.description = description
        self._files = files
        self._clock = clock
        self._failpoints = failpoints
        self._shards: dict[int, _Shard] = {}
        self._adds: list[AddAction] = []
        self._paths: list[str] = []
        self._under_way: deque[Future[AddAction]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self.committed = False

    def __enter__(self) -> FeedDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if not self.committed:
            self.discard()

    @property
    def places(self) -> dict[int, UlidPlace]:
        """Return the place at which each shard that was added to goes on."""
        return {number: shard.place for number, shard in self._shards.items()}

    def add(self, number: int, first: UlidPlace, rows: FeedRows) -> UlidPlace:
        """Put rows behind those that the shard has here already, and which ended at `first`; where these end.

        Raises InvalidRequest (they do not fit: nothing was added), StorageError.
        """
        self.description.refuse_shard(number)
        body = self._body(rows)
        shard = self._shard(number, first)
        place = first.after(len(body))
        shard.place = place
        shard.waiting.append(body)
        while shard.rows >= FILE_ROWS:
            self._write_file(number, shard)
        while sum(each.rows for each in self._shards.values()) > BUFFERED_ROWS_MAX:
            self._write_file(*max(self._shards.items(), key=lambda item: item[1].rows))
        return place

    def adopt(self, number: int, first: UlidPlace, count: int, adds: Sequence[AddAction]) -> UlidPlace:
        """Add `count` rows that are in files already, as `add` does; the files are this draft's from now on."""
        self._paths += [add.path for add in adds]
        self.description.refuse_shard(number)
        shard = self._shard(number, first)
        self._flush(number, shard)
        shard.place = shard.written = first.after(count)
        self._adds += adds
        return shard.place

    def finish(self) -> list[AddAction]:
        """Write all files to their end, and return their actions. Raises StorageError."""
        for number, shard in self._shards.items():
            self._flush(number, shard)
        while self._under_way:
            self._adds.append(self._under_way.popleft().result())
        return self._adds

    def discard(self) -> None:
        """Free the space of what was not committed; what cannot be deleted a vacuum takes."""
        for path in self._paths:
            with suppress(OSError):
                self._files.delete_file(path)
        for folder in {path.rpartition("/")[0] for path in self._paths}:
            if folder.rpartition("/")[2].startswith(FILE_PREFIX):  # Spark's, of one append
                with suppress(OSError):
                    self._files.delete_dir(folder)

    def _shard(self, number: int, first: UlidPlace) -> _Shard:
        shard = self._shards.setdefault(number, _Shard(first, first))
        if shard.place != first:
            raise InvalidRequest(f"the rows of shard {number} do not begin where those before end", about="first")
        return shard

    def _flush(self, number: int, shard: _Shard) -> None:
        while shard.rows:
            self._write_file(number, shard)

    def _write_file(self, number: int, shard: _Shard) -> None:
        """Write the shard's first rows; in this thread where they are few, since a thread costs too."""
        waiting = pa.concat_tables(shard.waiting)
        body, rest = waiting[:FILE_ROWS], waiting[FILE_ROWS:]
        path = f"{self.description.folder(number)}/{FILE_PREFIX}{uuid.uuid4().hex}.parquet"
        self._paths.append(path)
        write = partial(self._write_parquet, path, number, shard.written, body)
        shard.waiting, shard.written = [rest] if len(rest) else [], shard.written.after(len(body))
        if len(body) < GROUP_ROWS and not self._under_way:
            self._adds.append(write())
            return
        self._pool = self._pool or ThreadPoolExecutor(WRITERS, "iscp-feed-file")
        self._under_way.append(self._pool.submit(write))
        if len(self._under_way) > WRITERS:
            self._adds.append(self._under_way.popleft().result())

    def _write_parquet(self, path: str, number: int, first: UlidPlace, body: pa.Table) -> AddAction:
        ulids, texts = ulid_columns(first, len(body))
        table = pa.table([ulids, texts, *body.columns], schema=self.description.file_schema)
        with delta_faults(f"write {path}"):
            self._files.create_dir(path.rpartition("/")[0])
            with self._files.open_output_stream(path) as stream:
                pq.write_table(table, stream, row_group_size=GROUP_ROWS, **_layout(self.description.file_schema))
                size = stream.tell()
        self._failpoints.reach(FAILPOINT_WRITE)
        stats = file_stats(first, len(body))
        at_ms = int(self._clock.now_s() * 1000)
        return AddAction(path, size, self.description.partition(number), at_ms, True, stats)

    def _body(self, rows: FeedRows) -> pa.Table:
        """Return all columns of the file but the ulids."""
        self._refuse_misfit(rows)
        count, given = len(rows.rows), rows.rows.combine_chunks()
        versions = pa.nulls(count, pa.int64()) if rows.versions is None else rows.versions
        schema = self.description.file_schema
        body = pa.schema([field for field in schema if field.name not in (ULID, ULID_TEXT)])
        try:
            row = _struct(given, self.description.row)
            key = {KEY: _struct(given, self.description.row, self.description.key)} if self.description.key else {}
            net = pa.array(np.full(count, rows.net))
            found = pa.table({**key, OPERATION: rows.operations, VERSION: versions, NET: net, ROW: row}).cast(body)
            found.validate()
        except (pa.ArrowException, ValueError) as error:
            raise InvalidRequest(f"the rows do not fit the feed: {error}", about="rows") from error
        return found

    def _refuse_misfit(self, given: FeedRows) -> None:
        rows, wanted = given.rows, self.description.row
        if not len(rows):
            raise InvalidRequest("there are no rows to append", about="rows")
        operations = given.operations
        if operations.type != pa.string() or len(operations) != len(rows) or operations.null_count:
            raise InvalidRequest(
                f"{len(rows)} rows need as many operations", about="operations", remedy="Give a text for each row"
            )
        if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
            raise InvalidRequest(
                f"the rows have the columns {_schema_text(rows.schema)}, the feed's are {_schema_text(wanted)}",
                about="rows",
                remedy="Cast them to the feed's columns, in their order",
            )
        for column in wanted:
            if not column.nullable and rows[column.name].null_count:
                raise InvalidRequest(
                    f"column {column.name} has nulls", about="rows", remedy="The feed's column takes none"
                )


def file_stats(first: UlidPlace, rows: int) -> str:
    """Return the statistics for the log of a file whose rows have the ulids from `first` on."""
    ends = {"minValues": first.ulid(), "maxValues": first.ulid(rows - 1)}
    bounds = {name: {ULID_TEXT: ulid_text(ulid)} for name, ulid in ends.items()}
    return json.dumps({"numRecords": rows, **bounds, "nullCount": {ULID_TEXT: 0}})


@lru_cache(maxsize=64)
def _layout(schema: pa.Schema) -> dict[str, Any]:
    """Return how each column is written, by measurements in docs/performance.md.

    Ulids follow one another: they have no use for a dictionary, and become small by zstd. The other columns are as
    deltalake writes them. Readers use no other statistics than those of the ulids.
    """
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    paths = [columns.column(number).path for number in range(len(columns))]
    return {
        "compression": {path: "zstd" if path in (ULID, ULID_TEXT) else "snappy" for path in paths},
        "use_dictionary": [path for path in paths if path not in (ULID, ULID_TEXT)],
        "write_statistics": [ULID_TEXT],
    }


def _struct(rows: pa.Table, schema: pa.Schema, names: Sequence[str] | None = None) -> pa.Array:
    fields = [schema.field(name) for name in (schema.names if names is None else names)]
    columns = [rows[field.name].chunk(0) for field in fields]
    return pa.StructArray.from_arrays(columns, fields=fields)


def _schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)
