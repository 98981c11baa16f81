"""Turns rows of a source into rows of an index: keys, hashes, words, vectors, and what is wrong with some of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.embedding.embedder_registry import Known, Vectors, text_hash
from iscp.index.lance.index_columns import FAULT, HEAD, KEY, ROW_HASH, TEXT_HASH, VECTOR, words_column
from iscp.index.lance.text_analysis import GRAMS_MAX, TEXT_BYTES_MAX, Analyse
from iscp.index.model.index_definition import Analysis
from iscp.model.values.errors import ErrorCode, PermanentError

# --- the key of a row as one text -------------------------------------------------------------------------------------

_NULL_KEY = "\\N"
_SEPARATOR = "|"


def key_texts(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Return a text for the key of each row: equal for equal keys, null keys among them, and different for others.

    Raises PermanentError for a key of a type that cannot identify rows.
    """
    names = {name.lower(): name for name in rows.schema.names}
    parts = [_part(rows[names[name.lower()]], name) for name in key]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _SEPARATOR)


def _part(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        doubled = pc.replace_substring(column.cast(pa.string()), "\\", "\\\\")
        text = pc.replace_substring(doubled, _SEPARATOR, "\\" + _SEPARATOR)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        text = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        text = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.string())
    elif pa.types.is_date32(kind):
        text = column.cast(pa.int32()).cast(pa.string())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        text = pa.chunked_array([[None if each is None else each.hex() for each in column.to_pylist()]], pa.string())
    else:
        raise PermanentError(
            f"the key's column {name} has the type {kind}, by which rows of an index cannot be identified",
            remedy="Choose a key of whole numbers, texts, decimals, dates, times, booleans or binary values",
            code=ErrorCode.SCHEMA_CHANGED,
        )
    return pc.fill_null(text, _NULL_KEY)


# --- rows of an index -------------------------------------------------------------------------------------------------

VECTOR_LENGTH_MAX = 1e15
"""Length of a vector whose square Lance can compute with 32 bits; a longer one is a fault of its row."""

VECTOR_LENGTH_MIN = 1e-15
"""Length that a vector needs for a direction, as the squares of shorter ones vanish; a shorter one is a fault."""

WORDS_AT_ONCE_BYTES = 128 * 1024**2
"""Bytes that the words of rows which are encoded at once have, by the lengths of their texts; one row may have more."""

_HASH_BYTES = 16
_NULL = b"\xff"  # no text in UTF-8 has this byte


class EmbeddedTexts(Protocol):
    """An embedding returns a vector for each text, and what is said of texts that were refused, by number."""

    @property
    def vectors(self) -> Vectors: ...
    @property
    def refused(self) -> Mapping[int, str]: ...


Embed = Callable[[Sequence[str], Known | None], EmbeddedTexts]


@dataclass(frozen=True, slots=True)
class RowRules:
    """Rows are encoded by these rules: `texts` are the columns whose words are indexed, `vector` the column with
    vectors, or `embedded` the text column of which `embed` makes them; empty where there are none.

    `analysis` says what `analyse` does. `directed` says that a vector of zeros means nothing, as with cosine.
    """

    key: tuple[str, ...]
    texts: tuple[str, ...]
    analyse: Analyse
    vector: str = ""
    embedded: str = ""
    embed: Embed | None = None
    directed: bool = True
    analysis: Analysis = Analysis()  # noqa: RUF009  (frozen)


@dataclass(slots=True)
class _Faults:
    """Rows have faults, by their numbers; the first fault of a row counts."""

    texts: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, text: str) -> None:
        self.texts.setdefault(number, text)


class RowEncoder:
    """Encodes rows for a dataset of one schema.

    A row that cannot be indexed does not stop the others: it is stored with its fault, in the same commit, and no
    search finds it. Its key and its hash are there, so that a comparison with the source knows the row.
    """

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        self._schema = schema
        self._rules = rules
        self.dimension = schema.field(VECTOR).type.list_size if VECTOR in schema.names else 0

    def keyed(self, rows: pa.Table) -> pa.Table:
        """Return the keys of rows and the hashes of what they have, in the columns `KEY` and `ROW_HASH`."""
        rows = self._readable(rows)[0]
        return pa.table({KEY: key_texts(rows, self._rules.key), ROW_HASH: self._hashes(rows)})

    def portions(self, tables: Iterable[pa.Table], words_bytes: int = WORDS_AT_ONCE_BYTES) -> Iterator[pa.Table]:
        """Yield the rows of tables in such parts as are encoded at once: n-grams take many times their texts."""
        for table in tables:
            sizes = np.zeros(len(table), np.int64)
            for name in self._rules.texts:
                sizes += pc.fill_null(pc.binary_length(_column(table, name)), 0).to_numpy(zero_copy_only=False)
            parts = np.cumsum(sizes) * self._rules.analysis.growth // words_bytes
            bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(table)]
            for begin, end in itertools.pairwise(bounds):
                yield table.slice(begin, end - begin)

    def encode(self, rows: pa.Table, known: Known | None = None) -> pa.Table:
        """Return rows of the dataset's columns. Raises what the embedding raises."""
        rows, faults = self._readable(rows)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            KEY: key_texts(rows, self._rules.key),
            ROW_HASH: self._hashes(rows),
        }
        for number, name in enumerate(self._rules.texts):
            columns[words_column(number)] = self._words(_column(rows, name), name, faults)
        if self.dimension:
            columns[VECTOR], columns[TEXT_HASH] = self._vectors(rows, faults, known)
        return self._assembled(rows, columns, faults)

    def faulty(self, rows: pa.Table, fault: str) -> pa.Table:
        """Return rows of the dataset's columns that have this fault, one for each key."""
        rows, _ = self._readable(rows)
        keys = key_texts(rows, self._rules.key)
        seen: dict[str, int] = {}
        for number, text in enumerate(keys.to_pylist()):
            seen.setdefault(text, number)
        some = rows.take(pa.array(list(seen.values()), pa.int64()))
        columns = {KEY: key_texts(some, self._rules.key), ROW_HASH: pa.nulls(len(some), pa.binary(_HASH_BYTES))}
        return self._assembled(some, columns, _Faults(dict.fromkeys(range(len(some)), fault)))

    def _assembled(self, rows: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray], faults: _Faults) -> pa.Table:
        count = len(rows)
        right = pa.array([number not in faults.texts for number in range(count)], pa.bool_())
        made = []
        for each in self._schema:
            if each.name == FAULT:
                made.append(pa.array([faults.texts.get(number) for number in range(count)], pa.string()))
            elif each.name == HEAD or (each.name not in columns and _is_made(each.name)):
                made.append(pa.nulls(count, each.type))
            elif each.name in columns:
                column = columns[each.name]
                spoilt = bool(faults.texts) and each.name not in (KEY, ROW_HASH)
                made.append(pc.if_else(right, column, pa.scalar(None, column.type)) if spoilt else column)
            else:
                made.append(_column(rows, each.name).cast(each.type))
        return pa.table(made, schema=self._schema)

    def _words(self, column: pa.ChunkedArray, name: str, faults: _Faults) -> pa.Array:
        sizes = pc.binary_length(column).to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            for number in np.flatnonzero(sizes > TEXT_BYTES_MAX).tolist():
                faults.add(number, f"{name} has {int(sizes[number])} bytes, and at most {TEXT_BYTES_MAX} are indexed")
        texts, analysis = column.to_pylist(), self._rules.analysis
        if analysis.grams(analysis.max_ngram):
            for number, text in enumerate(texts):
                # Folding may make a text longer.
                grams = analysis.grams(len(analysis.folded(text))) if text and number not in faults.texts else 0
                if grams > GRAMS_MAX:
                    faults.add(number, f"{name} has {grams} n-grams, and at most {GRAMS_MAX} are indexed")
        chosen = [number for number, text in enumerate(texts) if text and number not in faults.texts]
        words: list[str | None] = [None] * len(texts)
        for number, found in zip(chosen, self._rules.analyse([texts[each] for each in chosen]), strict=True):
            words[number] = found
        return pa.array(words, pa.string())

    def _vectors(self, rows: pa.Table, faults: _Faults, known: Known | None) -> tuple[pa.Array, pa.Array]:
        if self._rules.vector:
            matrix, there = self._given_vectors(_column(rows, self._rules.vector), faults)
            hashes: list[bytes | None] = [None] * len(rows)
        else:
            matrix, hashes = self._embedded_vectors(_column(rows, self._rules.embedded), faults, known)
            there = np.array([each is not None for each in hashes], np.bool_)
        number_type = self._schema.field(VECTOR).type.value_type
        values: npt.NDArray[Any] = matrix
        if pa.types.is_float16(number_type):
            with np.errstate(over="ignore"):
                values = matrix.astype(np.float16)
            for number in np.flatnonzero(there & ~np.isfinite(values).all(axis=1)).tolist():
                faults.add(number, "its vector has numbers that are too large for 16 bits")
        self._refuse_lengths(values, there, faults)
        mask = pa.array(~there)
        flat = pa.array(values.reshape(-1), number_type)
        vectors = pa.FixedSizeListArray.from_arrays(flat, self.dimension, mask=mask)
        return vectors.cast(self._schema.field(VECTOR).type), pa.array(hashes, pa.binary(32))

    def _given_vectors(self, column: pa.ChunkedArray, faults: _Faults) -> tuple[Vectors, npt.NDArray[np.bool_]]:
        """Return a matrix with the vectors of rows, and which rows have one."""
        lists = column.combine_chunks().cast(pa.list_(pa.float32()))
        lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
        right = lengths == self.dimension
        for number in np.flatnonzero(~right & (lengths >= 0)).tolist():
            faults.add(number, f"its vector has {int(lengths[number])} numbers, not {self.dimension}")
        matrix = np.zeros((len(lists), self.dimension), np.float32)
        flat = lists.filter(pa.array(right)).flatten()
        matrix[right] = flat.to_numpy(zero_copy_only=False).reshape(-1, self.dimension)
        for number in np.flatnonzero(right & ~np.isfinite(matrix).all(axis=1)).tolist():
            faults.add(number, "its vector has null, NaN or infinite numbers")
        return matrix, right & ~np.isin(np.arange(len(lists)), list(faults.texts))

    def _embedded_vectors(
        self, column: pa.ChunkedArray, faults: _Faults, known: Known | None
    ) -> tuple[Vectors, list[bytes | None]]:
        """Return a matrix with the vectors of texts, and their hashes, null for a row without a text."""
        assert self._rules.embed is not None
        texts = column.to_pylist()
        chosen = [each for each, text in enumerate(texts) if text and text.strip() and each not in faults.texts]
        matrix = np.zeros((len(texts), self.dimension), np.float32)
        hashes: list[bytes | None] = [None] * len(texts)
        if not chosen:
            return matrix, hashes
        found = self._rules.embed([texts[each] for each in chosen], known)
        for place, number in enumerate(chosen):
            if place in found.refused:
                faults.add(number, f"its text cannot be embedded: {found.refused[place]}")
            else:
                matrix[number] = found.vectors[place]
                hashes[number] = text_hash(texts[number])
        return matrix, hashes

    def _refuse_lengths(self, values: npt.NDArray[Any], there: npt.NDArray[np.bool_], faults: _Faults) -> None:
        """Refuse vectors as they are stored if their distances cannot be computed: one of them fails a whole build."""
        with np.errstate(invalid="ignore"):  # what is not finite is refused already
            lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
        for number in np.flatnonzero(there & (lengths > VECTOR_LENGTH_MAX)).tolist():
            faults.add(number, f"its vector has a length of more than {VECTOR_LENGTH_MAX:.0e}")
        if not self._rules.directed:
            return
        for number in np.flatnonzero(there & (lengths < VECTOR_LENGTH_MIN)).tolist():
            what = f"has a length of less than {VECTOR_LENGTH_MIN:.0e}" if lengths[number] else "is all zeros"
            faults.add(number, f"its vector {what}, which has no direction")

    def _hashes(self, rows: pa.Table) -> pa.Array:
        """Return a hash of each row's columns that are stored or indexed."""
        return pa.array(row_digests(rows, self._hashed_names()), pa.binary(_HASH_BYTES))

    def _hashed_names(self) -> list[str]:
        """Return the names of the columns that are stored or indexed, each once."""
        names = [each.name for each in self._schema if each.name not in _NOT_STORED and not _is_made(each.name)]
        further = [name for name in (*self._rules.texts, self._rules.vector, self._rules.embedded) if name]
        return list(dict.fromkeys([*names, *further]))

    def _readable(self, rows: pa.Table) -> tuple[pa.Table, _Faults]:
        """Return the columns that the index is made of, whose texts are all UTF-8.

        A row with others has a fault, and U+FFFD in their place. Rows may have further columns, which other jobs read.
        """
        faults = _Faults()
        used = {name.lower() for name in (*self._rules.key, *self._hashed_names())}
        rows = rows.select([name for name in rows.schema.names if name.lower() in used])
        for at, each in enumerate(rows.schema):
            if pa.types.is_string(each.type) or pa.types.is_large_string(each.type):
                try:
                    rows[at].validate(full=True)
                except pa.ArrowInvalid:
                    rows = rows.set_column(at, each, _repaired(rows[at], each.name, faults))
        return rows, faults


def row_digests(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """Return a hash for each row of what it has in some columns, whose names count without regard to case."""
    made = []
    for values in zip(*[_value_bytes(_column(rows, name)) for name in names], strict=True):
        digest = hashlib.blake2b(digest_size=_HASH_BYTES)
        for value in values:
            digest.update(_NULL if value is None else len(value).to_bytes(8, "big") + value)
        made.append(digest.digest())
    return made


_NOT_STORED = frozenset({KEY, ROW_HASH, FAULT, HEAD, VECTOR, TEXT_HASH})


def _is_made(name: str) -> bool:
    return name in _NOT_STORED or name.startswith("_words_")


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the column of this name without regard to case."""
    return rows[next(each for each in rows.schema.names if each.lower() == name.lower())]


def _repaired(column: pa.ChunkedArray, name: str, faults: _Faults) -> pa.Array:
    texts: list[str | None] = []
    for number, raw in enumerate(column.cast(pa.binary()).to_pylist()):
        text = None if raw is None else raw.decode(errors="replace")
        if text is not None and text.encode() != raw:
            faults.add(number, f"{name} is no valid UTF-8")
        texts.append(text)
    return pa.array(texts, column.type)


def _value_bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    """Return bytes for each value that are the same for equal values alone."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_bytes(column.combine_chunks())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    elif not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        column = column.cast(pa.string()).cast(pa.binary())
    return list(column.to_pylist())


def _list_bytes(lists: pa.Array) -> list[bytes | None]:
    """Return the numbers of each list in double precision, where a null is NaN; all are cast at once."""
    if pa.types.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    ends = lists.offsets.to_numpy(zero_copy_only=False).tolist()
    numbers = lists.values.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return [
        numbers[begin:end].tobytes() if there else None
        for there, (begin, end) in zip(lists.is_valid().to_pylist(), itertools.pairwise(ends), strict=True)
    ]
