"""Scores, matches and places of words are those of a fresh full-text index of Lance, where both say the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

from iscp.index.model.analysed_query import AnalysedDocument, AnalysedQuery, AnalysedWord, column_words, expand, matches
from iscp.index.model.highlighting import HighlightOptions, highlight, token_spans
from iscp.index.model.index_definition import LANGUAGES
from iscp.index.model.query_syntax import parse_query
from iscp.index.model.ranking import Corpus, score_document

WORDS = ["data", "lake", "apache", "arrow", "The", "and", "Lakes", "running", "数据库", "東京"]
ANALYSER: dict[str, Any] = {"base_tokenizer": "icu", "language": "English", "stem": True, "remove_stop_words": True}


def analyse(_column: str, text: str) -> list[AnalysedWord]:
    return [AnalysedWord(each.text, each.position) for each in lance.tokenize(text, **ANALYSER)]


def normalise(_column: str, text: str) -> list[str]:
    plain = {**ANALYSER, "stem": False, "remove_stop_words": False}
    return [each.text for each in lance.tokenize(text, **plain)]


class NoVocabulary:
    """A vocabulary of an index in which nothing is searched by prefix or fuzzily."""

    def with_prefix(self, column: str, prefix: str, most: int) -> list[str]:
        raise AssertionError(f"{prefix} was searched in {column}, up to {most}")

    def near(self, column: str, term: str, distance: int, most: int) -> list[str]:
        raise AssertionError(f"{term} was searched in {column} by {distance}, up to {most}")


class Indexed:
    """Random texts, some of them null, empty or of stop words alone, in Lance and as words."""

    def __init__(self, path: Path) -> None:
        draw = random.Random(7)
        texts = [" ".join(draw.choices(WORDS, k=draw.randrange(12))) for _ in range(200)]
        self.texts = [None if number % 10 == 0 else text for number, text in enumerate(texts)]
        self.dataset = lance.write_dataset(pa.table({"id": range(200), "t": self.texts}), str(path))
        self.dataset.create_scalar_index("t", "INVERTED", with_position=True, **ANALYSER)
        self.documents: list[AnalysedDocument] = [
            {} if text is None else {"t": column_words(analyse("t", text))} for text in self.texts
        ]
        live = [each["t"] for each in self.documents if each and each["t"].length]
        terms = {term for each in live for term in each.frequencies}
        counts = {term: sum(term in each.frequencies for each in live) for term in terms}
        self.corpus = {"t": Corpus(len(live), sum(each.length for each in live), counts)}

    def by_lance(self, query: Any) -> dict[int, float]:
        found = self.dataset.to_table(full_text_query=query, columns=["id", "_score"], limit=200)
        return {row["id"]: row["_score"] for row in found.to_pylist()}

    def by_model(self, text: str) -> dict[int, float]:
        query = self.expanded(text)
        found = {number: each for number, each in enumerate(self.documents) if matches(query, each)}
        return {number: score_document(query, each, self.corpus).value for number, each in found.items()}

    def expanded(self, text: str) -> AnalysedQuery:
        return expand(parse_query(text, ["t"]), analyse, normalise, NoVocabulary(), boosts={})


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    return Indexed(tmp_path_factory.mktemp("model") / "index")


@pytest.mark.parametrize(
    "text", ["data", "data lake", "lake lakes", "the arrow running", "数据库 東京", "apache data arrow lake"]
)
def test_scores_of_words_are_those_of_lance(indexed: Indexed, text: str) -> None:
    scores = indexed.by_model(text)
    assert len(scores) > 20
    assert scores == pytest.approx(indexed.by_lance(MatchQuery(text, "t")), rel=1e-5)


@pytest.mark.parametrize("text", ["data lake", "apache arrow", "数据库 東京", "lake the data", "lake lake"])
def test_exact_phrases_are_found_and_scored_as_lance_does(indexed: Indexed, text: str) -> None:
    scores, by_lance = indexed.by_model(f'"{text}"'), indexed.by_lance(PhraseQuery(text, "t"))
    assert scores
    assert scores == pytest.approx(by_lance, rel=1e-5)


def test_boolean_queries_find_what_lance_finds(indexed: Indexed) -> None:
    clauses = [(Occur.MUST, "data"), (Occur.SHOULD, "lake"), (Occur.MUST_NOT, "arrow")]
    query = BooleanQuery([(occur, MatchQuery(word, "t")) for occur, word in clauses])
    found = indexed.by_model("+data lake -arrow")
    assert len(found) > 20
    assert found == pytest.approx(indexed.by_lance(query), rel=1e-5)


def test_words_are_highlighted_where_they_are_written() -> None:
    text = "The Lakes and the running of 東京都 数据库"
    as_written = {"stem": False, "lower_case": False, "ascii_folding": False}
    kept = {**ANALYSER, "remove_stop_words": False, "max_token_length": None}
    surfaces = [each.text for each in lance.tokenize(text, **{**kept, **as_written})]
    terms = [each.text for each in lance.tokenize(text, **kept)]
    matched = {each.term for each in analyse("t", "lake run 数据库")}
    assert highlight(text, token_spans(text, surfaces, terms), matched, HighlightOptions("[", "]")) == (
        "The [Lakes] and the [running] of 東京都 [数据库]",
    )


def test_every_language_is_known_to_lance() -> None:
    for language in LANGUAGES:
        options = {**ANALYSER, "language": language.capitalize()}
        assert [each.text for each in lance.tokenize("2026", **options)] == ["2026"]
