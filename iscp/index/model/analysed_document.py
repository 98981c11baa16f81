"""A document as the words of its columns, and whether a query finds it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
)


@dataclass(frozen=True, slots=True)
class ColumnWords:
    """The words of a column of a document: how often each is there, and where; `length` counts all of them.

    `positions` are in order; they are empty if the index keeps none, and then no phrase is found.
    """

    length: int
    frequencies: Mapping[str, int]
    positions: Mapping[str, Sequence[int]]


AnalysedDocument = Mapping[str, ColumnWords]
"""The words of a document by column; a column that is null, or has no words, may be left out."""


def column_words(words: Sequence[AnalysedWord]) -> ColumnWords:
    """Return a column's words as the analyser gives them for its text."""
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for word in words:
        positions[word.term].append(word.position)
    ordered = {term: sorted(found) for term, found in positions.items()}
    return ColumnWords(len(words), {term: len(found) for term, found in ordered.items()}, ordered)


def matches(query: AnalysedQuery, document: AnalysedDocument) -> bool:
    """Return whether the query finds the document. A query that is empty after analysis finds nothing."""
    return query.root is not None and node_matches(query.root, document)


def node_matches(node: AnalysedNode, document: AnalysedDocument) -> bool:
    """Return whether a part of a query finds the document."""
    match node:
        case AnalysedLeaf(parts):
            return any(part_frequency(part, document) > 0 for part in parts)
        case AnalysedBoolean(must, should, must_not):
            return (
                all(node_matches(each, document) for each in must)
                and (bool(must) or any(node_matches(each, document) for each in should))
                and not any(node_matches(each, document) for each in must_not)
            )
        case _ as never:
            assert_never(never)


def part_frequency(part: AnalysedTerm | AnalysedPhrase, document: AnalysedDocument) -> float:
    """Return how often a word or a phrase is in the document, 0 if it is not."""
    column = document.get(part.column)
    if column is None:
        return 0
    if isinstance(part, AnalysedTerm):
        return column.frequencies.get(part.term, 0)
    return phrase_frequency(part.words, part.slop, column.positions)


def phrase_frequency(words: Sequence[AnalysedWord], slop: int, positions: Mapping[str, Sequence[int]]) -> float:
    """Return how often a phrase is in a text: 1 for each exact place, 1 / (1 + moves) for one with moved words.

    A word's place in the text less its place in the phrase is its shift. `moves` is the difference between the greatest
    and the least shift: 1 for a word between two that are neighbours in the phrase, 2 for two that have changed places
    (as in Lucene). Each word of the phrase is another one of the text. Places are counted from the left: one that
    begins earlier but ends at the same shift as a later one is not counted.
    """
    found = {word.term: positions.get(word.term, ()) for word in words}
    if not all(found.values()):
        return 0.0
    shifts = sorted({at - word.position for word in words for at in found[word.term]})
    frequency = 0.0
    following: int | None = None
    # From the right, so that the place that begins next is known.
    for begin in reversed(shifts):
        end = _end_of_place(words, begin, found)
        if end is None:
            continue
        if end != following and end - begin <= slop:
            frequency += 1 / (1 + end - begin)
        following = end
    return frequency


def _end_of_place(words: Sequence[AnalysedWord], begin: int, positions: Mapping[str, Sequence[int]]) -> int | None:
    """Return the least shift below which all words have a place of their own with a shift from `begin` on.

    For words that are repeated, the first place for the first is best: each may be moved equally far.
    """
    end = begin
    after: dict[str, int] = {}
    for word in words:
        places = positions[word.term]
        index = max(bisect_left(places, begin + word.position), after.get(word.term, 0))
        if index == len(places):
            return None
        after[word.term] = index + 1
        end = max(end, places[index] - word.position)
    return end
