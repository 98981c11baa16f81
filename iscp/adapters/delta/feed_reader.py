"""Reads a changefeed on from a cursor: only files whose ulids, by their statistics, may lie behind it.

A shard's ulids become visible in their order, so that whatever lies behind the last one read is new, and nothing that
is new lies before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable

from iscp.adapters.delta.faults import delta_faults
from iscp.adapters.delta.feed_table import SHARD, ULID_TEXT
from iscp.core.errors import InvalidRequest

READ_ROWS_MAX = 1_000_000
"""Rows of one page."""

_NOTHING = ""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """`rows` in the order of their ulids (of all shards), and `cursor`: each shard's last ulid up to here, as text."""

    rows: pa.Table
    cursor: Mapping[int, str]


@dataclass(slots=True)
class _Span:
    """Files of a shard whose ulids lie between two, as texts; no other file of the shard has any there.

    Each commit brings a file of its own, behind all others; but a compaction may leave files that overlap.
    """

    shard: int
    paths: list[str]
    first: str
    last: str


def read_page(table: DeltaTable, files: pafs.FileSystem, cursor: Mapping[int, str], limit: int) -> FeedPage:
    """The first `limit` rows behind the cursor, as of the table's version. Raises InvalidRequest, StorageError."""
    if not 1 <= limit <= READ_ROWS_MAX:
        raise InvalidRequest(f"a page has 1 to {READ_ROWS_MAX} rows, not {limit}", field="limit")
    found: list[pa.Table] = []
    reached, rows = dict(cursor), 0
    with delta_faults("read a feed"):
        for span in sorted(_spans(_behind(table, cursor)), key=lambda span: span.first):
            if rows >= limit:
                break
            page = _read(files, span, reached.get(span.shard, _NOTHING), limit - rows)
            if len(page):
                found.append(page)
                rows += len(page)
                reached[span.shard] = page[ULID_TEXT][-1].as_py()
    schema = pa.schema(table.schema().to_arrow())
    return FeedPage(_in_order(found, schema), reached)


def _behind(table: DeltaTable, cursor: Mapping[int, str]) -> Iterator[_Span]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = (f"partition.{SHARD}", "path", f"min.{ULID_TEXT}", f"max.{ULID_TEXT}")
    if not len(actions):
        return
    for shard, path, first, last in zip(*(actions[name].to_pylist() for name in columns), strict=True):
        if last > cursor.get(int(shard), _NOTHING):
            yield _Span(int(shard), [path], first, last)


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


def _read(files: pafs.FileSystem, span: _Span, after: str, limit: int) -> pa.Table:
    rows = ds.dataset(span.paths, filesystem=files, format="parquet").to_table(filter=pc.field(ULID_TEXT) > after)
    rows = rows.sort_by(ULID_TEXT).slice(0, limit)
    return rows.append_column(SHARD, pa.array([span.shard] * len(rows), pa.int32()))


def _in_order(found: list[pa.Table], schema: pa.Schema) -> pa.Table:
    if not found:
        return schema.empty_table()
    return pa.concat_tables([each.select(schema.names) for each in found]).sort_by(ULID_TEXT).cast(schema)
