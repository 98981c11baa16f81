"""Plans the read between two cursors of a changefeed, in parts that are read by themselves, and the ends of batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from iscp.adapters.delta.log.table_opening import bring_up, open_delta
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.delta.storage.locations import place
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.changefeed.model.cursor import Cursor
from iscp.changefeed.model.ulid import ULID_BYTES, parse_ulid, ulid_text
from iscp.changefeed.spark.partition import FeedPart, part_columns
from iscp.changefeed.table.feed_files import BEFORE_ALL, BEHIND_ALL, FeedFile, FeedFiles, overlapping
from iscp.changefeed.table.feed_purge import read_purged
from iscp.changefeed.table.feed_schema import ULID_TEXT
from iscp.changefeed.table.feed_table import FeedTable

PART_BYTES = 32 * 1024**2
"""Bytes of the files that one task of Spark reads, unless it is a single file; the others go to further tasks."""

PART_FILES_MAX = 256
"""Files that one task of Spark reads; the others go to further tasks."""

_ULIDS = pa.schema([pa.field(ULID_TEXT, pa.string(), nullable=False)])


class FeedPlan:
    """One reader's hold on a feed; not to be used from several threads at once."""

    def __init__(self, uri: str) -> None:
        """Raises TableNotFound, ConfigurationError, StorageError."""
        self._table = FeedTable(uri, SystemClock(), EnvironmentFailpoints())
        with delta_faults(f"open the feed {uri}"):
            self._delta = open_delta(place(uri))
        self._listed = FeedFiles()

    @property
    def shards(self) -> int:
        return self._table.description.shards

    def schema(self) -> StructType:
        """Return the table's schema for Spark: Delta and Spark write schemas alike."""
        return StructType.fromJson(json.loads(self._delta.schema().to_json()))

    def own(self, cursor: Cursor) -> Cursor:
        """Raises InvalidRequest for a cursor of another feed."""
        cursor.refuse_foreign(self._table.description.feed_id, self.shards)
        return cursor

    def refuse_purged(self, cursor: Cursor) -> Cursor:
        """Raises CursorBehind where what it would have next is gone."""
        cursor.refuse_behind(read_purged(self._table))
        return cursor

    def first_cursor(self) -> Cursor:
        """The one behind which all is that is left."""
        return self._cursor(read_purged(self._table))

    def last_cursor(self) -> Cursor:
        """Return the cursor behind which all rows come that will be appended."""
        return self._cursor(self._table.last_ulids())

    def end(self, start: Cursor, rows_max: int | None) -> tuple[Cursor, bool]:
        """Return the end of a batch that begins at `start` and has up to `rows_max` rows, and whether rows are left
        behind it.

        Raises CursorBehind, StorageError.
        """
        last = self.last_cursor()
        everything = self._cursor(
            {shard: max(ulid, start.get(shard, ulid)) for shard, ulid in {**start, **last}.items()}
        )
        if rows_max is None:
            self.refuse_purged(start)
            return everything, False
        files = self._files(start, everything)
        self.refuse_purged(start)
        reached, rows = dict(start), 0
        for span in overlapping(files):
            shard = span[0].shard
            count, ulid = self._first_rows(span, reached.get(shard, BEFORE_ALL), everything[shard], rows_max - rows)
            if count:
                rows, reached[shard] = rows + count, ulid
            if rows == rows_max:
                break
        else:
            return everything, False
        return self._cursor(reached), self._cursor(reached) != everything

    def parts(self, start: Cursor, end: Cursor) -> list[FeedPart]:
        """Raises CursorBehind, StorageError."""
        files = self._files(start, end)
        # After the files: what was purged of those is known then.
        self.refuse_purged(start)
        feed = self._table.description.feed_id
        return [
            FeedPart(feed, shard, tuple(file.path for file in group), start.get(shard, BEFORE_ALL), end[shard])
            for shard, group in _groups(files)
        ]

    def _cursor(self, ulids: Mapping[int, str]) -> Cursor:
        return Cursor(self._table.description.feed_id, ulids)

    def _files(self, start: Mapping[int, str], end: Mapping[int, str]) -> list[FeedFile]:
        """Return the files that may have rows between the two cursors, as of now."""
        with delta_faults("list the files of a feed"):
            bring_up(self._delta)
            return self._listed.between(self._delta, start, end)

    def _first_rows(self, span: Sequence[FeedFile], after: str, upto: str, limit: int) -> tuple[int, str]:
        """Return how many rows, up to `limit`, lie behind `after` up to `upto`, and the last one's ulid."""
        rows = sum(file.rows if file.rows is not None else limit + 1 for file in span)
        last = max(file.last for file in span)
        if rows <= limit and after < span[0].first and last <= upto:
            return rows, last
        if len(span) == 1 and (dense := _dense(span[0])):
            begin, end = max(dense.start, _index(after) + 1), min(dense.stop, _index(upto) + 1)
            count = min(max(end - begin, 0), limit)
            return count, ulid_text((begin + count - 1).to_bytes(ULID_BYTES, "big"))
        part = FeedPart("", span[0].shard, tuple(file.path for file in span), after, upto)
        found = pa.concat_tables(
            [_ULIDS.empty_table(), *part_columns(self._table.uri, part, _ULIDS.names)], promote_options="permissive"
        )
        found = found.sort_by(ULID_TEXT)[:limit]
        return len(found), found[ULID_TEXT][-1].as_py() if len(found) else after


def _groups(files: Sequence[FeedFile]) -> Iterator[tuple[int, list[FeedFile]]]:
    """Yield files of a shard that are read together, and the shard."""
    group: list[FeedFile] = []
    for file in files:
        full = len(group) == PART_FILES_MAX or sum(each.size for each in group) + file.size > PART_BYTES
        if group and (full or group[0].shard != file.shard):
            yield group[0].shard, group
            group = []
        group.append(file)
    if group:
        yield group[0].shard, group


def _index(text: str) -> int:
    return int.from_bytes(parse_ulid(text), "big") if text else -1


def _dense(file: FeedFile) -> range | None:
    """Return the numbers of the file's ulids, where they follow one another, as in most files but those of a
    compaction.
    """
    if not file.rows or file.first == BEFORE_ALL or file.last == BEHIND_ALL:
        return None
    numbers = range(_index(file.first), _index(file.last) + 1)
    return numbers if numbers.stop - numbers.start == file.rows else None  # there may be too many for len()
