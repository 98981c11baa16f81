"""Reads a changefeed on from a cursor: only files whose ulids, by their statistics, may lie behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from iscp.changefeed.model.ulid import TEXT_CHARS
from iscp.changefeed.table.feed_schema import FEED, SHARD, ULID_TEXT
from iscp.changefeed.table.file_writer import FILE_PREFIX
from iscp.delta.log.table_opening import add_actions_of
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import error_text, require
from iscp.storage.bounded_parquet import BoundedParquet, TooLargeError, decoded_bytes, open_parquet
from iscp.storage.delta_errors import delta_faults

# --- the files of a changefeed ----------------------------------------------------------------------------------------
# Files are listed by what the log says of their ulids: those that lie between cursors, and which overlap. Each commit
# brings files of its own, behind all others of their shard; but a compaction may leave files that overlap.

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


# --- pages ------------------------------------------------------------------------------------------------------------
# A shard's ulids become visible in their order, so that whatever lies behind the last one read is new, and nothing that
# is new lies before it. In a file that this project wrote, only the row groups are read that a page needs; a file that
# a compaction has left may be in any order, and is read whole.

READ_ROWS_MAX = 1_000_000
"""Rows of one page; a request for more is refused."""

GROUP_BYTES_MIN = 32 * 1024**2
"""Bytes of memory that a row group may always take which is read for a page, however few bytes the page may have."""

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
    is refused; None: there is no bound. `rows_bytes_max`: the bytes that the rows of a page may have, each with its own
    texts; None: as many.
    """

    def __init__(self, uri: str, bytes_max: int | None = None, rows_bytes_max: int | None = None) -> None:
        self._uri = uri
        self._listed = FeedFiles()
        self._begun: OrderedDict[str, _OrderedFile] = OrderedDict()
        self._sorted = _Sorted([], "", pa.table({}))
        self._bytes_max = bytes_max
        self._rows_bytes_max = bytes_max if rows_bytes_max is None else rows_bytes_max
        self._share = _Share(bytes_max, self._rows_bytes_max)

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
        self._share = _Share(self._bytes_max, self._rows_bytes_max)
        with delta_faults("read a feed"):
            for span in overlapping(self._listed.between(table, cursor)):
                if rows >= limit or self._share.used_up:
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
        rows = self._part(file, after, limit) if in_order else self._whole(span, paths, after, limit)
        rows = rows.append_column(SHARD, pa.array([file.shard] * len(rows), pa.int32()))
        return rows.append_column(FEED, pa.array([file.feed] * len(rows), pa.string()))

    def _whole(self, span: Sequence[FeedFile], paths: list[str], after: str, limit: int) -> pa.Table:
        """Return the next rows of files that are read whole, and cached until others are: the next page goes on
        there.
        """
        if self._sorted.paths != paths or after < self._sorted.after:
            self._sorted = _Sorted(paths, after, self._read_whole(span, after))
        rows = self._sorted.rows
        rows = rows.filter(pc.greater(rows[ULID_TEXT], after))
        self._sorted = _Sorted(paths, after, rows)
        return rows.slice(0, limit)

    def _read_whole(self, span: Sequence[FeedFile], after: str) -> pa.Table:
        found = []
        for each in span:
            with _open_group(self._uri, each) as file:
                for number in file.groups:
                    group = self._share.read(file, number, each.path)
                    rows = group.filter(pc.greater(group[ULID_TEXT], after))
                    found.append(self._share.all_of(rows, each.path).cast(file.schema_arrow))
        return _sorted(pa.concat_tables(found, promote_options="permissive"))

    def _part(self, about: FeedFile, after: str, limit: int) -> pa.Table:
        file = self._begun.pop(about.path, None) or _OrderedFile(self._uri, about)
        rows = file.behind(after, limit, self._share)
        if len(rows) == limit or self._share.used_up:  # there may be more
            self._begun[about.path] = file
            if len(self._begun) > OPEN_FILES_MAX:
                self._begun.popitem(last=False)
        return rows


class _Share:
    """The bytes that were read for one page, and those of its rows once each has its own texts."""

    def __init__(self, bytes_max: int | None, rows_bytes_max: int | None) -> None:
        self._bytes_max = bytes_max
        self._rows_bytes_max = rows_bytes_max
        self._read = self._given = 0
        self._cut = False

    @property
    def used_up(self) -> bool:
        return self._cut or (self._bytes_max is not None and max(self._read, self._given) >= self._bytes_max)

    def read(self, file: BoundedParquet, number: int, path: str) -> pa.Table:
        """Read a row group; its texts may be references to a dictionary. Raises PermanentError where that alone takes
        more than a page may read.
        """
        room = None if self._bytes_max is None else max(self._bytes_max, GROUP_BYTES_MIN)
        try:
            rows = file.read_groups([number], file.schema_arrow.names, room, use_threads=False)
        except TooLargeError:
            raise self._too_large(path) from None
        self._read += rows.nbytes
        return _with_short_ulids(rows)

    def all_of(self, rows: pa.Table, path: str) -> pa.Table:
        """Count rows that are only given at once. Raises PermanentError where they have more bytes than a page."""
        self._given += _bytes_of(rows)
        if self._bytes_max is not None and self._given > self._bytes_max:
            raise self._too_large(path)
        return rows

    def first_of(self, rows: pa.Table, path: str) -> pa.Table:
        """Return the first rows that the page may still have. Raises PermanentError where one has more than a page."""
        if self._rows_bytes_max is None or not len(rows):
            return rows
        left = self._rows_bytes_max - self._given
        if (size := _bytes_of(rows)) > left:
            self._cut = True
            fit = bisect_right(range(len(rows)), left, key=lambda count: _bytes_of(rows[: count + 1]))
            if not fit and not self._given:
                raise self._too_large(path)
            rows = rows[:fit]
            size = _bytes_of(rows)
        self._given += size
        return rows

    def _too_large(self, path: str) -> PermanentError:
        return PermanentError(
            f"{path} has more bytes that are only read at once than the {self._bytes_max} that a page reads here",
            remedy="Read the feed where it lies: `iscp feed tail URI`, or iscp.changefeed",
            code=ErrorCode.TABLE_UNREADABLE,
        )


class _OrderedFile:
    """A file whose rows are in the order of their ulids, in row groups that state their bounds."""

    def __init__(self, uri: str, about: FeedFile) -> None:
        self._uri = uri
        self._about = about
        self._number, self._group = -1, pa.table({})

    @property
    def held_bytes(self) -> int:
        return int(self._group.nbytes)

    def behind(self, after: str, limit: int, share: _Share) -> pa.Table:
        """Return the first `limit` rows behind a ulid, or fewer where `share` is used up."""
        with _open_group(self._uri, self._about) as file:
            found, rows = [file.schema_arrow.empty_table()], 0
            for number in groups_between(file, after):
                if number != self._number:
                    self._number, self._group = number, share.read(file, number, self._about.path)
                passed = pc.sum(pc.less_equal(self._group[ULID_TEXT], after)).as_py()
                part = share.first_of(self._group.slice(passed, limit - rows), self._about.path)
                found.append(part.cast(file.schema_arrow))
                rows += len(part)
                if rows == limit or share.used_up:
                    break
        return pa.concat_tables(found)


@contextmanager
def _open_group(uri: str, file: FeedFile) -> Iterator[BoundedParquet]:
    """Open a file of a feed. Raises PermanentError where it is damaged."""
    try:
        with open_parquet(uri, file.path, file.size) as opened:
            yield opened
    except pa.ArrowException as error:
        raise PermanentError(
            f"{file.path} of the feed {uri} is damaged: {error_text(error)}",
            remedy="Restore the file from a backup; or let the job write the feed again: `iscp-admin job resync`",
            code=ErrorCode.TABLE_UNREADABLE,
        ) from error


def _with_short_ulids(rows: pa.Table) -> pa.Table:
    """Return the rows with the texts of their ulids written out. Raises ArrowInvalid where one is longer than a ulid:
    to compare them would write all of them out.
    """
    place = rows.schema.get_field_index(ULID_TEXT)
    ulids = rows.column(place)
    if not pa.types.is_dictionary(ulids.type):
        return rows
    if any((pc.max(pc.binary_length(each.dictionary)).as_py() or 0) > TEXT_CHARS for each in ulids.chunks):
        raise pa.ArrowInvalid(f"{ULID_TEXT} has texts that are longer than a ulid")
    return rows.set_column(place, ULID_TEXT, ulids.cast(pa.string()))


def _bytes_of(rows: pa.Table) -> int:
    return sum(map(decoded_bytes, rows.columns))


def _in_order(found: list[pa.Table], schema: pa.Schema) -> pa.Table:
    if not found:
        return schema.empty_table()
    # A file from before the feed was given a column has none.
    rows = pa.concat_tables([each.select(schema.names).cast(schema) for each in found])
    return _sorted(rows) if len(found) > 1 else rows


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, [(ULID_TEXT, "ascending")]))
