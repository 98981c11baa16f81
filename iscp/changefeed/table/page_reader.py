"""Reads a changefeed on from a cursor: only files whose ulids, by their statistics, may lie behind it.

A shard's ulids become visible in their order, so that whatever lies behind the last one read is new, and nothing that
is new lies before it. In a file that this project wrote, only the row groups are read that a page needs; one that a
compaction has left may be in any order, and is read whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.changefeed.table.feed_files import BEFORE_ALL, FeedFile, FeedFiles, groups_between, overlapping
from iscp.changefeed.table.feed_schema import FEED, SHARD, ULID_TEXT
from iscp.changefeed.table.file_writer import FILE_PREFIX
from iscp.core.values.argument_checks import require
from iscp.core.values.errors import ErrorCode, InvalidRequest, PermanentError

READ_ROWS_MAX = 1_000_000
"""Rows of one page; a request for more is refused."""

OPEN_FILES_MAX = 2
"""Files read in part whose last row group a reader keeps for its next page; of others it is read again."""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """`rows` in the order of their ulids (of all shards), and `cursor`: each shard's last ulid up to here, as text."""

    rows: pa.Table
    cursor: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The rows of some files that are behind a ulid, in order."""

    paths: list[str]
    after: str
    rows: pa.Table


class PageReader:
    """Reads pages, one after the other, of one table; not to be used from several threads at once.

    `bytes_max`: a page ends once so many bytes, decoded, were read for it, and what is only read at once and has more
    is refused; None: there is no bound.
    """

    def __init__(self, files: pafs.FileSystem, bytes_max: int | None = None) -> None:
        self._files = files
        self._listed = FeedFiles()
        self._begun: OrderedDict[str, _OrderedFile] = OrderedDict()
        self._sorted = _Sorted([], "", pa.table({}))
        self._bytes_max = bytes_max
        self._share = _Share(bytes_max)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of rows are held for the next page."""
        return int(self._sorted.rows.nbytes + sum(each.held_bytes for each in self._begun.values()))

    def page(self, table: DeltaTable, cursor: Mapping[int, str], limit: int) -> FeedPage:
        """Return the first `limit` rows behind the cursor, as of the table's version, or fewer where they have many
        bytes. Raises InvalidRequest, StorageError, PermanentError.
        """
        require(limit, int, "limit", "a number of rows")
        if not 1 <= limit <= READ_ROWS_MAX:
            raise InvalidRequest(f"a page has 1 to {READ_ROWS_MAX} rows, not {limit}", about="limit")
        found: list[pa.Table] = []
        reached, rows = dict(cursor), 0
        self._share = _Share(self._bytes_max)
        with delta_faults("read a feed"):
            for span in overlapping(self._listed.between(table, cursor)):
                if rows >= limit or (rows and self._share.used_up):
                    break
                shard = span[0].shard
                page = self._read(span, reached.get(shard, BEFORE_ALL), limit - rows)
                if len(page):
                    found.append(page)
                    rows += len(page)
                    reached[shard] = page[ULID_TEXT][-1].as_py()
            schema = pa.schema(table.schema().to_arrow())
        return FeedPage(_in_order(found, schema), reached)

    def _read(self, span: Sequence[FeedFile], after: str, limit: int) -> pa.Table:
        file, paths = span[0], [file.path for file in span]
        in_order = len(paths) == 1 and file.path.rpartition("/")[2].startswith(FILE_PREFIX)
        rows = self._part(file.path, after, limit) if in_order else self._whole(paths, after, limit)
        rows = rows.append_column(SHARD, pa.array([file.shard] * len(rows), pa.int32()))
        return rows.append_column(FEED, pa.array([file.feed] * len(rows), pa.string()))

    def _whole(self, paths: list[str], after: str, limit: int) -> pa.Table:
        """Return the next rows of files that are read whole, and cached until others are: the next page goes on
        there.
        """
        if self._sorted.paths != paths or after < self._sorted.after:
            self._sorted = _Sorted(paths, after, self._read_whole(paths, after))
        rows = self._sorted.rows
        rows = rows.filter(pc.greater(rows[ULID_TEXT], after))
        self._sorted = _Sorted(paths, after, rows)
        return rows.slice(0, limit)

    def _read_whole(self, paths: Sequence[str], after: str) -> pa.Table:
        found, size = [], 0
        for path in paths:
            with self._files.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
                size += sum(_decoded_bytes(file, number) for number in range(file.num_row_groups))
                self._share.count(size, path)
                rows = file.read()
            found.append(rows.filter(pc.greater(rows[ULID_TEXT], after)))
        return _sorted(pa.concat_tables(found, promote_options="permissive"))

    def _part(self, path: str, after: str, limit: int) -> pa.Table:
        file = self._begun.pop(path, None) or _OrderedFile(self._files, path)
        rows = file.behind(after, limit, self._share)
        if len(rows) == limit:  # there may be more
            self._begun[path] = file
            if len(self._begun) > OPEN_FILES_MAX:
                self._begun.popitem(last=False)
        return rows


class _Share:
    """The bytes that were read for one page, by what files say of their parts once these are decoded."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        self._read = 0

    @property
    def used_up(self) -> bool:
        return self._bytes_max is not None and self._read >= self._bytes_max

    def count(self, size: int, path: str) -> None:
        """Count what is read at once. Raises PermanentError where that alone is more than a page may read."""
        if self._bytes_max is not None and size > self._bytes_max:
            raise PermanentError(
                f"{path} has {size} bytes that are only read at once, and a page reads {self._bytes_max} here",
                remedy="Read the feed where it lies: `iscp feed tail URI`, or iscp.changefeed",
                code=ErrorCode.TABLE_UNREADABLE,
            )
        self._read += size


class _OrderedFile:
    """A file whose rows are in the order of their ulids, in row groups that state their bounds."""

    def __init__(self, files: pafs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._metadata: pq.FileMetaData | None = None
        self._number, self._group = -1, pa.table({})

    @property
    def held_bytes(self) -> int:
        return int(self._group.nbytes)

    def behind(self, after: str, limit: int, share: _Share) -> pa.Table:
        """Return the first `limit` rows behind a ulid, or fewer where `share` is used up."""
        with (
            self._files.open_input_file(self._path) as stream,
            pq.ParquetFile(stream, metadata=self._metadata) as file,
        ):
            self._metadata = file.metadata
            found, rows = [file.schema_arrow.empty_table()], 0
            for number in groups_between(file, after):
                if number != self._number:
                    share.count(_decoded_bytes(file, number), self._path)
                    self._number, self._group = number, file.read_row_group(number, use_threads=False)
                passed = pc.sum(pc.less_equal(self._group[ULID_TEXT], after)).as_py()
                found.append(self._group.slice(passed, limit - rows))
                rows += len(found[-1])
                if rows == limit or (rows and share.used_up):
                    break
        return pa.concat_tables(found)


def _decoded_bytes(file: pq.ParquetFile, number: int) -> int:
    """Return the size of a row group before compression, as the file says it."""
    return int(file.metadata.row_group(number).total_byte_size)


def _in_order(found: list[pa.Table], schema: pa.Schema) -> pa.Table:
    if not found:
        return schema.empty_table()
    # A file from before the feed was given a column has none.
    rows = pa.concat_tables([each.select(schema.names).cast(schema) for each in found])
    return _sorted(rows) if len(found) > 1 else rows


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, [(ULID_TEXT, "ascending")]))
