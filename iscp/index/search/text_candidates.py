"""A query as Lance's index is given it: so that what Lance ranks first is what the exact scores rank first.

Each word that adds to a score has a boost by which its weight in Lance's statistics becomes nearly that in the live
ones. So for each row that Lance finds,

    exact score <= drift * Lance's score / scale

where `drift` is the greatest quotient of the average lengths of live and of indexed documents, or 1: a document's
length counts less where the average is greater, and at most in that proportion. What a query requires is added as
conditions. These add to Lance's scores too, next to nothing beside the scaled boosts, and never less than nothing; so
the bound stays one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from lance.query import BooleanQuery, FullTextQuery, MatchQuery, Occur, PhraseQuery

from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
)
from iscp.index.search.document_scores import Statistics

CONDITION_SHARE = 2.0**-20
"""The boost of a condition in relation to the least one of a word that is ranked by."""

BOOST_SPREAD = 0.05
"""The relative difference of boosts up to which words are ranked by the greatest of these."""

_NO_WORD = "\x1f"
"""A word for what no word of the index is. If a text has it, its row is a candidate that the comparison leaves out."""

Terms = Mapping[tuple[str, str], float]
"""The boosts of words, by column and word."""


@dataclass(frozen=True, slots=True)
class CandidateQuery:
    """Lance's query, the boosts by which it ranks words, by which scale its scores are greater, and their drift."""

    query: FullTextQuery
    boosts: Terms
    scale: float
    drift: float


def scoring_boosts(query: AnalysedQuery) -> dict[tuple[str, str], float]:
    """Return by which boost each word adds to the score of a document that has it, at most."""
    boosts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for leaf in _scoring_leaves(query.root):
        for part in leaf.parts:
            for word in (part.term,) if isinstance(part, AnalysedTerm) else (each.term for each in part.words):
                boosts[part.column, word] += part.boost
    return dict(boosts)


def _scoring_leaves(node: AnalysedNode | None) -> Iterator[AnalysedLeaf]:
    match node:
        case None:
            pass
        case AnalysedLeaf():
            yield node
        case AnalysedBoolean(must, should, _):
            for each in (*must, *should):
                yield from _scoring_leaves(each)
        case _ as never:
            assert_never(never)


def candidate_query(
    query: AnalysedQuery,
    words_columns: Mapping[str, str],
    live: Mapping[str, Statistics],
    indexed: Mapping[str, Statistics] | None,
) -> CandidateQuery | None:
    """Return the query for Lance, or None if no indexed row can match it.

    `words_columns` has the column of words of each text column. `indexed` has the statistics by which Lance ranks;
    without them all words are boosted as they are.
    """
    assert query.root is not None  # what is empty finds nothing, and is never searched for
    boosts, drift = scoring_boosts(query), 1.0
    if indexed is not None:
        boosts = {
            (column, word): boost * live[column].idfs[word] / indexed[column].idfs[word]
            for (column, word), boost in boosts.items()
        }
        quotients = (
            live[column].average_length / indexed[column].average_length
            for column in live
            if indexed[column].average_length
        )
        drift = max([1.0, *quotients])
    groups = _groups(boosts)
    boosts = {term: boost for boost, terms in groups for term in terms}
    scale = 1 / (CONDITION_SHARE * min([1.0, *boosts.values()]))
    made = _QueryTranslation(words_columns, boosts, scale)
    clauses = [*made.conditions(query.root)]
    for boost, terms in groups:
        if words := " ".join(word for column, word in terms if (column, word) in made.left):
            clauses.append((Occur.SHOULD, made.term(terms[0][0], words, boost * scale)))
    if not clauses:
        return None  # a prefix, say, with which no word begins
    whole = clauses[0][1] if len(clauses) == 1 and clauses[0][0] is not Occur.MUST_NOT else BooleanQuery(clauses)
    return CandidateQuery(whole, boosts, scale, drift)


def _groups(boosts: Terms) -> list[tuple[float, list[tuple[str, str]]]]:
    """Return the words of one column whose boosts are nearly the same, with the greatest of these.

    Lance searches for the words of one query much faster than for as many queries. The bound holds with greater boosts
    too.
    """
    groups: defaultdict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
    for (column, word), boost in boosts.items():
        groups[column, round(math.log(boost) / math.log1p(BOOST_SPREAD))].append((column, word))
    return [(max(boosts[each] for each in terms), terms) for terms in groups.values()]


Clause = tuple[Occur, FullTextQuery]


class _QueryTranslation:
    """Translates conditions. `left` are the words that no condition ranks by yet."""

    def __init__(self, words_columns: Mapping[str, str], boosts: Terms, scale: float) -> None:
        self._columns = words_columns
        self._scale = scale
        self.left = dict(boosts)

    def term(self, column: str, word: str, boost: float = 1.0) -> FullTextQuery:
        return MatchQuery(word, self._columns[column], boost=boost)

    def conditions(self, root: AnalysedNode) -> list[Clause]:
        """Return what a row has to fulfil besides having one of the words that are ranked by."""
        if isinstance(root, AnalysedLeaf):
            return [] if _all_terms(root) else [(Occur.MUST, self._node(root))]
        clauses: list[Clause] = []
        for each in root.must:
            if (
                isinstance(each, AnalysedLeaf)
                and len(each.parts) == 1
                and isinstance(part := each.parts[0], AnalysedTerm)
            ):
                boost = self.left.pop((part.column, part.term), None)
                scaled = 1.0 if boost is None else boost * self._scale
                clauses.append((Occur.MUST, self.term(part.column, part.term, scaled)))
            else:
                clauses.append((Occur.MUST, self._node(each)))
        plain = all(isinstance(each, AnalysedLeaf) and _all_terms(each) for each in root.should)
        if not root.must and not plain:
            clauses.append((Occur.MUST, self._any(root.should)))
        return [*clauses, *self._exclusions(root.must_not)]

    def _node(self, node: AnalysedNode) -> FullTextQuery:
        """Return a query that finds each row that the node finds; others are left out later."""
        if isinstance(node, AnalysedLeaf):
            if not node.parts:
                return MatchQuery(_NO_WORD, next(iter(self._columns.values())))
            return BooleanQuery([(Occur.SHOULD, self._part(each)) for each in node.parts])
        clauses: list[Clause] = [(Occur.MUST, self._node(each)) for each in node.must]
        if not node.must:
            clauses.append((Occur.MUST, self._any(node.should)))
        return BooleanQuery([*clauses, *self._exclusions(node.must_not)])

    def _any(self, nodes: Sequence[AnalysedNode]) -> FullTextQuery:
        return BooleanQuery([(Occur.SHOULD, self._node(each)) for each in nodes])

    def _part(self, part: AnalysedTerm | AnalysedPhrase) -> FullTextQuery:
        if isinstance(part, AnalysedTerm):
            return self.term(part.column, part.term)
        words = list(dict.fromkeys(word.term for word in part.words))
        if not part.slop and len(words) == len(part.words):
            return PhraseQuery(" ".join(words), self._columns[part.column])
        return BooleanQuery([(Occur.MUST, self.term(part.column, word)) for word in words])

    def _exclusions(self, nodes: Sequence[AnalysedNode]) -> list[Clause]:
        """Return what excludes no row but those that the nodes find. Phrases are left to the exact comparison."""
        return [
            (Occur.MUST_NOT, self.term(part.column, part.term))
            for node in nodes
            if isinstance(node, AnalysedLeaf) and _all_terms(node)
            for part in node.parts
            if isinstance(part, AnalysedTerm)
        ]


def _all_terms(leaf: AnalysedLeaf) -> bool:
    return all(isinstance(part, AnalysedTerm) for part in leaf.parts)
