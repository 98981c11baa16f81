"""Files that say in how many rows of an index each word stands, and what a process caches of an index: such files, and
the heads of versions.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.index_columns import IndexHead
from iscp.model.values.errors import StorageError
from iscp.model.values.untrusted_values import shown
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import S3, VERSIONS, manifest_name
from iscp.storage.table_files import OddArrowError, read_arrow
from iscp.system.recent_values import RecentValues

# --- files of counts --------------------------------------------------------------------------------------------------
# The counts are exact at every version of an index, as its ranks depend on them. Each commit writes a file with what it
# has changed, and the head names all files that count: their sum, word by word, is the number of live rows with the
# word. A file never changes and never takes another's name, so readers cache it for as long as they like. Merging many
# files into one changes no sum. (Engines that rank by counts of deleted rows too drift with the history of edits; Lance
# does, see docs/indexes.md.)

FOLDER = "_iscp"
"""The folder below a dataset in which files of iscp's own lie; Lance never opens it."""

COUNTS_PREFIX = "words-"
"""Names of files of counts begin so."""

KEYS_PREFIX = "keys-"
"""Names of files with the keys of staged rows begin so."""

COUNT_FILE_BYTES_MAX = 2 * 1024**3
"""Bytes of one file of counts; a larger one is refused."""

COUNTS_BYTES_MAX = 4 * 1024**3
"""Bytes of the content of one file, unpacked; a larger one is refused."""

COUNTS_SCHEMA = pa.schema([("column", pa.int16()), ("word", pa.string()), ("rows", pa.int64())])
_FILE_NAME = re.compile(r"(?:words|keys)-[0-9a-f]{32}\.arrow|segment-[0-9a-f-]{36}\.arrow")
_ROWS, _WORDS = b"iscp.rows", b"iscp.words"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class WordCounts:
    """Gathers in how many rows more, or fewer, each word stands: what one commit changes."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []

    def add(self, column: int, texts: pa.ChunkedArray, gone: pa.ChunkedArray | None = None) -> tuple[int, int]:
        """Add the words of rows, and take away those of rows that are gone; a text has the words of a row, as stored.

        Return how many rows more have words, and how many words they have more together; either may be negative.
        """
        added = texts.drop_null()
        some = pa.chunked_array(added.chunks + (gone.drop_null().chunks if gone is not None else []), pa.string())
        if not len(some):
            return 0, 0
        # All at once, as each word that stands on both sides is then sorted, and joined, once.
        signs = np.where(np.arange(len(some)) < len(added), 1, -1)
        lists = pc.split_pattern(pc.utf8_slice_codeunits(some.combine_chunks(), 1, -1), " ")
        coded = lists.flatten().dictionary_encode()
        words, codes = coded.dictionary, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        pairs = np.sort(rows * len(words) + codes)  # twice as fast as np.unique
        once = pairs[np.append(True, pairs[1:] != pairs[:-1])]
        # Sums of small integers, which floating-point numbers are exact for.
        counted = np.bincount(once % len(words), signs[once // len(words)], len(words)).astype(np.int64)
        self._parts.append(pa.table([np.full(len(words), column, np.int16), words, counted], schema=COUNTS_SCHEMA))
        return int(signs.sum()), int(signs[rows].sum())

    def add_table(self, table: pa.Table) -> None:
        """Add counts as `read_table` gives them."""
        self._parts.append(table)

    def table(self) -> pa.Table:
        """Return the sums, sorted by column and word, without those that are 0."""
        return merged_counts(self._parts) if self._parts else COUNTS_SCHEMA.empty_table()


class CountFile:
    """One file of counts in memory, sorted by column and word. `totals` are those that the file was written with."""

    def __init__(self, table: pa.Table) -> None:
        self._words: dict[int, pa.StringArray] = {}
        self._rows: dict[int, pa.Int64Array] = {}
        for column in pc.unique(table["column"]).to_pylist():
            part = table.filter(pc.equal(table["column"], column)).combine_chunks()
            self._words[column] = part["word"].chunk(0)
            self._rows[column] = part["rows"].chunk(0)
        self.bytes: int = table.nbytes
        self.totals = _totals_of(table.schema.metadata or {})

    def rows(self, column: int, word: str) -> int:
        """Return the count of one word."""
        words = self._words.get(column)
        if words is None:
            return 0
        at = place_of(words, word)
        return self._rows[column][at].as_py() if at < len(words) and words[at].as_py() == word else 0

    def counted(self, column: int) -> tuple[pa.StringArray, pa.Int64Array]:
        """Return all words of a column, sorted by their code points, and the count of each."""
        return self.words(column), self._rows.get(column, pa.array([], pa.int64()))

    def words(self, column: int) -> pa.StringArray:
        """Return all words of a column, sorted by their code points."""
        return self._words.get(column, pa.array([], pa.string()))

    def with_prefix(self, column: int, prefix: str) -> Iterator[str]:
        """Yield the words that begin with `prefix`."""
        words = self.words(column)
        for at in range(place_of(words, prefix), len(words)):
            word = words[at].as_py()
            if not word.startswith(prefix):
                return
            yield word


def place_of(words: pa.StringArray, word: str) -> int:
    """Return where a word is among sorted ones, or would be."""
    return bisect_left(range(len(words)), word, key=lambda at: words[at].as_py())


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """The sum of several files of counts: in how many live rows a word stands."""

    files: Sequence[CountFile]

    def rows(self, column: int, word: str) -> int:
        return sum(each.rows(column, word) for each in self.files)

    def with_prefix(self, column: int, prefix: str, most: int) -> list[str]:
        """Return the words of live rows that begin with `prefix`, the most frequent first, at most so many."""
        found = {word for each in self.files for word in each.with_prefix(column, prefix)}
        counted = ((self.rows(column, word), word) for word in found)
        return [word for _, word in sorted((-rows, word) for rows, word in counted if rows > 0)[:most]]


def counts_name() -> str:
    """Return a name for a file of counts that no other has."""
    return f"{COUNTS_PREFIX}{uuid.uuid4().hex}.arrow"


def write_counts(root: str, table: pa.Table, name: str = "", totals: tuple[int, int] | None = None) -> str:
    """Write the result of `merged_counts` into a file below the dataset at `root`; return the file's name.

    The name is a new one if none is given; a file that has it already is left as it is. `totals` are rows and words.
    """
    if totals is not None:
        table = table.replace_schema_metadata({_ROWS: str(totals[0]), _WORDS: str(totals[1])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    name = name or counts_name()
    with storage_faults(f"write {root}/{FOLDER}/{name}"):
        files.create(f"{root}/{FOLDER}/{name}", sink.getvalue().to_pybytes())
    return name


def file_sizes(root: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of files of counts, 0 for one that is gone. None is read. Raises StorageError."""
    folder = f"{root}/{FOLDER}"
    with storage_faults(f"list {folder}"):
        # A listing of S3 says the sizes of all, and one of a directory that of none.
        listed = (
            files.stamps(folder) if root.startswith(S3) else {name: files.stamp(f"{folder}/{name}") for name in names}
        )
    return tuple(found[2] if (found := listed.get(name)) else 0 for name in names)


def read_table(root: str, name: str) -> pa.Table:
    """Return a file of counts as a table (column, word, rows). Raises StorageError, also where it is gone."""
    if (found := find_table(root, name)) is None:
        raise StorageError(
            f"{root}/{FOLDER}/{name} is gone, which the index needs", remedy="Rebuild it by `job resync`"
        )
    return found


def find_table(root: str, name: str) -> pa.Table | None:
    """Return a file of counts as a table; None where there is no such file. Raises StorageError."""
    return find_rows(root, name, COUNTS_SCHEMA)


def find_rows(root: str, name: str, schema: pa.Schema) -> pa.Table | None:
    """Return the rows of a file of iscp's own, of a schema; None where there is no such file. Raises StorageError."""
    path = f"{root}/{FOLDER}/{name}"
    remedy = "Rebuild the index by `job resync`"
    if not _FILE_NAME.fullmatch(name):
        raise StorageError(f"the index names {shown(name)}, which is no file of its own", remedy=remedy)
    try:
        with storage_faults(f"read {path}"):
            content = files.read(path, COUNT_FILE_BYTES_MAX)[0]
        return read_arrow(content, schema, COUNTS_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OddArrowError as error:
        raise StorageError(f"{path} cannot be read: {error}", remedy=remedy) from error


def _totals_of(metadata: Mapping[bytes, bytes]) -> tuple[int, int] | None:
    """Return rows and words as `write_counts` has written them; None where it has not, or somebody else has."""
    try:
        return int(metadata[_ROWS]), int(metadata[_WORDS])
    except (KeyError, ValueError):
        return None


def merged_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table with the sums of several, without words that no row has any more."""
    summed = tables[0]
    if len(tables) > 1:
        grouped = pa.concat_tables(tables).group_by(["column", "word"]).aggregate([("rows", "sum")])
        summed = grouped.rename_columns({"rows_sum": "rows"})
    some = summed.filter(pc.not_equal(summed["rows"], 0)).select(COUNTS_SCHEMA.names)
    ordered = some.take(pc.sort_indices(some, [("column", "ascending"), ("word", "ascending")]))
    return pa.table(ordered.columns, schema=COUNTS_SCHEMA)


# --- cached files -----------------------------------------------------------------------------------------------------
# All indexes of a process share the cache of their files, which is bounded; a file never changes.

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""

SMALL_BYTES_MAX = 128 * 1024
"""Bytes of a file of counts that is cached apart: one is read again in a fraction of a millisecond."""

SMALL_CACHED_BYTES_MAX = 8 * 1024**2
"""Bytes of such files that a process caches in addition, so that thousands of small indexes need no more."""


def _bytes(file: CountFile) -> int:
    return file.bytes


_Files = RecentValues[tuple[str, str], CountFile]
_LARGE: _Files = RecentValues(CACHED_BYTES_MAX, _bytes)
_SMALL: _Files = RecentValues(SMALL_CACHED_BYTES_MAX, _bytes)


def cache_counts(root: str, name: str, table: pa.Table) -> None:
    """Cache what was written to a file of counts now, as searches of this process read it next."""
    _keep(root, name, CountFile(table))


def cached_counts(root: str, name: str) -> CountFile:
    """Return a file of counts of the dataset at `root`. Raises StorageError."""
    return _find(root, name) or _keep(root, name, CountFile(read_table(root, name)))


def found_counts(root: str, name: str) -> CountFile | None:
    """Return a file of counts that may be missing; None where it is. Raises StorageError."""
    if (cached := _find(root, name)) is not None:
        return cached
    table = find_table(root, name)
    return None if table is None else _keep(root, name, CountFile(table))


def _find(root: str, name: str) -> CountFile | None:
    return _LARGE.get((root, name)) or _SMALL.get((root, name))


def _keep(root: str, name: str, read: CountFile) -> CountFile:
    cache = _SMALL if read.bytes <= SMALL_BYTES_MAX else _LARGE
    return cache.put((root, name), read)


# --- cached heads -----------------------------------------------------------------------------------------------------
# A process caches the heads of versions of indexes: a version never changes, and a head takes two reads to find. A
# version is known by its manifest's stamp, as another index may be made in the place of one that was removed.

HEADS_CACHED_MAX = 1_000
"""Heads that a process caches; what was not used for longest goes first, and is read again when needed."""

HEAD_CACHED_CHARS_MAX = 16_384
"""Characters of a definition and records with which a head is cached; longer ones are read each time."""

_Version = tuple[str, int, tuple[int, ...]]


class PlacedHead(NamedTuple):
    """A head, and the address of its row, which the next commit removes."""

    head: IndexHead
    address: int


_CACHE: RecentValues[_Version, PlacedHead] = RecentValues(HEADS_CACHED_MAX)


def cached_head(root: str, version: int) -> PlacedHead | None:
    """Return the head of a version of the dataset at `root`, or None if it is not cached. Raises StorageError."""
    return _CACHE.get(found) if (found := _identified(root, version)) is not None else None


def cache_head(root: str, version: int, found: PlacedHead) -> None:
    """Cache the head that was read of a version, or committed with it. Raises StorageError."""
    head = found.head
    small = len(head.definition) + sum(map(len, head.records.values())) <= HEAD_CACHED_CHARS_MAX
    if small and (identified := _identified(root, version)) is not None:
        _CACHE.put(identified, found)


def _identified(root: str, version: int) -> _Version | None:
    """Return what distinguishes a version from all others, or None where its manifest is gone."""
    path = f"{root}/{VERSIONS}/{manifest_name(version)}"
    with storage_faults(f"read {path}"):
        stamp = files.stamp(path)
    return (root, version, stamp) if stamp else None
