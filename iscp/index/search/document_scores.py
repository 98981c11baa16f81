"""Exact scores of many documents at once: the same as iscp.index.model.bm25 gives for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.index.model.analysed_document import phrase_frequency
from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
)
from iscp.index.model.bm25 import BM25_B, BM25_K1
from iscp.index.search.document_words import CodedTexts, DocumentWords

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
