"""Scores are those of the formula, over any corpus and in any order, and their explanation adds up.

Rankings are fused by ranks, whatever the order in which they and their keys come.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedDocument,
    AnalysedLeaf,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
    column_words,
    matches,
)
from iscp.index.model.ranking import (
    RANK_CONSTANT,
    RANKINGS_MAX,
    Corpus,
    Explanation,
    FusedHit,
    Ranking,
    frequency_weight,
    fuse,
    order_of,
    score_document,
)
from iscp.model.values.errors import InvalidRequest

LETTERS = "abcd"
TEXTS = st.lists(st.one_of(st.none(), st.lists(st.sampled_from(LETTERS), max_size=8)), min_size=1, max_size=12)


def words(text: list[str]) -> tuple[AnalysedWord, ...]:
    return tuple(AnalysedWord(word, at) for at, word in enumerate(text))


def document(**texts: list[str] | None) -> AnalysedDocument:
    return {column: column_words(words(text)) for column, text in texts.items() if text is not None}


def corpus(texts: list[list[str] | None]) -> Corpus:
    live = [text for text in texts if text]
    return Corpus(len(live), sum(map(len, live)), {each: sum(each in text for text in live) for each in LETTERS})


def term(letter: str, column: str = "t", boost: float = 1.0) -> AnalysedLeaf:
    return AnalysedLeaf((AnalysedTerm(column, letter, boost),))


def reference(letter: str, text: list[str] | None, texts: list[list[str] | None]) -> float:
    """The formula once more, written in another way: as in Robertson's paper, with exact fractions."""
    live = [each for each in texts if each]
    if not text or letter not in text:
        return 0.0
    having = len([None for each in live if letter in each])
    odds = Fraction(2 * len(live) + 2, 2 * having + 1)  # 1 + (N - n + 1/2) / (n + 1/2), with a common denominator
    mean = Fraction(sum(len(each) for each in live), len(live))
    k = Fraction(6, 5) * (Fraction(1, 4) + Fraction(3, 4) * len(text) / mean)
    return log(odds) * float(Fraction(11, 5) / (1 + k / text.count(letter)))


@settings(max_examples=200)
@given(TEXTS, st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4))
def test_a_score_is_the_sum_of_the_formula(texts: list[list[str] | None], letters: list[str]) -> None:
    query = AnalysedQuery(AnalysedLeaf(tuple(AnalysedTerm("t", each, 1.0) for each in letters)))
    for text in texts:
        score = score_document(query, document(t=text), {"t": corpus(texts)})
        assert score.value == pytest.approx(sum(reference(each, text, texts) for each in letters), rel=1e-12)
        assert (score.value > 0) == matches(query, document(t=text))


@given(TEXTS, TEXTS, st.floats(0.01, 100), st.floats(0.01, 100))
def test_columns_add_up_with_their_boosts(
    titles: list[list[str] | None], bodies: list[list[str] | None], one: float, other: float
) -> None:
    query = AnalysedQuery(AnalysedLeaf((AnalysedTerm("title", "a", one), AnalysedTerm("body", "a", other))))
    both = {"title": corpus(titles), "body": corpus(bodies)}
    for title, body in zip(titles, bodies, strict=False):
        wanted = one * reference("a", title, titles) + other * reference("a", body, bodies)
        assert score_document(query, document(title=title, body=body), both).value == pytest.approx(wanted, rel=1e-12)


def test_the_figures_are_those_of_lance() -> None:
    """The figures are `_score` of pylance 14.0.2, with the tokenizer `simple`, without stemming and stop words."""
    texts = ["apache arrow apache", "arrow rust", "apache spark is fast", "fast arrow flight arrow apache arrow"]
    split = [each.split() for each in [*texts, "nothing here at all"]]
    counts = {"apache": 3, "arrow": 3, "fast": 2}
    whole = {"t": Corpus(5, sum(map(len, split)), counts)}

    def scores(*terms: str) -> list[float]:
        query = AnalysedQuery(AnalysedLeaf(tuple(AnalysedTerm("t", each, 1.0) for each in terms)))
        return [score_document(query, document(t=text), whole).value for text in split]

    assert scores("apache") == pytest.approx([0.78776, 0, 0.52764, 0.43578, 0], abs=1e-5)
    assert scores("apache", "arrow") == pytest.approx([1.37756, 0.66855, 0.52764, 1.1893, 0], abs=1e-5)
    assert scores("apache", "apache") == pytest.approx([1.57553, 0, 1.05527, 0.87157, 0], abs=1e-5)
    assert scores("arrow", "fast", "apache") == pytest.approx([1.37756, 0.66855, 1.38465, 1.89712, 0], abs=1e-5)


@given(TEXTS, st.integers(0, 4))
def test_a_phrase_scores_as_its_words_do_where_it_is_found(texts: list[list[str] | None], slop: int) -> None:
    phrase = AnalysedQuery(AnalysedLeaf((AnalysedPhrase("t", words(["a", "b", "a"]), slop, 2.0),)))
    apart = AnalysedQuery(AnalysedLeaf(tuple(AnalysedTerm("t", each, 2.0) for each in "aba")))
    for text in texts:
        found = document(t=text)
        score = score_document(phrase, found, {"t": corpus(texts)}).value
        of_words = score_document(apart, found, {"t": corpus(texts)}).value
        assert score == (of_words if matches(phrase, found) else 0)


def test_parts_that_do_not_find_the_document_and_what_is_excluded_add_nothing() -> None:
    texts: list[list[str] | None] = [["a", "b"], ["b", "c"], ["d"]]
    whole = {"t": corpus(texts)}
    inner = AnalysedBoolean((term("b"), term("c")), (), ())
    query = AnalysedQuery(AnalysedBoolean((term("a"),), (inner, term("b")), (term("d"),)))
    wanted = reference("a", texts[0], texts) + reference("b", texts[0], texts)
    assert score_document(query, document(t=texts[0]), whole).value == pytest.approx(wanted)
    for text in (texts[1], ["a", "d"], None):
        assert score_document(query, document(t=text), whole).value == 0
    assert score_document(AnalysedQuery(None), document(t=texts[0]), whole).parts == ()


def test_a_score_does_not_depend_on_the_order_of_the_words() -> None:
    draw = random.Random(3)
    texts: list[list[str] | None] = [[draw.choice(LETTERS) for _ in range(draw.randrange(9))] for _ in range(20)]
    parts = [AnalysedTerm("t", letter, boost) for letter in LETTERS for boost in (0.1, 0.2, 0.3, 1.7)]
    for _ in range(20):
        draw.shuffle(parts)
        scores = {
            score_document(AnalysedQuery(AnalysedLeaf(tuple(order))), document(t=texts[0]), {"t": corpus(texts)}).value
            for order in (parts, parts[::-1], sorted(parts, key=lambda part: part.boost))
        }
        assert len(scores) == 1


def check(explanation: Explanation, total: float) -> None:
    assert explanation.value == pytest.approx(total)
    for part in explanation.details:
        boost, idf, weight = part.details
        assert boost.value * idf.value * weight.value == pytest.approx(part.value)
    assert sum(part.value for part in explanation.details) == pytest.approx(total)


def test_an_explanation_adds_up_and_can_be_read() -> None:
    texts: list[list[str] | None] = [["a", "b", "a"], ["b", "c"], ["d"]]
    query = AnalysedQuery(AnalysedLeaf((AnalysedTerm("t", "a", 2.0), AnalysedPhrase("t", words(["a", "b"]), 1, 1.0))))
    score = score_document(query, document(t=texts[0]), {"t": corpus(texts)})
    explanation = score.explanation()
    check(explanation, score.value)
    lines = explanation.explained().splitlines()
    assert lines[0].endswith(" = score: sum of")
    assert lines[1].endswith(" = t:a: boost * idf * weight")
    assert "      3 = documents with t" in lines
    assert "      1 = documents with a" in lines
    assert lines[-1].endswith(" = b")
    written = json.loads(json.dumps(explanation.to_dict()))
    assert written["value"] == score.value
    assert [each["description"].partition(":")[0] for each in written["details"]] == ["t", "t", "t"]


def test_counts_that_contradict_the_corpus_are_refused() -> None:
    assert Corpus(2, 4, lambda term: len(term)).count("ab") == 2
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="of 2 documents have 'a'"):
            Corpus(2, 4, {"a": wrong}).idf("a")
    assert Corpus(2, 4, {}).count("a") == 0
    assert Corpus(2, 4, {"a": 2}).count("a") == 2
    assert Corpus(0, 0, {}).average_length == 0
    assert frequency_weight(0, 0, 0) == 0
    assert frequency_weight(1, 3, 0) == frequency_weight(1, 3, 3) == 1


def test_scores_are_the_sums_of_the_formula() -> None:
    hits = fuse([Ranking(["a", "b", "c"]), Ranking(["b", "d"], 2.0)])
    assert [hit.key for hit in hits] == ["b", "d", "a", "c"]
    assert hits[0] == FusedHit("b", 1 / 62 + 2 / 61, (2, 1))
    assert hits[1] == FusedHit("d", 2 / 62, (None, 2))
    assert hits[3].score == pytest.approx(1 / (RANK_CONSTANT + 3))
    assert fuse([Ranking(["a"])], k=1)[0].score == 0.5


def test_equal_scores_are_ordered_by_key() -> None:
    assert [hit.key for hit in fuse([Ranking(["b", "c"]), Ranking(["a", "d"])])] == ["a", "b", "c", "d"]
    assert [hit.key for hit in fuse([Ranking([(2, "a")]), Ranking([(1, "b")])])] == [(1, "b"), (2, "a")]


def test_a_key_that_is_there_again_keeps_its_first_rank() -> None:
    assert [(hit.key, hit.ranks) for hit in fuse([Ranking(["a", "a", "b"])])] == [("a", (1,)), ("b", (2,))]


def test_a_ranking_without_weight_orders_nothing_but_is_there() -> None:
    hits = fuse([Ranking(["a", "b"]), Ranking(["z", "b"], 0.0)])
    assert [hit.key for hit in hits] == ["a", "b", "z"]
    assert hits[2].score == 0


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_rankings_does_not_matter(lists: list[list[int]], draw: random.Random) -> None:
    rankings = [Ranking(keys, 0.1 + 0.7 * number) for number, keys in enumerate(lists)]
    shuffled = rankings[:]
    draw.shuffle(shuffled)
    hits = fuse(rankings)
    assert [(hit.key, hit.score) for hit in hits] == [(hit.key, hit.score) for hit in fuse(shuffled)]
    for hit in hits:
        ranks = [list(dict.fromkeys(each.keys)).index(hit.key) if hit.key in each.keys else None for each in rankings]
        wanted = sum(each.weight / (61 + at) for each, at in zip(rankings, ranks, strict=True) if at is not None)
        assert hit.score == pytest.approx(wanted)
    assert {hit.key for hit in hits} == {key for keys in lists for key in keys}


def test_keys_of_any_types_have_an_order() -> None:
    keys: list[object] = [None, (1, None), 2, 1.5, Decimal("1.7"), "b", "a", b"x", True, float("nan"), frozenset()]
    ordered = sorted(keys, key=order_of)
    assert [repr(each) for each in ordered] == [
        *("None", "True", "1.5", "Decimal('1.7')", "2", "nan", "'a'", "'b'", "b'x'", "(1, None)", "frozenset()")
    ]
    keys.reverse()
    assert sorted(keys, key=order_of) == ordered


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_what_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="which is no weight"):
        fuse([Ranking(["a"], weight)])


def test_too_many_rankings_are_refused() -> None:
    assert len(fuse([Ranking(["a"])] * RANKINGS_MAX)) == 1
    with pytest.raises(InvalidRequest, match="fuses 17 rankings, more than 16"):
        fuse([Ranking(["a"])] * (RANKINGS_MAX + 1))
