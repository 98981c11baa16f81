"""Queries are put into the words of an index by its analyser and its vocabulary, within bounds.

Documents are found by exactly what a query says: phrases by brute force, boolean queries by their truth table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.index.model.analysed_query import (
    EXPANSIONS_MAX,
    FUZZY_CHARS_MAX,
    AnalysedBoolean,
    AnalysedDocument,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
    AnalysedWord,
    column_words,
    edit_distance,
    expand,
    fuzzy_scale,
    matches,
    phrase_frequency,
)
from iscp.index.model.query_syntax import parse_query
from iscp.model.values.errors import InvalidRequest

STOP_WORDS = {"the", "of"}
TERMS = ["data", "database", "date", "delta", "lake"]


def analyse(_column: str, text: str) -> list[AnalysedWord]:
    """Words in lower case without an s at the end, and without stop words, whose places stay."""
    words = enumerate(text.lower().replace("-", " ").split())
    return [AnalysedWord(word.removesuffix("s"), at) for at, word in words if word not in STOP_WORDS]


def normalise(_column: str, text: str) -> list[str]:
    return text.lower().replace("-", " ").split()


class Listed:
    """A vocabulary that is a list."""

    def __init__(self, terms: Sequence[str]) -> None:
        self.terms = terms

    def with_prefix(self, _column: str, prefix: str, most: int) -> Sequence[str]:
        return [each for each in self.terms if each.startswith(prefix)][:most]

    def near(self, _column: str, term: str, distance: int, most: int) -> Sequence[str]:
        found = [each for each in self.terms if edit_distance(term, each) <= distance]
        return sorted(found, key=lambda each: edit_distance(term, each))[:most]


def expanded(text: str, columns: Sequence[str] = ("t",), terms: Sequence[str] = TERMS) -> AnalysedQuery:
    return expand(parse_query(text, columns), analyse, normalise, Listed(terms), boosts={"title": 2.0})


def terms(*words: str, boost: float = 1.0) -> AnalysedLeaf:
    return AnalysedLeaf(tuple(AnalysedTerm("t", word, boost) for word in words))


def test_words_are_those_of_the_analyser_in_each_column_with_its_boost() -> None:
    query = expanded("The Lakes^3", ("title", "body"))
    assert query.root == AnalysedLeaf((AnalysedTerm("title", "lake", 6.0), AnalysedTerm("body", "lake", 3.0)))
    assert expanded("lake Lakes").root == terms("lake", "lake")
    assert expanded("data-lake").root == terms("data", "lake")


def test_stop_words_have_no_clause_but_a_place_in_phrases() -> None:
    assert expanded("+the +lake -of").root == terms("lake")
    assert expanded("+the +lake house -of").root == AnalysedBoolean((terms("lake"),), (terms("house"),), ())
    assert expanded("the of").root is None
    assert expanded("+the -lake").root is None
    placed = (AnalysedWord("house", 0), AnalysedWord("lake", 3))
    assert expanded('"the house of the lake"~2^2').root == AnalysedLeaf((AnalysedPhrase("t", placed, 2, 2.0),))
    assert expanded('"the lakes"').root == terms("lake")
    assert expanded('"the of"').root is None


def test_prefixes_and_fuzzy_words_stand_for_words_that_are_there() -> None:
    assert expanded("Dat*").root == terms("data", "database", "date")
    assert expanded("xyz*").root == AnalysedLeaf(())
    near = expanded("dtaa~1").root
    assert near == AnalysedLeaf((AnalysedTerm("t", "data", 0.75),))
    assert expanded("data~").root == AnalysedLeaf(
        (AnalysedTerm("t", "data", 1.0), AnalysedTerm("t", "date", 0.75), AnalysedTerm("t", "delta", 0.5))
    )


def test_a_prefix_of_several_words_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 'data-la', which is 2 words in t"):
        expanded("data-la*")
    assert expanded('"x" -\\-*').root == terms("x")
    assert expanded("x -y").root == AnalysedBoolean((), (terms("x"),), (terms("y"),))


def test_words_beyond_the_bound_are_left_out_and_reported_or_refused() -> None:
    many = [f"w{number:03}" for number in range(EXPANSIONS_MAX + 1)]
    all_but_one = expanded("w*", terms=many)
    assert all_but_one.root == terms(*many[:EXPANSIONS_MAX])
    assert all_but_one.cut == ("w",)
    assert expanded("w*", terms=many[:-1]).cut == ()
    with pytest.raises(InvalidRequest, match="excludes more than 50 words of t by 'w'"):
        expanded("x -w*", terms=many)
    assert expanded("x -w*", terms=many[:-1]).cut == ()


def test_phrases_without_positions_are_refused() -> None:
    def without(text: str) -> AnalysedQuery:
        return expand(parse_query(text, ("t",)), analyse, normalise, Listed(()), boosts={}, positions=False)

    with pytest.raises(InvalidRequest, match="does not keep the places of words"):
        without('"delta lake"')
    assert without('"the lakes"').root == terms("lake")


def test_a_query_that_stands_for_too_many_words_is_refused() -> None:
    many = [f"w{number:03}" for number in range(EXPANSIONS_MAX)]
    columns = [f"c{number}" for number in range(20)]
    assert len(expanded(" ".join(["w*"] * 4), columns, many).terms()) == 20 * EXPANSIONS_MAX
    with pytest.raises(InvalidRequest, match="more than 4096 words of the index"):
        expanded(" ".join(["w*"] * 5), columns, many)
    assert len(expanded("x " * 256, [f"c{number}" for number in range(16)]).terms()) == 16
    assert expanded("a" * FUZZY_CHARS_MAX + "~").root == AnalysedLeaf(())
    with pytest.raises(InvalidRequest, match="a fuzzy word of 201 characters"):
        expanded("a" * (FUZZY_CHARS_MAX + 1) + "~")


def test_the_terms_that_score_are_not_those_that_exclude() -> None:
    query = expanded('+data "delta lake" -date*')
    assert query.terms() == {("t", "data"), ("t", "delta"), ("t", "lake")}
    assert query.all_terms() == query.terms() | {("t", "date")}
    assert expanded("the").all_terms() == frozenset()


def test_a_fuzzy_word_scores_less_the_more_it_differs() -> None:
    assert fuzzy_scale("wrod", "word", 1) == 0.75
    assert fuzzy_scale("wrod", "wrod", 2) == 1.0
    assert fuzzy_scale("ab", "abcd", 2) == 0.0
    assert fuzzy_scale("abcdef", "abcd", 1) == 0.0
    assert fuzzy_scale("ab", "cd", 1) == 0.0
    assert fuzzy_scale("abcd", "abxy", 1) == 0.0
    assert fuzzy_scale("abc", "abcd", 1) == 1 - 1 / 3
    assert fuzzy_scale("", "a", 1) == 0.0
    assert expanded("ab~", terms=["abcd"]).root == AnalysedLeaf(())


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_the_distance_is_that_of_the_best_alignment(one: str, other: str) -> None:
    @lru_cache(None)
    def best(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        found = [best(a[1:], b) + 1, best(a, b[1:]) + 1, best(a[1:], b[1:]) + (a[0] != b[0])]
        if len(a) > 1 and a[:2] == b[1::-1]:
            found.append(best(a[2:], b[2:]) + 1)
        return min(found)

    assert edit_distance(one, other) == edit_distance(other, one) == best(one, other)


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
