"""A full-text query as a tree, before its words are made into those of an index.

The meaning is that of Lucene's: a query that has something it must match need match nothing that it should match; one
that has not must match at least one of those; what it must not match never adds to a score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

BOOST_LEAST = 0.001
"""The least factor of a score that a query or a column may have, alone or within others; a smaller one is refused."""

BOOST_MOST = 1_000.0
"""The greatest factor of a score that a query or a column may have, alone or within others; a greater one is refused.
"""

FUZZY_DISTANCE_MOST = 2
"""The most changes of a character between a fuzzy word and what it finds, as in Lucene; a greater number is refused."""

SLOP_MOST = 100
"""The most places by which the words of a phrase may be moved; a greater number is refused."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text any of whose words is to be found: each is a `should`. `text` has one blank between its words."""

    text: str
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that are to be found one after the other, or moved by at most `slop` places in all."""

    text: str
    slop: int
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of words, each of which is to be found."""

    text: str
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """A word that is also found with up to `distance` changes.

    A change is a character more, one less, another one, or two neighbours that have changed places.
    """

    text: str
    distance: int
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Boolean:
    """Queries that a document must match, should match and must not match; `boolean` makes them in their one form."""

    must: tuple[Query, ...] = ()
    should: tuple[Query, ...] = ()
    must_not: tuple[Query, ...] = ()


Leaf: TypeAlias = Words | Phrase | Prefix | Fuzzy
Query: TypeAlias = Leaf | Boolean


def boolean(must: Iterable[Query] = (), should: Iterable[Query] = (), must_not: Iterable[Query] = ()) -> Query:
    """Return the one form of a query of several.

    Neighbouring words of the same columns and boost that should match are one text, as they are then analysed at once;
    a single query that must or should match is itself.
    """
    whole = Boolean(tuple(must), tuple(_joined(should)), tuple(must_not))
    positive = (*whole.must, *whole.should)
    return positive[0] if len(positive) == 1 and not whole.must_not else whole


def _joined(queries: Iterable[Query]) -> list[Query]:
    texts: list[str] = []
    joined: list[Query] = []
    for each in queries:
        last = joined[-1] if joined else None
        if isinstance(each, Words) and isinstance(last, Words) and replace(last, text=each.text) == each:
            texts.append(each.text)
            continue
        _put_text(joined, texts)
        joined.append(each)
        texts = [each.text] if isinstance(each, Words) else []
    _put_text(joined, texts)
    return joined


def _put_text(joined: list[Query], texts: list[str]) -> None:
    """Give the last query the text that has gathered for it: once, as adding word by word would be quadratic."""
    if len(texts) > 1 and isinstance(last := joined[-1], Words):
        joined[-1] = replace(last, text=" ".join(texts))


def boosted(query: Query, boost: float) -> Query:
    """Return the query with all its scores multiplied by `boost`, in its one form."""
    if isinstance(query, Boolean):
        parts = (query.must, query.should, query.must_not)
        return boolean(*([boosted(each, boost) for each in part] for part in parts))
    return replace(query, boost=query.boost * boost)


def leaves(query: Query) -> Iterator[Leaf]:
    """Yield all queries within one that are not made of others."""
    if isinstance(query, Boolean):
        for each in (*query.must, *query.should, *query.must_not):
            yield from leaves(each)
    else:
        yield query
