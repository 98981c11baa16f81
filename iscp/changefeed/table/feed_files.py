"""The files of a changefeed, by what the log says of their ulids: those that lie between cursors, and which overlap.

Each commit brings files of its own, behind all others of their shard; but a compaction may leave files that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from iscp.adapters.delta.log.add_actions import add_actions_of
from iscp.adapters.delta.storage.bounded_parquet import BoundedParquet
from iscp.changefeed.table.feed_schema import FEED, SHARD, ULID_TEXT

BEFORE_ALL, BEHIND_ALL = "", "~"
"""Texts that sort before and behind those of all ulids."""

_ACTIONS = {
    "path": "path",
    "size": "size_bytes",
    "rows": "num_records",
    "feed": f"partition.{FEED}",
    "shard": f"partition.{SHARD}",
    "first": f"min.{ULID_TEXT}",
    "last": f"max.{ULID_TEXT}",
}


@dataclass(frozen=True, slots=True)
class FeedFile:
    """`first` and `last`: bounds of its ulids, as texts. `size` is in bytes; `rows` None: the log does not say."""

    path: str
    size: int
    rows: int | None
    feed: str
    shard: int
    first: str
    last: str


class FeedFiles:
    """The files of one table, listed once for each of its versions; not to be used from several threads at once."""

    def __init__(self) -> None:
        self._version = -1
        self._listed = pa.table({})

    def between(
        self, table: DeltaTable, start: Mapping[int, str], end: Mapping[int, str] | None = None
    ) -> list[FeedFile]:
        """Return the files that may have rows behind `start` and, if that is given, up to `end`; by shard and first
        ulid.

        A shard that is not in `start` begins before all; one that is not in `end` has none.
        """
        if self._version != table.version():
            self._listed, self._version = list_files(table), table.version()
        found, shards = self._listed, self._listed["shard"]
        wanted = pc.greater(pc.fill_null(found["last"], BEHIND_ALL), _of_shards(start, shards))
        if end is not None:
            begun = pc.is_in(shards, pa.array(end.keys(), pa.int32()))
            before = pc.less_equal(pc.fill_null(found["first"], BEFORE_ALL), _of_shards(end, shards))
            wanted = pc.and_(wanted, pc.and_(begun, before))
        files = [
            FeedFile(**{**each, "first": each["first"] or BEFORE_ALL, "last": each["last"] or BEHIND_ALL})
            for each in found.filter(wanted).to_pylist()
        ]
        return sorted(files, key=lambda file: (file.shard, file.first))


def list_files(table: DeltaTable) -> pa.Table:
    """Return all files as of the table's version, with the columns of FeedFile; bounds that are not known are null."""
    actions = add_actions_of(table, flatten=True)
    columns = {
        name: actions[column] if column in actions.column_names else pa.nulls(len(actions), pa.string())
        for name, column in _ACTIONS.items()
    }
    found = pa.table(columns)
    return found.set_column(found.column_names.index("shard"), "shard", found["shard"].cast(pa.int32()))


def groups_between(file: BoundedParquet, after: str, upto: str = BEHIND_ALL) -> Iterator[int]:
    """Yield the row groups that may have ulids behind `after` and up to `upto`; all of a file that has no bounds."""
    for number, chunk in enumerate(file.chunks(ULID_TEXT)):
        bounds = chunk.text_bounds
        if bounds is None or (bounds[1] > after and bounds[0] <= upto):
            yield number


def overlapping(files: Sequence[FeedFile]) -> list[list[FeedFile]]:
    """Return the files of a shard that overlap, together; by their first ulids, whatever the shard.

    `files` are by shard and first ulid.
    """
    spans: list[list[FeedFile]] = []
    last = BEFORE_ALL
    for file in files:
        if spans and spans[-1][0].shard == file.shard and file.first <= last:
            spans[-1].append(file)
            last = max(last, file.last)
        else:
            spans.append([file])
            last = file.last
    return sorted(spans, key=lambda span: span[0].first)


def _of_shards(ulids: Mapping[int, str], shards: pa.ChunkedArray) -> pa.Array:
    """Return the ulid of each shard, by cursor."""
    places = pc.index_in(shards.combine_chunks(), pa.array(ulids.keys(), pa.int32()))
    return pc.fill_null(pa.array(ulids.values(), pa.string()).take(places), BEFORE_ALL)
