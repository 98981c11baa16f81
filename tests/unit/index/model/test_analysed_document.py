"""Documents are found by exactly what a query says: phrases by brute force, boolean queries by their truth table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.index.model.analysed_document import AnalysedDocument, column_words, matches, phrase_frequency
from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
)

LETTERS = "abcdef"


def words(text: str) -> tuple[AnalysedWord, ...]:
    return tuple(AnalysedWord(word, at) for at, word in enumerate(text.split()) if word != "_")


def document(**texts: str) -> AnalysedDocument:
    return {column: column_words(words(text)) for column, text in texts.items()}


def frequency(phrase: str, slop: int, text: str) -> float:
    return phrase_frequency(words(phrase), slop, column_words(words(text)).positions)


def test_a_column_counts_its_words() -> None:
    column = column_words(words("a b _ a"))
    assert (column.length, column.frequencies, column.positions) == (3, {"a": 2, "b": 1}, {"a": [0, 3], "b": [1]})


@pytest.mark.parametrize(
    ("phrase", "slop", "text", "count"),
    [
        ("a b", 0, "a b x a b", 2),
        ("a b", 0, "b a", 0),
        ("a b", 0, "a x b", 0),
        ("a b", 1, "a x b", 1 / 2),
        ("a b", 1, "b a", 0),
        ("a b", 2, "b a", 1 / 3),
        ("a b", 2, "a b a", 1),
        ("a b", 5, "a x b x x a b", 1 + 1 / 2),
        ("a _ b", 0, "a x b", 1),
        ("a _ b", 0, "a b", 0),
        ("a _ b", 1, "a b", 1 / 2),
        ("a a", 0, "a a a", 2),
        ("a a", 3, "x a x", 0),
        ("a a", 1, "a x a", 1 / 2),
        ("a b a", 0, "a b a b a", 2),
        ("a b a", 4, "a b", 0),
        ("a z", 9, "a b c", 0),
    ],
)
def test_a_phrase_counts_by_how_far_its_words_were_moved(phrase: str, slop: int, text: str, count: float) -> None:
    assert frequency(phrase, slop, text) == pytest.approx(count)


def is_there(phrase: Sequence[AnalysedWord], slop: int, text: Sequence[str]) -> bool:
    """Return whether some choice of different places has shifts that differ by at most `slop`."""
    places = [[at for at, word in enumerate(text) if word == each.term] for each in phrase]
    for choice in product(*places):
        shifts = [at - each.position for at, each in zip(choice, phrase, strict=True)]
        if len(set(choice)) == len(choice) and max(shifts) - min(shifts) <= slop:
            return True
    return False


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from("abc_"), min_size=2, max_size=4).map(" ".join).filter(words),
    st.integers(0, 6),
    st.lists(st.sampled_from("abcx"), max_size=10),
)
def test_a_phrase_is_found_where_some_choice_of_places_allows_it(phrase: str, slop: int, text: list[str]) -> None:
    count = frequency(phrase, slop, " ".join(text))
    assert (count > 0) == is_there(words(phrase), slop, text)
    assert count <= min(text.count(each.term) for each in words(phrase)) + 1e-9
    assert count <= frequency(phrase, slop + 1, " ".join(text)) + 1e-9
    if slop == 0:
        there = dict(enumerate(text))
        starts = range(-len(phrase), len(text))
        assert count == sum(all(there.get(at + each.position) == each.term for each in words(phrase)) for at in starts)


def test_a_document_is_found_in_the_column_that_is_searched() -> None:
    found = document(title="a b", body="b c")
    assert matches(AnalysedQuery(AnalysedLeaf((AnalysedTerm("title", "a", 1.0),))), found)
    assert not matches(AnalysedQuery(AnalysedLeaf((AnalysedTerm("body", "a", 1.0),))), found)
    assert not matches(AnalysedQuery(AnalysedLeaf((AnalysedTerm("more", "a", 1.0),))), found)
    assert matches(AnalysedQuery(AnalysedLeaf((AnalysedPhrase("body", words("b c"), 0, 1.0),))), found)
    assert not matches(AnalysedQuery(AnalysedLeaf((AnalysedPhrase("title", words("b c"), 0, 1.0),))), found)
    assert not matches(AnalysedQuery(AnalysedLeaf(())), found)
    assert not matches(AnalysedQuery(None), found)


LEAF: st.SearchStrategy[AnalysedNode] = st.sampled_from(LETTERS).map(
    lambda letter: AnalysedLeaf((AnalysedTerm("t", letter, 1.0),))
)


def groups(nodes: st.SearchStrategy[AnalysedNode]) -> st.SearchStrategy[AnalysedNode]:
    some = st.lists(nodes, max_size=3).map(tuple)
    return st.builds(AnalysedBoolean, some, some, some).filter(lambda each: bool(each.must or each.should))


def formula(node: AnalysedNode) -> str:
    """Return the query as an expression of Python over the letters that are there."""
    if isinstance(node, AnalysedLeaf):
        return " or ".join(f"{part.term!r} in there" for part in node.parts if isinstance(part, AnalysedTerm))
    must, should, must_not = (
        [f"({formula(each)})" for each in part] for part in (node.must, node.should, node.must_not)
    )
    positive = " and ".join(must) or " or ".join(should)
    return " and ".join([f"({positive})", *(f"not {each}" for each in must_not)])


@given(st.recursive(LEAF, groups, max_leaves=10))
def test_a_boolean_query_has_the_truth_table_of_its_formula(root: AnalysedNode) -> None:
    compiled = compile(formula(root), "formula", "eval")
    for chosen in product([False, True], repeat=len(LETTERS)):
        there = [letter for letter, is_in in zip(LETTERS, chosen, strict=True) if is_in]
        assert matches(AnalysedQuery(root), document(t=" ".join(there))) == eval(compiled, {"there": there})
