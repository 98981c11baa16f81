"""Reads a changefeed on from a cursor: only files whose ulids, by their statistics, may lie behind it.

A shard's ulids become visible in their order, so that whatever lies behind the last one read is new, and nothing that
is new lies before it. Of a file that this project wrote, only the row groups are read that a page needs; one that a
compaction has left may be in any order, and is read whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from iscp.adapters.delta.faults import delta_faults
from iscp.adapters.delta.feed_draft import FILE_PREFIX
from iscp.adapters.delta.feed_schema import FEED, SHARD, ULID_TEXT
from iscp.core.errors import InvalidRequest

READ_ROWS_MAX = 1_000_000
"""Rows of one page."""

FILES_KEPT_MAX = 2
"""Files of which a page took a part, with the row group that it came to: the next one goes on there."""

BEFORE_ALL, BEHIND_ALL = "", "~"
"""Texts that sort before and behind those of all ulids."""

_ACTIONS = {
    "path": "path",
    "bytes": "size_bytes",
    "rows": "num_records",
    "feed": f"partition.{FEED}",
    "shard": f"partition.{SHARD}",
    "first": f"min.{ULID_TEXT}",
    "last": f"max.{ULID_TEXT}",
}


@dataclass(frozen=True, slots=True)
class FeedPage:
    """`rows` in the order of their ulids (of all shards), and `cursor`: each shard's last ulid up to here, as text."""

    rows: pa.Table
    cursor: Mapping[int, str]


@dataclass(slots=True)
class _Span:
    """Files of a shard whose ulids lie between two, as texts; no other file of the shard has any there.

    Each commit brings files of its own, behind all others; but a compaction may leave files that overlap.
    """

    feed: str
    shard: int
    paths: list[str]
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The rows of some files that are behind a ulid, in order."""

    paths: list[str]
    after: str
    rows: pa.Table


def read_page(table: DeltaTable, files: pafs.FileSystem, cursor: Mapping[int, str], limit: int) -> FeedPage:
    """As of `PageReader`, once."""
    return PageReader(files).page(table, cursor, limit)


def files_of_feed(table: DeltaTable) -> pa.Table:
    """All files, as of the table's version: path, bytes, rows, feed, shard, and the bounds of their ulids, first and
    last, which are null where they are not known."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = {
        name: actions[column] if column in actions.column_names else pa.nulls(len(actions), pa.string())
        for name, column in _ACTIONS.items()
    }
    found = pa.table(columns)
    return found.set_column(found.column_names.index("shard"), "shard", found["shard"].cast(pa.int32()))


class PageReader:
    """Reads pages, one after the other, of one table; not to be used from several threads at once."""

    def __init__(self, files: pafs.FileSystem) -> None:
        self._files = files
        self._version = -1
        self._listed = pa.table({})
        self._begun: OrderedDict[str, _OrderedFile] = OrderedDict()
        self._sorted = _Sorted([], "", pa.table({}))

    def page(self, table: DeltaTable, cursor: Mapping[int, str], limit: int) -> FeedPage:
        """The first `limit` rows behind the cursor, as of the table's version. Raises InvalidRequest, StorageError."""
        if not 1 <= limit <= READ_ROWS_MAX:
            raise InvalidRequest(f"a page has 1 to {READ_ROWS_MAX} rows, not {limit}", field="limit")
        found: list[pa.Table] = []
        reached, rows = dict(cursor), 0
        with delta_faults("read a feed"):
            for span in sorted(_spans(self._behind(table, cursor)), key=lambda span: span.first):
                if rows >= limit:
                    break
                page = self._read(span, reached.get(span.shard, BEFORE_ALL), limit - rows)
                if len(page):
                    found.append(page)
                    rows += len(page)
                    reached[span.shard] = page[ULID_TEXT][-1].as_py()
            schema = pa.schema(table.schema().to_arrow())
        return FeedPage(_in_order(found, schema), reached)

    def _behind(self, table: DeltaTable, cursor: Mapping[int, str]) -> Iterator[_Span]:
        if self._version != table.version():
            self._listed, self._version = files_of_feed(table), table.version()
        if not len(self._listed):
            return
        shards, ulids = pa.array(cursor.keys(), pa.int32()), pa.array(cursor.values(), pa.string())
        reached = ulids.take(pc.index_in(self._listed["shard"].combine_chunks(), shards))
        last = pc.fill_null(self._listed["last"], BEHIND_ALL)
        for file in self._listed.filter(pc.greater(last, pc.fill_null(reached, BEFORE_ALL))).to_pylist():
            first, last = file["first"] or BEFORE_ALL, file["last"] or BEHIND_ALL
            yield _Span(file["feed"], file["shard"], [file["path"]], first, last)

    def _read(self, span: _Span, after: str, limit: int) -> pa.Table:
        in_order = len(span.paths) == 1 and span.paths[0].rpartition("/")[2].startswith(FILE_PREFIX)
        rows = self._part(span.paths[0], after, limit) if in_order else self._whole(span, after, limit)
        rows = rows.append_column(SHARD, pa.array([span.shard] * len(rows), pa.int32()))
        return rows.append_column(FEED, pa.array([span.feed] * len(rows), pa.string()))

    def _whole(self, span: _Span, after: str, limit: int) -> pa.Table:
        """All of a span is read, and kept until another one is: the next page goes on there."""
        if self._sorted.paths != span.paths or after < self._sorted.after:
            self._sorted = _Sorted(span.paths, after, self._read_whole(span, after))
        rows = self._sorted.rows
        rows = rows.filter(pc.greater(rows[ULID_TEXT], after))
        self._sorted = _Sorted(span.paths, after, rows)
        return rows.slice(0, limit)

    def _read_whole(self, span: _Span, after: str) -> pa.Table:
        found = []
        for path in span.paths:
            with self._files.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
                rows = file.read()
            found.append(rows.filter(pc.greater(rows[ULID_TEXT], after)))
        return _sorted(pa.concat_tables(found, promote_options="permissive"))

    def _part(self, path: str, after: str, limit: int) -> pa.Table:
        file = self._begun.pop(path, None) or _OrderedFile(self._files, path)
        rows = file.behind(after, limit)
        if len(rows) == limit:  # there may be more
            self._begun[path] = file
            if len(self._begun) > FILES_KEPT_MAX:
                self._begun.popitem(last=False)
        return rows


class _OrderedFile:
    """A file whose rows are in the order of their ulids, in row groups that tell their bounds."""

    def __init__(self, files: pafs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._metadata: pq.FileMetaData | None = None
        self._number, self._group = -1, pa.table({})

    def behind(self, after: str, limit: int) -> pa.Table:
        """The first `limit` rows behind a ulid."""
        with (
            self._files.open_input_file(self._path) as stream,
            pq.ParquetFile(stream, metadata=self._metadata) as file,
        ):
            self._metadata = file.metadata
            found, rows = [file.schema_arrow.empty_table()], 0
            for number in self._groups_behind(file, after):
                if number != self._number:
                    self._number, self._group = number, file.read_row_group(number, use_threads=False)
                passed = pc.sum(pc.less_equal(self._group[ULID_TEXT], after)).as_py()
                found.append(self._group.slice(passed, limit - rows))
                rows += len(found[-1])
                if rows == limit:
                    break
        return pa.concat_tables(found)

    def _groups_behind(self, file: pq.ParquetFile, after: str) -> Iterator[int]:
        column = file.schema_arrow.names.index(ULID_TEXT)
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(column).statistics
            if bounds is None or not bounds.has_min_max or bounds.max > after:
                yield number


def _spans(files: Iterable[_Span]) -> list[_Span]:
    """Those of a shard that overlap, together."""
    spans: list[_Span] = []
    for file in sorted(files, key=lambda file: (file.shard, file.first)):
        before = spans[-1] if spans else None
        if before is not None and before.shard == file.shard and file.first <= before.last:
            before.paths += file.paths
            before.last = max(before.last, file.last)
        else:
            spans.append(file)
    return spans


def _in_order(found: list[pa.Table], schema: pa.Schema) -> pa.Table:
    if not found:
        return schema.empty_table()
    # A file from before the feed was given a column has none.
    rows = pa.concat_tables([each.select(schema.names).cast(schema) for each in found])
    return _sorted(rows) if len(found) > 1 else rows


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, [(ULID_TEXT, "ascending")]))
