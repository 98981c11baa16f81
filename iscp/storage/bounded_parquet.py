"""Reads Parquet files that somebody else may have written, in memory that is bounded by what their pages hold.

A footer says how many values a column has, in which encodings, and how long they are; no decoder believes it. What a
decoder obeys is the header of each page: how many bytes it unpacks, and of how many values it makes an array. A text in
a dictionary is one text in the page, and a million in the array. So the bytes of a column's part of a row group are
read once, the headers of its pages are walked, and their sums are the bound; then the same bytes are handed to pyarrow,
so that nobody can replace them in between (https://github.com/apache/parquet-format, `PageHeader`).

Where a column lies is read from the footer here, too: pyarrow's metadata of a column end the process where its size
statistics are not those of its type.
"""

from __future__ import annotations

import io
import operator
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from iscp.storage.regular_files import END_BYTES, TAIL_BYTES, OddFooterError, RefusedFileError, check_footer
from iscp.storage.table_files import open_input
from iscp.system.late_imports import pc, pq

FIXED_BYTES = 17
"""The widest number, a decimal, with its bits of the null bitmap."""

OFFSET_BYTES = 4
"""Bytes of the place of a text, or of a list, in its array."""

_PADDING_BYTES = 100
"""Bytes that pyarrow reads beyond a column's part of old files (PARQUET-816)."""

_GAP_BYTES_MAX = 64 * 1024
"""Bytes between two columns that are read with them, as a further request takes longer."""

_DICTIONARY_ENTRY_BYTES = 16
"""Bytes that a decoder takes for each entry of a dictionary, besides its text."""

_PAGES_BYTES = 2 * 1024**2
"""Bytes of a dictionary and of the largest page, as writers make them, that are not counted beside what is decoded."""

_WALKED_FOOTER_BYTES = 64 * 1024
"""Bytes of a footer up to which its tree is not walked: so few entries take little memory, whatever they are."""

_TEXT = "BYTE_ARRAY"
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _DELTA_LENGTH, _RLE_DICTIONARY = 0, 2, 6, 8
_TYPE, _UNPACKED, _PACKED, _DATA_HEADER, _DICTIONARY_HEADER, _DATA_HEADER_V2 = 1, 2, 3, 5, 7, 8
_HEADERS = {_DATA: _DATA_HEADER, _DICTIONARY: _DICTIONARY_HEADER, _DATA_V2: _DATA_HEADER_V2}
_VALUES, _ENCODING, _ENCODING_V2 = 1, 2, 4
_CODED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)

_GROUPS, _COLUMNS, _COLUMN, _STATISTICS, _GREATEST, _LEAST = 4, 1, 3, 12, 5, 6
_CHUNK_VALUES, _CHUNK_UNPACKED, _CHUNK_PACKED, _DATA_AT, _DICTIONARY_AT = 5, 6, 7, 9, 11

# Kinds of Thrift's compact protocol.
_BOOLS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_MORE, _LONG, _VARINT_BYTES_MAX, _STRUCTS_DEPTH_MAX = 15, 128, 10, 16


class TooLargeError(Exception):
    """The rows would take more memory than they are allowed."""


class Allowance:
    """Counts the bytes of memory that the rows of a range may still take. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        self._reserved = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Raises TooLarge where less is left."""
        with self._changed:
            if size > self.left:
                raise TooLargeError
            self.left -= size

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Keep so much free for what is decoded meanwhile, which is counted by `take` as soon as it is there.

        Waits for others that decode; raises TooLarge where less is left without them.
        """
        with self._changed:
            while self._reserved and size > self.left - self._reserved:
                self._changed.wait()
            if size > self.left:
                raise TooLargeError
            self._reserved += size
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= size
                self._changed.notify_all()


@contextmanager
def open_parquet(uri: str, path: str, size: int | None) -> Iterator[BoundedParquet]:
    """Open a Parquet file of a table, as `open_input` does; raises as that one, and pyarrow's errors."""
    with open_input(uri, path, size) as source:
        yield BoundedParquet(source, source.path)


class Source(Protocol):
    """The bytes of a file. `read_at` returns so many of them (2nd) from a place on (1st), fewer at the end."""

    @property
    def size(self) -> int: ...

    @property
    def read_at(self) -> Callable[[int, int], bytes | memoryview]: ...


@dataclass(frozen=True, slots=True)
class ChunkPages:
    """The pages of a column's part of a row group: what decoding them takes.

    `plain` are the bytes of its array but for the `referring` texts, each of which is one of a dictionary and at most
    `longest` bytes long; `coded` are those of the array where texts are references. `besides` is what decoding takes
    beyond these: the dictionary, and the largest page. `begins_coded`: its first page has references alone.
    """

    values: int
    plain: int
    coded: int
    referring: int
    longest: int
    besides: int
    begins_coded: bool

    @property
    def decoded(self) -> int:
        return self.plain + self.referring * self.longest + self.besides

    @property
    def as_dictionary(self) -> int:
        return self.coded + self.besides


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column's part of a row group, by the footer: where it begins, and its bytes in the file and unpacked, its
    values, and the bounds of them, as the footer has these; `has_dictionary`: it says that there is one.
    """

    begin: int
    length: int
    unpacked: int
    values: int
    has_dictionary: bool
    low: bytes | None
    high: bytes | None

    @property
    def text_bounds(self) -> tuple[str, str] | None:
        """Return the least and the greatest text; None: it does not say them."""
        try:
            return None if self.low is None or self.high is None else (self.low.decode(), self.high.decode())
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class _HeldBytes:
    """Bytes of the file from `begin` on."""

    begin: int
    content: pa.Buffer

    @property
    def end(self) -> int:
        return int(self.begin + self.content.size)


class BoundedParquet:
    """An open Parquet file, or the bytes of one; for one thread at a time. Raises pyarrow's errors where it is damaged.

    Small files are in memory as a whole: pyarrow reads them there without a call of Python's for each part.
    """

    def __init__(self, source: Source | bytes, path: str) -> None:
        self._source = source if not isinstance(source, bytes) else _Content(source)
        self._path = path
        self._file = _HeldFile(self._source.size)
        self._opened: dict[tuple[str, ...], pq.ParquetFile] = {}
        limit = self._hold_footer()
        self._limits = {"thrift_string_size_limit": limit, "thrift_container_size_limit": limit}
        plain = pq.ParquetFile(self._arrow_file(), pre_buffer=False, coerce_int96_timestamp_unit="us", **self._limits)
        self._opened[()] = plain
        self.metadata: pq.FileMetaData = plain.metadata
        self.schema_arrow: pa.Schema = plain.schema_arrow
        self._pages: dict[tuple[int, int], ChunkPages] = {}
        self._chunks = self._read_chunks(limit)

    @property
    def schema(self) -> Any:
        return self._opened[()].schema

    @property
    def size(self) -> int:
        """Return how many bytes the file has."""
        return self._source.size

    @property
    def groups(self) -> range:
        return range(self.metadata.num_row_groups)

    def read_groups(
        self,
        numbers: Sequence[int],
        names: Sequence[str],
        bytes_max: int | None,
        coded: Collection[str] = (),
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Return these columns of some row groups, with texts of `coded` leaves as dictionaries; and with all texts so
        where they would take more than `bytes_max` otherwise (None: there is no bound).

        Raises TooLarge where they take more even so.
        """
        leaves = self._leaves(names)
        with self._hold_columns(numbers, leaves):
            if bytes_max is not None and self._sum(numbers, leaves, coded, bytes_max) > bytes_max:
                coded = self.texts
                if self._sum(numbers, leaves, coded, bytes_max) > bytes_max:
                    raise TooLargeError
            file = self._with_dictionaries(tuple(sorted(leaves.keys() & set(coded))))
            return file.read_row_groups(list(numbers), list(names), use_threads=use_threads)

    def decoded_bytes_max(
        self, numbers: Sequence[int], names: Sequence[str], enough: int, *, coded: bool = False
    ) -> int:
        """Return how many bytes these columns of some row groups take at most once decoded, with what decoding takes
        besides, while texts are dictionaries where `coded`; an exact number only up to `enough`.
        """
        leaves = self._leaves(names)
        with self._hold_columns(numbers, leaves):
            return self._sum(numbers, leaves, self.texts if coded else (), enough)

    @cached_property
    def texts(self) -> frozenset[str]:
        """The paths of the leaves that pyarrow reads as dictionaries."""
        schema = self.metadata.schema
        columns = [schema.column(place) for place in range(len(schema))]
        texts = tuple(column.path for column in columns if column.physical_type == _TEXT)
        kinds = list(_leaf_types(self._with_dictionaries(texts).schema_arrow))
        if len(kinds) != len(columns):
            return frozenset()
        return frozenset(
            column.path for column, kind in zip(columns, kinds, strict=True) if pa.types.is_dictionary(kind)
        )

    def chunks(self, path: str) -> list[ColumnChunk]:
        """Return the parts of the leaf of that path, of each row group."""
        if (place := self._leaves([path]).get(path)) is None:
            raise pa.ArrowInvalid(f"{self._path}: it has no column {path}")
        return [group[place] for group in self._chunks]

    def _leaves(self, names: Sequence[str]) -> dict[str, int]:
        """Return the places of the columns' leaves by their paths.

        The column `a.b` and a field `b` of `a` have the same path there, and pyarrow reads both for either.
        """
        roots, schema = {name.partition(".")[0] for name in names}, self.metadata.schema
        paths = ((schema.column(place).path, place) for place in range(len(schema)))
        return {path: place for path, place in paths if path.partition(".")[0] in roots}

    def _sum(self, numbers: Sequence[int], leaves: Mapping[str, int], coded: Collection[str], enough: int) -> int:
        pages = [(leaf, each) for number in numbers for leaf, each in self._bound(number, leaves)]
        if (found := _total(pages, coded)) <= enough or _total(pages, self.texts) > enough:
            return found
        for number in numbers:
            for leaf, each in self._bound(number, leaves):
                if leaf not in coded and leaf in self.texts and each.begins_coded:
                    exact = replace(each, longest=self._longest(number, leaf), begins_coded=False)
                    self._pages[number, leaves[leaf]] = exact
        return _total([each for number in numbers for each in self._bound(number, leaves)], coded)

    def _longest(self, number: int, leaf: str) -> int:
        """Return the length of the longest text of a dictionary, which pyarrow reads with the first row."""
        batches = self._with_dictionaries((leaf,)).iter_batches(1, [number], [leaf], use_threads=False)
        first: Any = next(batches).column(0)
        while not pa.types.is_dictionary(first.type):  # a column holds one leaf here
            first = first.field(0) if pa.types.is_struct(first.type) else first.values
        return int(pc.max(pc.binary_length(first.dictionary)).as_py() or 0)

    def _with_dictionaries(self, key: tuple[str, ...]) -> pq.ParquetFile:
        if key not in self._opened:
            self._opened[key] = pq.ParquetFile(
                self._arrow_file(),
                metadata=self.metadata,
                read_dictionary=list(key),
                pre_buffer=False,
                coerce_int96_timestamp_unit="us",
                **self._limits,
            )
        return self._opened[key]

    def _arrow_file(self) -> pa.NativeFile:
        whole = self._file.whole
        return pa.PythonFile(self._file, mode="r") if whole is None else pa.BufferReader(whole)

    # --- bytes --------------------------------------------------------------------------------------------------

    def _hold_footer(self) -> int:
        """Read the end of the file, and return how many bytes its footer has: a list in it has no more entries."""
        size = self._source.size
        tail = size if isinstance(self._source, _Content) else min(size, TAIL_BYTES)
        content = self._source.read_at(size - tail, tail)
        end = bytes(content[-END_BYTES:])
        length = int.from_bytes(end[:4], "little") if end[4:] == b"PAR1" else 0
        if length + END_BYTES > tail and length + END_BYTES <= size:
            tail = length + END_BYTES
            content = self._source.read_at(size - tail, tail)
        if length > _WALKED_FOOTER_BYTES:
            walked = bytes(content)
            begin = size - len(walked)
            try:
                check_footer(lambda at, count: walked[at - begin : at - begin + count], size)
            except OddFooterError as error:
                raise RefusedFileError(self._path, f"is not opened: {error}") from error
        self._file.hold(_HeldBytes(size - tail, pa.py_buffer(content)))
        return max(1, length)

    def _read_chunks(self, length: int) -> list[list[ColumnChunk]]:
        end, leaves = self._source.size - END_BYTES, len(self.metadata.schema)
        try:
            footer, _ = _read_struct(bytes(self._file.read_held(end - length, length)), 0, 0)
            groups = [[_chunk(each[_COLUMN]) for each in group[_COLUMNS]] for group in footer[_GROUPS]]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise pa.ArrowInvalid(f"{self._path}: its footer is damaged: {error!r}") from error
        if len(groups) != self.metadata.num_row_groups or any(len(group) != leaves for group in groups):
            raise pa.ArrowInvalid(f"{self._path}: its row groups have other columns than its schema")
        return groups

    @contextmanager
    def _hold_columns(self, numbers: Iterable[int], leaves: Mapping[str, int]) -> Iterator[None]:
        """Hold the bytes of these columns of some row groups while they are walked and decoded."""
        before = self._file.held
        try:
            for begin, end in self._spans(numbers, leaves):
                if not any(each.begin <= begin and end <= each.end for each in self._file.held):
                    content = self._source.read_at(begin, end - begin + _PADDING_BYTES)
                    self._file.hold(_HeldBytes(begin, pa.py_buffer(content)))
            yield
        finally:
            self._file.held = before

    def _spans(self, numbers: Iterable[int], leaves: Mapping[str, int]) -> list[tuple[int, int]]:
        """Return where the columns lie, as few spans: between them nothing is left out that is not worth it."""
        chunks = (self._chunks[number][place] for number in numbers for place in leaves.values())
        extents = sorted((each.begin, each.length) for each in chunks)
        spans: list[tuple[int, int]] = []
        for begin, length in extents:
            if begin < 0 or length < 0 or begin + length > self._source.size:
                raise pa.ArrowInvalid(f"{self._path}: its footer names a column beyond its end")
            if spans and begin <= spans[-1][1] + _GAP_BYTES_MAX:
                spans[-1] = spans[-1][0], max(spans[-1][1], begin + length)
            else:
                spans.append((begin, begin + length))
        return spans

    def _bound(self, number: int, leaves: Mapping[str, int]) -> list[tuple[str, ChunkPages]]:
        """Return the pages of these columns. Raises ArrowInvalid where the footer says of more rows than they have."""
        for place in leaves.values():
            if (number, place) not in self._pages:
                self._pages[number, place] = self._walk(number, place)
        return [(leaf, self._pages[number, place]) for leaf, place in leaves.items()]

    def _walk(self, number: int, place: int) -> ChunkPages:
        rows, column = self.metadata.row_group(number).num_rows, self.metadata.schema.column(place)
        chunk = self._chunks[number][place]
        content = self._file.read_held(chunk.begin, chunk.length)
        try:
            pages = _walk_pages(content, chunk.values, column)
        except (IndexError, ValueError) as error:
            raise pa.ArrowInvalid(f"{self._path}: a page of {column.path} is damaged: {error}") from error
        if rows > pages.values:
            raise pa.ArrowInvalid(f"{self._path}: {column.path} has {pages.values} values of {rows} rows")
        return pages


def _total(pages: Iterable[tuple[str, ChunkPages]], coded: Collection[str]) -> int:
    return sum(each.as_dictionary if leaf in coded else each.decoded for leaf, each in pages)


@dataclass(frozen=True, slots=True)
class _Content:
    """A file that is in memory."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read_at(self, begin: int, length: int) -> memoryview:
        return memoryview(self.content)[begin : begin + length]


class _HeldFile(io.RawIOBase):
    """The parts of a file that are held, for pyarrow, which gets no others."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self.held: tuple[_HeldBytes, ...] = ()

    def hold(self, part: _HeldBytes) -> None:
        self.held = (*self.held, part)

    @property
    def whole(self) -> pa.Buffer | None:
        """The bytes of the file, where all of them are held."""
        return next((each.content for each in self.held if each.content.size == self._size), None)

    def read_held(self, begin: int, length: int) -> memoryview:
        return memoryview(self._find(begin, length)).cast("B")

    def _find(self, begin: int, length: int) -> pa.Buffer:
        for each in reversed(self.held):
            offset = begin - each.begin
            if offset >= 0 and offset + length <= each.content.size:
                return each.content.slice(offset, length)
        raise pa.ArrowInvalid(f"the file has no {length} bytes at {begin} for what its footer says")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read_buffer(self, size: int) -> pa.Buffer:
        length = min(size, self._size - self._at)
        found = self._find(self._at, length)
        self._at += length
        return found

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(self._size if size < 0 else size))


def _chunk(column: Mapping[int, Any]) -> ColumnChunk:
    """Return a column's part by its metadata. Raises KeyError and TypeError where these are none."""
    begin, dictionary = column[_DATA_AT], column.get(_DICTIONARY_AT)
    known = column.get(_STATISTICS, {})
    low, high = known.get(_LEAST), known.get(_GREATEST)
    return ColumnChunk(
        begin=dictionary if dictionary is not None and 0 < dictionary < begin else begin,
        length=operator.index(column[_CHUNK_PACKED]),
        unpacked=operator.index(column[_CHUNK_UNPACKED]),
        values=operator.index(column[_CHUNK_VALUES]),
        has_dictionary=dictionary is not None,
        low=low if isinstance(low, bytes) else None,
        high=high if isinstance(high, bytes) else None,
    )


def _walk_pages(content: memoryview, said: int, column: Any) -> ChunkPages:
    """Add up the pages. Raises ValueError and IndexError where they are none."""
    at = values = plain = coded = referring = dictionary = unpacked = 0
    first = None
    is_text = column.physical_type == _TEXT and "Decimal" not in str(column.logical_type)
    width = FIXED_BYTES + max(0, column.length)
    levels = OFFSET_BYTES * (1 + column.max_repetition_level) if column.max_repetition_level else 0
    while at < len(content):
        try:
            header, at = _read_struct(content, at, 0)
            kind, size, packed = header.get(_TYPE), header.get(_UNPACKED), header.get(_PACKED)
            if not isinstance(size, int) or not isinstance(packed, int) or min(size, packed) < 0:
                raise ValueError("its header lacks its size")
        except (IndexError, ValueError):
            if values >= said:  # no decoder comes here
                break
            raise
        at += packed
        unpacked = max(unpacked, size)
        about = header.get(_HEADERS[kind]) if kind in _HEADERS else None
        if about is None:
            continue
        count, encoding = about.get(_VALUES, -1), about.get(_ENCODING_V2 if kind == _DATA_V2 else _ENCODING)
        if count < 0:
            raise ValueError("its header lacks its number of values")
        if kind == _DICTIONARY:
            dictionary += size + _DICTIONARY_ENTRY_BYTES * count
            continue
        first = encoding if first is None else first
        values += count
        if not is_text:
            plain += count * (width + levels)
            coded += count * (width + levels)
        elif encoding in _CODED:
            plain += count * (OFFSET_BYTES + levels)
            coded += count * (FIXED_BYTES + levels)
            referring += count
        else:
            # By increments each value is no longer than its page; else all of them together are.
            times = 1 if encoding in (_PLAIN, _DELTA_LENGTH) else count
            plain += count * (OFFSET_BYTES + levels) + times * size
            coded += count * (FIXED_BYTES + levels) + times * size
    besides = max(0, dictionary + unpacked - _PAGES_BYTES)
    return ChunkPages(values, plain, coded, referring, dictionary, besides, first in _CODED)


def _read_struct(data: bytes | memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct of Thrift's, by their numbers, and where it ends; those that are true or false are
    left out.

    A footer has hundreds of values, most of them numbers of one byte: these are read here, without a call each.
    """
    found: dict[int, Any] = {}
    field = 0
    while header := data[at]:
        at += 1
        kind = header & 15
        if header > _MORE:
            field += header >> 4
        else:
            field, at = _read_number(data, at)
        if kind in _VARINTS and (byte := data[at]) < _LONG:
            found[field] = (byte >> 1) ^ -(byte & 1)
            at += 1
        elif kind not in _BOOLS:
            found[field], at = _read_value(data, at, kind, depth)
    return found, at + 1


def _read_value(data: bytes | memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _STRUCTS_DEPTH_MAX:
        raise ValueError("structs nest too deeply")
    if kind in _VARINTS:
        return _read_number(data, at)
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        if at + length > len(data):
            raise IndexError(f"a text ends {length} bytes behind {at}")
        return data[at : at + length], at + length
    if kind == _STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind in _LISTS:
        header, at = data[at], at + 1
        kind, count = header & 15, header >> 4
        if count == _MORE:
            count, at = _read_varint(data, at)
        if count > len(data) - at:
            raise IndexError(f"a list has {count} entries in {len(data) - at} bytes")
        values = []
        for _ in range(count):
            value, at = _read_value(data, at, _BYTE if kind in _BOOLS else kind, depth + 1)
            values.append(value)
        return values, at
    if kind in (_BYTE, _DOUBLE):
        length = 1 if kind == _BYTE else 8
        return data[at : at + length], at + length
    raise ValueError(f"a value has the kind {kind}")


def _read_number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number, at = _read_varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < _LONG:
            return value, at
        shift += 7
        if shift > 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number has no end")


def _leaf_types(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """Yield the types of the leaves of an Arrow schema, in the order of Parquet's columns."""
    for each in fields:
        kind = each.type
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_nested(kind):
            yield from _leaf_types(kind.field(place) for place in range(kind.num_fields))
        else:
            yield kind


def decoded_bytes(column: pa.ChunkedArray | pa.Array) -> int:
    """Return how many bytes the values take when each has its own text, and how many values that have none there are,
    as so many bytes each take as Python's.
    """
    chunks: Iterable[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(map(_decoded_bytes, chunks))


def _decoded_bytes(values: pa.Array) -> int:
    kind, count = values.type, len(values)
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(values.dictionary).take(values.indices)
        return int(pc.sum(lengths).as_py() or 0) + count * OFFSET_BYTES
    if pa.types.is_struct(kind):
        return count + sum(map(_decoded_bytes, values.flatten()))
    if pa.types.is_map(kind):
        inner = values.slice(0).cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        return count * OFFSET_BYTES + _decoded_bytes(inner.flatten())
    if pa.types.is_nested(kind):
        return count * OFFSET_BYTES + _decoded_bytes(values.flatten())
    return max(int(values.nbytes), count)
