"""Scores and ranks: exact BM25, which depends on the live documents alone, with explanations; and reciprocal rank
fusion, which makes one ranking of several whose scores cannot be compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar, assert_never

from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedDocument,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    node_matches,
    part_frequency,
)
from iscp.model.values.errors import InvalidRequest

# --- exact BM25 -------------------------------------------------------------------------------------------------------
# The formula is that of Lance's full-text index, so that scores compare: the inverse document frequency of Robertson
# and Spärck Jones, made positive as in Lucene, and the numerator k1 + 1, which Lucene has dropped since.
#
#     idf(term) = ln(1 + (documents − count + 0.5) / (count + 0.5))
#     weight(frequency) = frequency · (k1 + 1) / (frequency + k1 · (1 − b + b · length / average length))
#
# A score is the sum over columns and words of boost · idf · weight. A word that a query has twice counts twice. A
# phrase is a condition: where it is found, it scores as its words do, as in Lance.

BM25_K1 = 1.2
BM25_B = 0.75


@dataclass(frozen=True, slots=True)
class Corpus:
    """The live documents of a column: those that have a word in it, as Lucene and Lance count them.

    A document whose column is null, empty or made of stop words alone is none of them. `total_length` is the number of
    all their words; `counts` gives for a word the number of documents that have it.
    """

    documents: int
    total_length: int
    counts: Callable[[str], int] | Mapping[str, int]

    @property
    def average_length(self) -> float:
        return self.total_length / self.documents if self.documents else 0.0

    def count(self, term: str) -> int:
        """Return how many documents have the word. Raises ValueError if that is no number of documents."""
        count = self.counts(term) if callable(self.counts) else self.counts.get(term, 0)
        if not 0 <= count <= self.documents:
            raise ValueError(f"{count} of {self.documents} documents have {term!r}")
        return count

    def idf(self, term: str) -> float:
        """Return the inverse document frequency of a word."""
        count = self.count(term)
        return math.log(1 + (self.documents - count + 0.5) / (count + 0.5))


def frequency_weight(frequency: float, length: int, average_length: float) -> float:
    """Return the weight of a word that a text of `length` words has `frequency` times."""
    relative = length / average_length if average_length else 1.0
    return frequency * (BM25_K1 + 1) / (frequency + BM25_K1 * (1 - BM25_B + BM25_B * relative)) if frequency else 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """A number, what it is, and the numbers that it was made of."""

    value: float
    description: str
    details: tuple[Explanation, ...] = ()

    def explained(self, indent: int = 0) -> str:
        """Return the tree as lines, each part below and further in than its whole."""
        own = f"{'  ' * indent}{self.value:.6g} = {self.description}"
        return "\n".join([own, *(each.explained(indent + 1) for each in self.details)])

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as values that JSON has."""
        details = [each.to_dict() for each in self.details]
        return {"value": self.value, "description": self.description, "details": details}


@dataclass(frozen=True, slots=True)
class ScorePart:
    """The part of a score that one word adds, which is searched for by itself or in a phrase."""

    part: AnalysedTerm
    frequency: float
    length: int
    corpus: Corpus
    idf: float

    @property
    def weight(self) -> float:
        return frequency_weight(self.frequency, self.length, self.corpus.average_length)

    @property
    def value(self) -> float:
        return self.part.boost * self.idf * self.weight

    def explanation(self) -> Explanation:
        average, word = self.corpus.average_length, self.part.term
        weight = Explanation(
            self.weight,
            "weight of the frequency: frequency * (k1 + 1) / (frequency + k1 * (1 - b + b * length / average length))",
            (
                Explanation(self.frequency, f"frequency of {word}"),
                Explanation(self.length, f"length of {self.part.column} in words"),
                Explanation(average, f"average length of {self.part.column}"),
                Explanation(BM25_K1, "k1"),
                Explanation(BM25_B, "b"),
            ),
        )
        counts = (
            Explanation(self.corpus.documents, f"documents with {self.part.column}"),
            Explanation(self.corpus.count(word), f"documents with {word}"),
        )
        idf = Explanation(self.idf, "idf: ln(1 + (documents - count + 0.5) / (count + 0.5))", counts)
        factors = (Explanation(self.part.boost, "boost"), idf, weight)
        return Explanation(self.value, f"{self.part.column}:{word}: boost * idf * weight", factors)


@dataclass(frozen=True, slots=True)
class Score:
    """A score, and what it is the sum of. `value` does not depend on the order of the parts."""

    value: float
    parts: tuple[ScorePart, ...]

    def explanation(self) -> Explanation:
        """Return how the score came about: computed when needed, as most scores are never explained."""
        return Explanation(self.value, "score: sum of", tuple(each.explanation() for each in self.parts))


def score_document(query: AnalysedQuery, document: AnalysedDocument, corpus: Mapping[str, Corpus]) -> Score:
    """Return the score of a document, 0 if the query does not find it. `corpus` has each column that is searched.

    Raises ValueError if the numbers of a corpus contradict each other, and KeyError for a column that it lacks.
    """
    parts: tuple[ScorePart, ...] = ()
    if query.root is not None and node_matches(query.root, document):
        parts = tuple(_parts(query.root, document, corpus))
    return Score(math.fsum(each.value for each in parts), parts)


def _parts(node: AnalysedNode, document: AnalysedDocument, corpus: Mapping[str, Corpus]) -> Iterator[ScorePart]:
    """Yield what a part of a query that finds the document adds; within it, other parts may not find it."""
    match node:
        case AnalysedLeaf(parts):
            for part in parts:
                if part_frequency(part, document):
                    yield from _scored(part, document, corpus[part.column])
        case AnalysedBoolean(must, should, _):
            for each in (*must, *should):
                if node_matches(each, document):
                    yield from _parts(each, document, corpus)
        case _ as never:
            assert_never(never)


def _scored(part: AnalysedTerm | AnalysedPhrase, document: AnalysedDocument, corpus: Corpus) -> Iterator[ScorePart]:
    """Yield what the words of a part add to the score of a document that has it."""
    terms = [part.term] if isinstance(part, AnalysedTerm) else [word.term for word in part.words]
    words = document[part.column]
    for term in terms:
        one = AnalysedTerm(part.column, term, part.boost)
        yield ScorePart(one, words.frequencies[term], words.length, corpus, corpus.idf(term))


# --- reciprocal rank fusion -------------------------------------------------------------------------------------------
# Each ranking gives weight / (k + rank) to what it has, ranks counted from 1 (Cormack, Clarke and Büttcher, SIGIR
# 2009). Neither the order of rankings nor that of keys in a dictionary matters: equal scores are ordered by key.

RANK_CONSTANT = 60
"""The k of the formula, by which first ranks count little more than those that follow: the paper's own."""

RANKINGS_MAX = 16
"""Rankings that are fused at a time; more are refused."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ranking(Generic[K]):
    """Keys, the best first, and how much the ranking counts. A key that is there again keeps its first rank."""

    keys: Sequence[K]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FusedHit(Generic[K]):
    """A key, its score, and its rank in each ranking from 1, or None where it is not."""

    key: K
    score: float
    ranks: tuple[int | None, ...]


def fuse(rankings: Sequence[Ranking[K]], k: int = RANK_CONSTANT) -> list[FusedHit[K]]:
    """Return all keys of the rankings, the best first. Raises InvalidRequest for weights that are none."""
    if len(rankings) > RANKINGS_MAX:
        raise InvalidRequest(f"fuses {len(rankings)} rankings, more than {RANKINGS_MAX}", remedy="Fuse fewer")
    for ranking in rankings:
        if not (math.isfinite(ranking.weight) and ranking.weight >= 0):
            raise InvalidRequest(
                f"is {ranking.weight}, which is no weight", field="weights", remedy="Give a number from 0 on"
            )
    ranks: defaultdict[K, list[int | None]] = defaultdict(lambda: [None] * len(rankings))
    for number, ranking in enumerate(rankings):
        for rank, key in enumerate(dict.fromkeys(ranking.keys), start=1):
            ranks[key][number] = rank
    weights = [ranking.weight for ranking in rankings]
    hits = [FusedHit(key, _score(found, weights, k), tuple(found)) for key, found in ranks.items()]
    return sorted(hits, key=lambda hit: (-hit.score, order_of(hit.key)))


def _score(ranks: Sequence[int | None], weights: Sequence[float], k: int) -> float:
    """Return the sum, rounded once: so that it does not depend on the order of the rankings."""
    return math.fsum(weight / (k + rank) for rank, weight in zip(ranks, weights, strict=True) if rank is not None)


def order_of(key: object) -> tuple[object, ...]:
    """Return what keys of any types can be ordered by: null first, numbers, texts, bytes, then others by their text."""
    match key:
        case None:
            return (0,)
        case bool() | int() | Decimal():
            return (1, key, type(key).__name__)
        case float():
            return (2, "") if math.isnan(key) else (1, key, type(key).__name__)
        case str():
            return (3, key)
        case bytes():
            return (4, key)
        case tuple():
            return (5, tuple(order_of(each) for each in key))
        case _:
            return (6, type(key).__name__, str(key))
