"""Exact scores of many documents at once: the same as iscp.index.model.ranking gives for each of them.

They follow from how often the words of the query are in the documents, and where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.word_counts import place_of
from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    phrase_frequency,
)
from iscp.index.model.ranking import BM25_B, BM25_K1

Numbers = npt.NDArray[np.int64]


Codes = npt.NDArray[np.int32]
_NO_CODE = -1


class DocumentWords:
    """The words of a column of several documents, of those words that a query has.

    `codes` has the number of each word of each document among `words`, -1 for another word; a document has so many of
    them as `lengths` says.
    """

    def __init__(self, codes: Codes, lengths: Numbers, words: Sequence[str]) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        self._codes = codes
        self.lengths = lengths
        self._ends: Numbers = np.cumsum(lengths)
        there = np.flatnonzero(codes != _NO_CODE)
        rows = np.searchsorted(self._ends, there, side="right")
        cells = rows * len(words) + codes[there]
        self._counts = np.bincount(cells, minlength=len(lengths) * len(words)).reshape(len(lengths), len(words))

    @classmethod
    def of_texts(cls, texts: pa.Array, words: Sequence[str]) -> DocumentWords:
        """Return those of texts that have the words of each document as they are stored."""
        lists, lengths = _split(texts)
        found = pc.index_in(lists.flatten(), value_set=pa.array(words, pa.string()))
        return cls(pc.fill_null(found, _NO_CODE).to_numpy(zero_copy_only=False), lengths, words)

    def frequencies(self, word: str) -> Numbers:
        """Return how often each document has the word."""
        return self._counts[:, self._places[word]]

    def positions(self, row: int) -> Mapping[str, Sequence[int]]:
        """Return where each word is in a document."""
        end = int(self._ends[row])
        codes = self._codes[end - int(self.lengths[row]) : end]
        found: defaultdict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(codes != _NO_CODE).tolist():
            found[self._words[int(codes[at])]].append(at)
        return found

    @cached_property
    def _words(self) -> list[str]:
        return list(self._places)


class CodedTexts:
    """The words of a column of several documents as numbers: those of a query are found in them without the texts."""

    def __init__(self, texts: pa.Array) -> None:
        lists, self._lengths = _split(texts)
        coded = lists.flatten().dictionary_encode()
        order = pc.sort_indices(coded.dictionary).to_numpy(zero_copy_only=False)
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        self._words: pa.StringArray = coded.dictionary.take(pa.array(order))
        self._codes: Codes = places[coded.indices.to_numpy(zero_copy_only=False)]
        self._begins: Numbers = np.concatenate([[0], np.cumsum(self._lengths)])

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return int(self._words.nbytes + self._codes.nbytes + self._lengths.nbytes + self._begins.nbytes)

    def documents(self, begin: int, end: int, words: Sequence[str]) -> DocumentWords:
        """Return the words of the documents from `begin` to `end`, of those words that a query has."""
        wanted = np.full(len(self._words), _NO_CODE, np.int32)
        for place, word in enumerate(words):
            if (code := self._code(word)) is not None:
                wanted[code] = place
        codes = wanted[self._codes[self._begins[begin] : self._begins[end]]]
        return DocumentWords(codes, self._lengths[begin:end], words)

    def _code(self, word: str) -> int | None:
        at = place_of(self._words, word)
        return at if at < len(self._words) and self._words[at].as_py() == word else None


@dataclass(frozen=True, slots=True)
class CodedColumns:
    """The words of several columns of the same documents."""

    columns: Mapping[str, CodedTexts]

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return sum(each.bytes for each in self.columns.values())


def _split(texts: pa.Array) -> tuple[pa.ListArray, Numbers]:
    """Return the words of texts, and how many each has: a document without words has none."""
    lists = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), " ")
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lists, lengths.astype(np.int64)


def having_any(texts: pa.StringArray, words: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which of several documents have one of the words.

    All texts are one run of bytes, in which Python finds a word some ten times as fast as Arrow does in each of them.
    Words of two texts are never taken for one: each text begins and ends with a blank.
    """
    found = np.zeros(len(texts), np.bool_)
    _, offsets, data = texts.buffers()
    if data is None:
        return found
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()
    for word in words:
        sought = f" {word} ".encode()
        places = []
        at = content.find(sought)
        while at >= 0:
            places.append(at)
            at = content.find(sought, at + len(sought) - 1)
        found[np.searchsorted(bounds, np.array(places, np.int64) + bounds[0], side="right") - 1] = True
    return found


CELLS_MAX = 4_000_000
"""Documents times words of a query that are counted at once; more documents are scored in several parts."""

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The documents of a column have this average length, and a query's words this inverse document frequency."""

    average_length: float
    idfs: Mapping[str, float]


def words_by_column(query: AnalysedQuery) -> dict[str, list[str]]:
    """Return all words that a query compares, also those that it excludes."""
    words: defaultdict[str, list[str]] = defaultdict(list)
    for column, word in sorted(query.all_terms()):
        words[column].append(word)
    return dict(words)


class DocumentScores:
    """Scores documents for one query."""

    def __init__(self, query: AnalysedQuery, statistics: Mapping[str, Statistics]) -> None:
        self._query = query
        self._words = words_by_column(query)
        self._statistics = statistics

    @property
    def rows_at_once(self) -> int:
        """Return of how many documents the words are counted at once."""
        return max(1, CELLS_MAX // max(1, sum(map(len, self._words.values()))))

    def words(self, texts: Mapping[str, pa.Array]) -> dict[str, DocumentWords]:
        """Count the words of documents, by column."""
        return {column: DocumentWords.of_texts(texts[column], words) for column, words in self._words.items()}

    def coded_words(self, texts: Mapping[str, CodedTexts], begin: int, end: int) -> dict[str, DocumentWords]:
        """Count the words of the documents from `begin` to `end`, by column."""
        return {column: texts[column].documents(begin, end, words) for column, words in self._words.items()}

    def scores(self, documents: Mapping[str, DocumentWords], rows: int) -> Reals:
        """Return the score of each document, NaN where the query does not find it."""
        if self._query.root is None:
            return np.full(rows, np.nan)
        found, scores = _Scoring(documents, self._statistics, rows).node(self._query.root)
        return np.where(found, scores, np.nan)

    def flat_scores(
        self, documents: Mapping[str, DocumentWords], boosts: Mapping[tuple[str, str], float], rows: int
    ) -> Reals:
        """Return the sum over words of boost, idf and weight for each document, whether the query finds it or not."""
        scoring = _Scoring(documents, self._statistics, rows)
        total = np.zeros(rows)
        for (column, word), boost in boosts.items():
            total += boost * scoring.term(column, word)
        return total


class _Scoring:
    def __init__(self, documents: Mapping[str, DocumentWords], statistics: Mapping[str, Statistics], rows: int) -> None:
        self._documents = documents
        self._statistics = statistics
        self._rows = rows
        self._terms: dict[tuple[str, str], Reals] = {}
        self._norms: dict[str, Reals] = {}

    def term(self, column: str, word: str) -> Reals:
        """Return idf and weight of a word in each document."""
        if (known := self._terms.get((column, word))) is None:
            frequencies = self._documents[column].frequencies(word)
            weights = frequencies * (BM25_K1 + 1) / (frequencies + self._norm(column))
            known = self._terms[column, word] = self._statistics[column].idfs[word] * weights
        return known

    def _norm(self, column: str) -> Reals:
        if (known := self._norms.get(column)) is None:
            average = self._statistics[column].average_length
            relative = self._documents[column].lengths / average if average else np.ones(self._rows)
            known = self._norms[column] = BM25_K1 * (1 - BM25_B + BM25_B * relative)
        return known

    def node(self, node: AnalysedNode) -> tuple[Flags, Reals]:
        """Return which documents a part of a query finds, and what it adds to their scores."""
        match node:
            case AnalysedLeaf():
                return self._leaf(node)
            case AnalysedBoolean(must, should, must_not):
                found = np.ones(self._rows, np.bool_)
                scores = np.zeros(self._rows)
                any_should = np.zeros(self._rows, np.bool_)
                for each in must:
                    matched, added = self.node(each)
                    found &= matched
                    scores += added
                for each in should:
                    matched, added = self.node(each)
                    any_should |= matched
                    scores += added
                if not must:
                    found &= any_should
                for each in must_not:
                    found &= ~self.node(each)[0]
                return found, np.where(found, scores, 0.0)
            case _ as never:
                assert_never(never)

    def _leaf(self, leaf: AnalysedLeaf) -> tuple[Flags, Reals]:
        found = np.zeros(self._rows, np.bool_)
        scores = np.zeros(self._rows)
        for part in leaf.parts:
            if isinstance(part, AnalysedPhrase):
                matched = self._phrase(part)
                for word in part.words:
                    scores += np.where(matched, part.boost * self.term(part.column, word.term), 0.0)
            else:
                matched = self._documents[part.column].frequencies(part.term) > 0
                scores += part.boost * self.term(part.column, part.term)
            found |= matched
        return found, scores

    def _phrase(self, phrase: AnalysedPhrase) -> Flags:
        documents = self._documents[phrase.column]
        all_there = np.ones(self._rows, np.bool_)
        for word in phrase.words:
            all_there &= documents.frequencies(word.term) > 0
        for row in np.flatnonzero(all_there).tolist():
            all_there[row] = phrase_frequency(phrase.words, phrase.slop, documents.positions(row)) > 0
        return all_there


def parts_of(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of parts of at most `size` of `count` rows."""
    for begin in range(0, count, size):
        yield begin, min(count, begin + size)
