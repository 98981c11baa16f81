"""What an index has to have, worked out from rows of a source one by one, by nothing that indexes are written with."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.index.embedding.local_models import HashedEmbedder
from iscp.index.lance.index_columns import HEAD_KEY, KEY, analyser_of
from iscp.index.lance.index_store import OpenIndex
from iscp.index.lance.text_analysis import TEXT_BYTES_MAX
from iscp.index.lance.word_counts import merged_counts, read_table
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import VectorPrecision
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.spec.spec import ConsumerSpec

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """A row of an index: whether it has a fault, and otherwise the words of each text column, and the vector."""

    faulty: bool
    words: tuple[tuple[str, ...], ...] = ()
    vector: tuple[float, ...] | None = None


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows whose texts are bytes where they are no UTF-8."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            raw = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary()).to_pylist()
            columns[name] = list(map(_decoded, raw))
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _decoded(raw: bytes | None) -> str | bytes | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return raw


class Expectations:
    """What one job's index has to have of rows."""

    def __init__(self, spec: ConsumerSpec, keeps: Callable[[Row], bool]) -> None:
        self.definition = parse_definition(spec.kind, spec.options)
        self._key = spec.key
        self._keeps = keeps
        analysis = self.definition.analysis
        self._analyse = analyser_of(analysis) if analysis is not None else None
        self._embedder = HashedEmbedder(EmbedderConfig(kind="hashed"))

    def of(self, rows: Sequence[Row], dimension: int) -> dict[tuple[Any, ...], Expected]:
        """Return the rows of the index by their keys, where its vectors have `dimension` numbers (0: it has none)."""
        by_key: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            if self._keeps(row):
                by_key[tuple(row[name] for name in self._key)].append(row)
        return {
            key: Expected(True) if len(some) > 1 else self._expected(some[0], dimension) for key, some in by_key.items()
        }

    def _expected(self, row: Row, dimension: int) -> Expected:
        texts = self.definition.text_names()
        used = [row[name] for name in self.definition.stored_columns(self._key)]
        if any(isinstance(value, bytes) for value in used):
            return Expected(True)
        if any(row[name] is not None and len(row[name].encode()) > TEXT_BYTES_MAX for name in texts):
            return Expected(True)
        vector = self._vector(row, dimension)
        if vector is _FAULT:
            return Expected(True)
        return Expected(False, tuple(self._words(row[name]) for name in texts), vector)

    def _words(self, text: str | None) -> tuple[str, ...]:
        assert self._analyse is not None
        return tuple((self._analyse([text])[0] or "").split(" ")[1:-1]) if text else ()

    def _vector(self, row: Row, dimension: int) -> tuple[float, ...] | None:
        options = self.definition.vector
        if options is None or not dimension:
            return None
        if options.text:
            text = row[options.text]
            return tuple(map(float, self._embedder.embed([text])[0])) if text and text.strip() else None
        given = row[options.column]
        if given is None:
            return None
        if len(given) != dimension or any(each is None or not math.isfinite(each) for each in given):
            return _FAULT
        half = options.precision is VectorPrecision.FLOAT16
        with np.errstate(over="ignore"):
            stored = np.asarray(given, np.float16 if half else np.float32)
        length = math.hypot(*map(float, stored))
        if not length <= 1e15 or (options.metric.value == "cosine" and length < 1e-15):
            return _FAULT
        return tuple(map(float, stored))


_FAULT: tuple[float, ...] = (math.nan,)


def assert_as_expected(index: OpenIndex, expected: Mapping[tuple[Any, ...], Expected], rows: Sequence[Row]) -> None:
    """Assert that an index has what is expected, and that all its sums are those of its rows."""
    found = [row for row in index.dataset.to_table().to_pylist() if row[KEY] != HEAD_KEY]
    by_key = {tuple(row[name] for name in index.head.key): row for row in found}
    assert len(by_key) == len(found)
    assert set(by_key) == set(expected)
    stored = [name for name in index.dataset.schema.names if not name.startswith("_")]
    source = {tuple(row[name] for name in index.head.key): row for row in rows}
    for key, row in by_key.items():
        words = tuple(tuple((row[name] or "").split(" ")[1:-1]) for name in _words_columns(row))
        vector = None if row.get("_vector") is None else tuple(row["_vector"])
        if expected[key].faulty:
            assert row["_fault"], (key, row, source[key])
            assert (any(words), vector) == (False, None), (key, row, source[key])
            continue
        assert Expected(row["_fault"] is not None, words, vector) == expected[key], (key, row["_fault"])
        assert {name: row[name] for name in stored} == {name: source[key][name] for name in stored}, key
    assert_sums_of(index, found)


def _words_columns(row: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in row if name.startswith("_words_"))


def assert_sums_of(index: OpenIndex, rows: Sequence[Mapping[str, Any]]) -> None:
    """Assert that the head and the files of counts say what the rows have."""
    assert index.head.rows == len(rows)
    assert index.head.faults == sum(row["_fault"] is not None for row in rows)
    assert index.head.vectors == sum(row.get("_vector") is not None for row in rows)
    counted: Counter[tuple[int, str]] = Counter()
    for number, totals in enumerate(index.head.totals):
        words = [row[f"_words_{number}"].split(" ")[1:-1] for row in rows if row[f"_words_{number}"]]
        assert (totals.rows, totals.words) == (len(words), sum(map(len, words)))
        for each in words:
            counted.update((number, word) for word in set(each))
    files = [read_table(index.root, name) for name in index.head.count_files]
    stored = merged_counts(files).to_pylist() if files else []
    assert {(row["column"], row["word"]): row["rows"] for row in stored} == dict(counted)
