"""Scores of many documents at once are those that the model gives for each."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest

from iscp.index.model.analysed_document import column_words, matches
from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
)
from iscp.index.model.bm25 import Corpus, score_document
from iscp.index.search.document_scores import DocumentScores, Statistics, parts_of, words_by_column

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
