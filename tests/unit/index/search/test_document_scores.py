"""Scores of many documents at once are those that the model gives for each.

Tests where words are in many documents.
"""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
    column_words,
    matches,
)
from iscp.index.model.ranking import Corpus, score_document
from iscp.index.search.document_scores import (
    CodedTexts,
    DocumentScores,
    DocumentWords,
    Statistics,
    having_any,
    parts_of,
    words_by_column,
)

LETTERS = "abcde"
COLUMNS = ("t", "u")


def drawn_node(draw: random.Random, depth: int) -> AnalysedNode:
    if depth and draw.random() < 0.6:
        must, should, must_not = (
            tuple(drawn_node(draw, depth - 1) for _ in range(draw.randint(0, 2))) for _ in range(3)
        )
        if must or should:
            return AnalysedBoolean(must, should, must_not)
    parts: list[AnalysedTerm | AnalysedPhrase] = []
    for _ in range(draw.randint(0, 3)):
        column, boost = draw.choice(COLUMNS), draw.choice((0.5, 1.0, 3.0))
        if draw.random() < 0.4:
            words = tuple(AnalysedWord(draw.choice(LETTERS), place) for place in range(draw.randint(2, 3)))
            parts.append(AnalysedPhrase(column, words, draw.randint(0, 2), boost))
        else:
            parts.append(AnalysedTerm(column, draw.choice(LETTERS), boost))
    return AnalysedLeaf(tuple(parts))


def drawn_words(draw: random.Random) -> list[str] | None:
    return None if draw.random() < 0.2 else draw.choices(LETTERS, k=draw.randint(1, 9))


@pytest.mark.parametrize("seed", range(60))
def test_scores_are_those_of_the_model(seed: int) -> None:
    draw = random.Random(seed)
    rows = [{column: drawn_words(draw) for column in COLUMNS} for _ in range(40)]
    query = AnalysedQuery(drawn_node(draw, 3))
    corpora = {column: corpus([row[column] for row in rows]) for column in COLUMNS}
    statistics = {
        column: Statistics(corpora[column].average_length, {word: corpora[column].idf(word) for word in words})
        for column, words in words_by_column(query).items()
    }
    scores = DocumentScores(query, statistics)
    texts = {column: pa.array([stored(row[column]) for row in rows], pa.string()) for column in COLUMNS}
    found = scores.scores(scores.words(texts), len(rows)).tolist()
    for row, score in zip(rows, found, strict=True):
        document = {
            column: column_words([AnalysedWord(word, place) for place, word in enumerate(words)])
            for column, words in row.items()
            if words
        }
        assert math.isnan(score) is not matches(query, document)
        if not math.isnan(score):
            assert score == pytest.approx(score_document(query, document, corpora).value, rel=1e-12)


def stored(words: list[str] | None) -> str | None:
    return f" {' '.join(words)} " if words else None


def corpus(texts: list[list[str] | None]) -> Corpus:
    some = [each for each in texts if each]
    return Corpus(len(some), sum(map(len, some)), {letter: sum(letter in each for each in some) for letter in LETTERS})


def test_an_empty_query_finds_nothing() -> None:
    scores = DocumentScores(AnalysedQuery(None), {})
    assert all(math.isnan(score) for score in scores.scores({}, 3))


def test_many_documents_are_scored_in_parts() -> None:
    assert list(parts_of(7, 3)) == [(0, 3), (3, 6), (6, 7)]
    assert list(parts_of(0, 3)) == []


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "日", "日本", "é"]), max_size=6)
TEXTS = st.lists(st.one_of(st.none(), WORDS), max_size=12)
SOUGHT = ["a", "ab", "日"]


@given(TEXTS, st.integers(0, 5))
def test_words_are_found_in_their_own_texts_alone(texts: list[list[str] | None], begin: int) -> None:
    array = pa.array(map(stored, texts), pa.string()).slice(min(begin, len(texts)))
    for sought in (SOUGHT, ["ba"], []):
        wanted = [any(word in (text or ()) for word in sought) for text in texts[min(begin, len(texts)) :]]
        assert having_any(array, sought).tolist() == wanted


@given(TEXTS)
def test_frequencies_lengths_and_places_are_those_of_the_words(texts: list[list[str] | None]) -> None:
    found = DocumentWords.of_texts(pa.array(map(stored, texts), pa.string()), SOUGHT)
    assert found.lengths.tolist() == [len(text or ()) for text in texts]
    for word in SOUGHT:
        assert found.frequencies(word).tolist() == [(text or []).count(word) for text in texts]
    for row, text in enumerate(texts):
        places = {word: [at for at, each in enumerate(text or ()) if each == word] for word in SOUGHT}
        assert dict(found.positions(row)) == {word: each for word, each in places.items() if each}


@given(TEXTS, st.integers(0, 12), st.integers(0, 12))
def test_numbers_of_words_find_what_their_texts_find(texts: list[list[str] | None], one: int, other: int) -> None:
    array = pa.array(map(stored, texts), pa.string())
    begin, end = sorted((min(one, len(texts)), min(other, len(texts))))
    wanted = DocumentWords.of_texts(array.slice(begin, end - begin), SOUGHT)
    found = CodedTexts(array).documents(begin, end, SOUGHT)
    assert found.lengths.tolist() == wanted.lengths.tolist()
    for word in SOUGHT:
        assert found.frequencies(word).tolist() == wanted.frequencies(word).tolist()
    for row in range(end - begin):
        assert found.positions(row) == wanted.positions(row)
