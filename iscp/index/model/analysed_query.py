"""A full-text query in the words of an index, and whether it finds a document.

The analyser and the vocabulary of the index make these words of the query's tree; a document has the words of its
columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, assert_never

from iscp.index.model.query_syntax import Boolean, Fuzzy, Leaf, Phrase, Prefix, Query, Words
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import shown

EXPANSIONS_MAX = 50
"""Words of a column that a prefix or a fuzzy word stands for; more are left out, and the answer says so. A
clause that would exclude more is refused.
"""

QUERY_TERMS_MAX = 4_096
"""Words of an index, counted in each column, in which a query is put; a query that needs more is refused."""


FUZZY_CHARS_MAX = 200
"""Characters of a fuzzy word, whose changes are counted against each word that is near; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class AnalysedWord:
    """A word of a text as an index has it, and its place: stop words that were left out still have had theirs."""

    term: str
    position: int


Analyse: TypeAlias = Callable[[str, str], Sequence[AnalysedWord]]
"""A function of a column and a text that gives the words which the index would have for it."""

Normalise: TypeAlias = Callable[[str, str], Sequence[str]]
"""A function of a column and a text that gives its words in lower case and folded as the index has them, but neither
stemmed nor without stop words: the beginning of a word has no stem.
"""


class Vocabulary(Protocol):
    """The words that live documents have in a column (port)."""

    def with_prefix(self, column: str, prefix: str, most: int) -> Sequence[str]:
        """Return up to `most` words that begin with `prefix`, those of most documents first."""
        ...

    def near(self, column: str, term: str, distance: int, most: int) -> Sequence[str]:
        """Return up to `most` words within `distance` changes of `term`, the nearest first.

        Two neighbours that have changed places are one change.
        """
        ...


@dataclass(frozen=True, slots=True)
class AnalysedTerm:
    """A word that is to be found in a column; `boost` multiplies its score."""

    column: str
    term: str
    boost: float


@dataclass(frozen=True, slots=True)
class AnalysedPhrase:
    """Words that are to be found in a column at these places, counted from the first, or moved by `slop` in all."""

    column: str
    words: tuple[AnalysedWord, ...]
    slop: int
    boost: float


@dataclass(frozen=True, slots=True)
class AnalysedLeaf:
    """Words and phrases any of which is to be found; each that is adds to the score."""

    parts: tuple[AnalysedTerm | AnalysedPhrase, ...]


@dataclass(frozen=True, slots=True)
class AnalysedBoolean:
    """The same as `Boolean`, without the clauses of which the analyser has left nothing."""

    must: tuple[AnalysedNode, ...]
    should: tuple[AnalysedNode, ...]
    must_not: tuple[AnalysedNode, ...]


AnalysedNode: TypeAlias = AnalysedLeaf | AnalysedBoolean


@dataclass(frozen=True, slots=True)
class AnalysedQuery:
    """A query that documents can be compared with. `root` is none if only stop words were searched for.

    `cut` has the texts of prefixes and fuzzy words that stand for more words than are searched for.
    """

    root: AnalysedNode | None
    cut: tuple[str, ...] = ()

    def terms(self) -> frozenset[tuple[str, str]]:
        """Return the column and the word of all that adds to a score: what counts of documents are needed for."""
        return frozenset(_terms(self.root, scoring=True))

    def all_terms(self) -> frozenset[tuple[str, str]]:
        """Return the column and the word of all that is compared, also of what is excluded."""
        return frozenset(_terms(self.root, scoring=False))


def _terms(node: AnalysedNode | None, *, scoring: bool) -> Iterator[tuple[str, str]]:
    match node:
        case None:
            pass
        case AnalysedLeaf(parts):
            for part in parts:
                if isinstance(part, AnalysedTerm):
                    yield part.column, part.term
                else:
                    yield from ((part.column, word.term) for word in part.words)
        case AnalysedBoolean(must, should, must_not):
            for each in (*must, *should, *(() if scoring else must_not)):
                yield from _terms(each, scoring=scoring)
        case _ as never:
            assert_never(never)


def expand(
    query: Query,
    analyse: Analyse,
    normalise: Normalise,
    vocabulary: Vocabulary,
    *,
    boosts: Mapping[str, float],
    positions: bool = True,
) -> AnalysedQuery:
    """Return the query in the words of an index.

    `boosts` has the factors of columns that do not count once, `positions` says whether the index keeps the places of
    words. A clause of which the analyser leaves nothing, as of stop words, is dropped, as Lucene does. Raises
    InvalidRequest (field `query`) for a prefix or a fuzzy word that is several words to the analyser, for a phrase
    without positions, and for too many words.
    """
    expansion = _Expansion(analyse, normalise, vocabulary, boosts, positions)
    return AnalysedQuery(expansion.node(query, excluded=False), tuple(dict.fromkeys(expansion.cut)))


@dataclass
class _Expansion:
    analyse: Analyse
    normalise: Normalise
    vocabulary: Vocabulary
    boosts: Mapping[str, float]
    positions: bool
    cut: list[str] = field(default_factory=list)
    count: int = 0

    def node(self, query: Query, *, excluded: bool) -> AnalysedNode | None:
        if not isinstance(query, Boolean):
            return self._leaf(query, excluded=excluded)
        must = self._nodes(query.must, excluded=excluded)
        should = self._nodes(query.should, excluded=excluded)
        if not must and not should:
            return None  # what only excludes finds nothing
        must_not = self._nodes(query.must_not, excluded=True)
        if len(must) + len(should) == 1 and not must_not:
            return (*must, *should)[0]
        return AnalysedBoolean(must, should, must_not)

    def _nodes(self, queries: Sequence[Query], *, excluded: bool) -> tuple[AnalysedNode, ...]:
        nodes = (self.node(each, excluded=excluded) for each in queries)
        return tuple(each for each in nodes if each is not None)

    def _leaf(self, leaf: Leaf, *, excluded: bool) -> AnalysedLeaf | None:
        parts: list[AnalysedTerm | AnalysedPhrase] = []
        empty = True
        for column in leaf.columns:
            boost = leaf.boost * self.boosts.get(column, 1.0)
            match leaf:
                case Words(text):
                    found = [AnalysedTerm(column, word.term, boost) for word in self.analyse(column, text)]
                    self._count(len(found))
                    parts += found
                    empty = empty and not found
                case Phrase(text, slop):
                    words = _from_first(self.analyse(column, text))
                    self._count(len(words))
                    parts += [self._phrase(column, words, slop, boost)] if words else []
                    empty = empty and not words
                case Prefix() | Fuzzy():
                    beginning = self._one_word(column, leaf.text)
                    parts += self._expanded(leaf, column, beginning, boost, excluded=excluded) if beginning else []
                    empty = empty and not beginning
                case _ as never:
                    assert_never(never)
        return None if empty else AnalysedLeaf(tuple(parts))

    def _phrase(
        self, column: str, words: tuple[AnalysedWord, ...], slop: int, boost: float
    ) -> AnalysedTerm | AnalysedPhrase:
        if len(words) == 1:
            return AnalysedTerm(column, words[0].term, boost)
        if not self.positions:
            raise InvalidRequest(
                "has a phrase, and the index does not keep the places of words",
                field="query",
                remedy="Search for its words, as in +a +b; or build the index with positions=true",
            )
        return AnalysedPhrase(column, words, slop, boost)

    def _expanded(
        self, leaf: Prefix | Fuzzy, column: str, text: str, boost: float, *, excluded: bool
    ) -> list[AnalysedTerm]:
        if isinstance(leaf, Prefix):
            found = self.vocabulary.with_prefix(column, text, EXPANSIONS_MAX + 1)
        else:
            if len(text) > FUZZY_CHARS_MAX:
                raise InvalidRequest(
                    f"has a fuzzy word of {len(text)} characters, more than {FUZZY_CHARS_MAX}",
                    field="query",
                    remedy="Search for a prefix of it",
                )
            found = self.vocabulary.near(column, text, leaf.distance, EXPANSIONS_MAX + 1)
        found = list(dict.fromkeys(found))
        if len(found) > EXPANSIONS_MAX:
            if excluded:
                raise InvalidRequest(
                    f"excludes more than {EXPANSIONS_MAX} words of {column} by {shown(leaf.text)}",
                    field="query",
                    remedy="Write more of the word",
                )
            self.cut.append(leaf.text)
        self._count(len(found[:EXPANSIONS_MAX]))
        if isinstance(leaf, Prefix):
            return [AnalysedTerm(column, term, boost) for term in found[:EXPANSIONS_MAX]]
        near = ((term, fuzzy_scale(text, term, leaf.distance)) for term in found[:EXPANSIONS_MAX])
        return [AnalysedTerm(column, term, boost * scale) for term, scale in near if scale > 0]

    def _one_word(self, column: str, text: str) -> str:
        """Return the one word that a text is, or nothing if there is none in it."""
        words = self.normalise(column, text)
        if len(words) > 1:
            raise InvalidRequest(
                f"has {shown(text)}, which is {len(words)} words in {column}, as a prefix or fuzzy word",
                field="query",
                remedy="Write one word",
            )
        return words[0] if words else ""

    def _count(self, more: int) -> None:
        self.count += more
        if self.count > QUERY_TERMS_MAX:
            raise InvalidRequest(
                f"stands for more than {QUERY_TERMS_MAX} words of the index",
                field="query",
                remedy="Search for less at a time, or in fewer columns",
            )


def _from_first(words: Sequence[AnalysedWord]) -> tuple[AnalysedWord, ...]:
    """Return the words with places that are counted from the first."""
    first = min((word.position for word in words), default=0)
    placed = (AnalysedWord(word.term, word.position - first) for word in words)
    return tuple(sorted(placed, key=lambda word: (word.position, word.term)))


def fuzzy_scale(wanted: str, found: str, distance: int) -> float:
    """Return by which factor a fuzzy word's score is less than that of the word itself: 1 − changes / length.

    The length is that of the shorter word, as in Lucene. The factor is 0 for a word beyond `distance`, or with no
    character in common.
    """
    if abs(len(wanted) - len(found)) > distance:
        return 0.0
    changes = edit_distance(wanted, found)
    shorter = min(len(wanted), len(found))
    return max(0.0, 1 - changes / shorter) if changes <= distance and shorter else 0.0


def edit_distance(one: str, other: str) -> int:
    """Return the number of changes between two words, each part of which is changed once at most.

    A change is a character more, one less, another one, or two neighbours that have changed places (the restricted
    distance of Damerau and Levenshtein, which Lucene's automata have too).
    """
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[len(other)]


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
