"""Queries are parsed as users of Lucene expect, and what is unclear is refused with its place.

Queries of several have one form, which scores and matches as they do.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.model.query_syntax import (
    CLAUSES_MAX,
    GROUP_DEPTH_MAX,
    Boolean,
    Fuzzy,
    Phrase,
    Prefix,
    Query,
    Words,
    boolean,
    boosted,
    leaves,
    parse_query,
    to_text,
)
from iscp.model.api.api_requests import SEARCH_TEXT_CHARS_MAX
from iscp.model.values.errors import InvalidRequest

COLUMNS = ("Title", "body")
TITLE = ("Title",)


def words(text: str, columns: tuple[str, ...] = COLUMNS, boost: float = 1.0) -> Words:
    return Words(text, columns, boost)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("apache", words("apache")),
        ("  apache \t arrow\u3000数据库 ", words("apache arrow 数据库")),
        ("apache OR arrow", words("apache arrow")),
        ("apache || arrow", words("apache arrow")),
        ("+apache -arrow", Boolean(must=(words("apache"),), must_not=(words("arrow"),))),
        ("+apache rust", Boolean(must=(words("apache"),), should=(words("rust"),))),
        ("apache AND arrow", Boolean(must=(words("apache"), words("arrow")))),
        ("apache && !arrow", Boolean(must=(words("apache"),), must_not=(words("arrow"),))),
        ("apache AND -arrow", Boolean(must=(words("apache"),), must_not=(words("arrow"),))),
        ("apache NOT arrow", Boolean(should=(words("apache"),), must_not=(words("arrow"),))),
        ("apache NOT (a b)", Boolean(should=(words("apache"),), must_not=(words("a b"),))),
        ("(a AND b) OR c", Boolean(should=(Boolean(must=(words("a"), words("b"))), words("c")))),
        ("a AND(b OR c)", Boolean(must=(words("a"), words("b c")))),
        ("((a b)) c", words("a b c")),
        ('"a phrase"', Phrase("a phrase", 0, COLUMNS)),
        ('"a  phrase"~2^3', Phrase("a phrase", 2, COLUMNS, 3.0)),
        (r'"a \"phrase\" \\"', Phrase('a "phrase" \\', 0, COLUMNS)),
        ("data*", Prefix("data", COLUMNS)),
        ("data*^0.5", Prefix("data", COLUMNS, 0.5)),
        ("wrod~", Fuzzy("wrod", 2, COLUMNS)),
        ("wrod~1", Fuzzy("wrod", 1, COLUMNS)),
        ("title:wrod~2^4", Fuzzy("wrod", 2, TITLE, 4.0)),
        ("title:word", words("word", TITLE)),
        ("TITLE:(a b)", words("a b", TITLE)),
        ('title:"a b"', Phrase("a b", 0, TITLE)),
        ("title:a title:b c", Boolean(should=(words("a b", TITLE), words("c")))),
        ("title:(a body:b)", Boolean(should=(words("a", TITLE), words("b", ("body",))))),
        ("word^2.5", words("word", boost=2.5)),
        ("a b^2 c", Boolean(should=(words("a"), words("b", boost=2.0), words("c")))),
        ("(a b^2)^3", Boolean(should=(words("a", boost=3.0), words("b", boost=6.0)))),
        (r"\-1 1\+1 C\:\\dir", words(r"-1 1+1 C:\dir")),
        (r"a\ b*", Prefix("a b", COLUMNS)),
        (r"\AND and not", words("AND and not")),
        ("ANDY ORacle", words("ANDY ORacle")),
        ("re-read and/or a=b C&A", words("re-read and/or a=b C&A")),
    ],
)
def test_a_query_is_parsed(text: str, tree: Query) -> None:
    assert parse_query(text, COLUMNS) == tree
    assert parse_query(to_text(tree), COLUMNS) == tree


@pytest.mark.parametrize(
    ("text", "at", "fault"),
    [
        ("", 1, "nothing to search for"),
        ("  ", 1, "nothing to search for"),
        ("-a", 1, "only excludes"),
        ("NOT a", 1, "only excludes"),
        ("b OR (-a)", 7, "only excludes"),
        ("a ()", 4, "nothing to search for"),
        ("(a", 1, "not closed"),
        ("a)", 2, "not open"),
        ('a "b', 3, "not closed"),
        ('""', 1, "phrase is empty"),
        ("a AND", 6, "nothing to search for"),
        ("AND a", 1, "nothing before it"),
        ("a AND OR b", 7, "nothing before it"),
        ("a OR b AND c", 8, "AND stands beside"),
        ("a b AND c", 5, "AND stands beside"),
        ("a AND b c", 9, "AND stands beside"),
        ("a OR -b", 6, "stands beside OR"),
        ("a - b", 3, "stands alone"),
        ("a +", 3, "stands alone"),
        ("a +-b", 4, "second sign"),
        ("a NOT NOT b", 7, "second sign"),
        ("*", 1, "no beginning"),
        ("a*b", 3, "without a blank"),
        ("a?b", 2, "within a word"),
        ("hello!", 6, "within a word"),
        ("?", 1, "any character"),
        ('a"b"', 2, "without a blank"),
        ("a(b)", 2, "without a blank"),
        ("(a)b", 4, "without a blank"),
        ("a~3", 3, "no number of changes"),
        ("a~0", 3, "no number of changes"),
        ("a~0.8", 3, "no number of changes"),
        ('"a b"~101', 7, "no number of places"),
        ('"a b"~', 7, "a number of places"),
        ("a^", 3, "a number"),
        ("a^0", 2, "boost is not between"),
        ("a^1001", 2, "boost is not between"),
        ("((a^100)^100)", 9, "boost is not between"),
        ("a^2~1", 4, "without a blank"),
        ("[1 TO 2]", 1, "begins a range"),
        (">10", 1, "begins a range"),
        ("title:[1 TO 2]", 7, "begins a range"),
        ("/a.b/", 1, "regular expression"),
        ("title: a", 7, "no word behind the column"),
        ("title:", 7, "no word behind the column"),
        ("title:-a", 7, "no word behind the column"),
        ("title:body:a", 11, "second colon"),
        (":a", 1, "no column"),
        ("a\\", 2, "last character"),
        ("\\ ", 1, "word is empty"),
        ("a \ud800", 3, "half a character"),
    ],
)
def test_what_is_unclear_is_refused_with_its_place(text: str, at: int, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault) as refused:
        parse_query(text, COLUMNS)
    assert refused.value.field == "query"
    assert f"at character {at}: " in refused.value.message
    assert refused.value.remedy


def test_a_column_that_is_not_searched_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidRequest, match="names the column 'http' at character 3") as refused:
        parse_query("a http://x", COLUMNS)
    assert "Title, body" in refused.value.remedy
    with pytest.raises(InvalidRequest, match="no columns to search in"):
        parse_query("a", ())


def test_the_only_column_is_named() -> None:
    tree = parse_query("a b", ("my column",))
    assert tree == Words("a b", ("my column",))
    assert to_text(tree) == r"my\ column:a my\ column:b"
    assert parse_query(to_text(tree), ("my column",)) == tree


def test_bounds_hold() -> None:
    assert parse_query("a " * CLAUSES_MAX, COLUMNS) == words(" ".join("a" * CLAUSES_MAX))
    with pytest.raises(InvalidRequest, match="more than 256 words and phrases"):
        parse_query("a " * (CLAUSES_MAX + 1), COLUMNS)
    deep = GROUP_DEPTH_MAX
    assert parse_query("(" * deep + "a" + ")" * deep, COLUMNS) == words("a")
    with pytest.raises(InvalidRequest, match="at character 21: more than 20 parentheses"):
        parse_query("(" * (deep + 1) + "a" + ")" * (deep + 1), COLUMNS)
    assert parse_query("a" * SEARCH_TEXT_CHARS_MAX, COLUMNS) == words("a" * SEARCH_TEXT_CHARS_MAX)
    with pytest.raises(InvalidRequest, match="has 8001 characters, more than 8000"):
        parse_query("a" * (SEARCH_TEXT_CHARS_MAX + 1), COLUMNS)


SIGNS = st.sampled_from([*'ab 数é+-!()":^~*?\\[]{}/<>=&|.12', " AND ", " OR ", " NOT ", "title:", "body:(", "^2"])


@given(st.lists(SIGNS, max_size=40).map("".join))
def test_any_text_is_refused_in_order_or_has_a_text_of_its_own(text: str) -> None:
    tree, refused = parsed(text)
    if tree is None:
        assert refused is not None
        assert refused.field == "query"
        assert refused.remedy
    else:
        assert parsed(to_text(tree)) == (tree, None)


def parsed(text: str) -> tuple[Query | None, InvalidRequest | None]:
    try:
        return parse_query(text, COLUMNS), None
    except InvalidRequest as error:
        return None, error


WORD = st.one_of(
    st.text('ab数é👍\u0301+-!():"^~*?\\[]{}/<>=&|.12', min_size=1, max_size=6),
    st.sampled_from(["AND", "OR", "NOT", "&&", "||", "+a", "-", "a:b", "/re/", "*", "\\"]),
)
TEXT = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
COLUMN = st.sampled_from([COLUMNS, TITLE, ("body",)])
BOOST = st.one_of(st.just(1.0), st.floats(0.001, 1000))


@st.composite
def single(draw: st.DrawFn) -> Query:
    text, columns, boost = draw(TEXT), draw(COLUMN), draw(BOOST)
    kinds: list[Query] = [
        Words(text, columns, boost),
        Phrase(text, draw(st.integers(0, 100)), columns, boost),
        Prefix(text, columns, boost),
        Fuzzy(text, draw(st.integers(1, 2)), columns, boost),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def groups(draw: st.DrawFn, queries: st.SearchStrategy[Query]) -> Query:
    must, should, must_not = (draw(st.lists(queries, max_size=3)) for _ in range(3))
    return boolean(must, should if must else [*should, draw(queries)], must_not)


@given(st.recursive(single(), groups, max_leaves=12))
def test_a_tree_has_a_text_that_gives_it_back(tree: Query) -> None:
    assert parse_query(to_text(tree), COLUMNS) == tree


@pytest.mark.parametrize("part", ["a\\", '"', "(", "a~", "\\ ", "+", "a:", "NOT ", " ", "^1", '"a"~'])
def test_the_time_grows_with_the_length_alone(part: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidRequest):
        parse_query((part * SEARCH_TEXT_CHARS_MAX)[:SEARCH_TEXT_CHARS_MAX], COLUMNS)
    assert time.process_time() - start < 1


BOTH = ("title", "body")
A, B = Words("a", BOTH), Words("b", BOTH)
PHRASE = Phrase("a b", 1, BOTH)


def test_a_query_of_one_is_that_one() -> None:
    assert boolean(must=[A]) == A
    assert boolean(should=[PHRASE]) == PHRASE
    assert boolean(must=[A], must_not=[B]) == Boolean(must=(A,), must_not=(B,))


def test_neighbouring_words_that_should_match_are_one_text() -> None:
    assert boolean(should=[A, B, A]) == Words("a b a", BOTH)
    assert boolean(should=[A, PHRASE, B, A]) == Boolean(should=(A, PHRASE, Words("b a", BOTH)))
    assert boolean(should=[A, Words("b", BOTH, 2.0)]) == Boolean(should=(A, Words("b", BOTH, 2.0)))
    assert boolean(should=[A, Words("b", ("title",))]) == Boolean(should=(A, Words("b", ("title",))))
    assert boolean(must=[A, B]) == Boolean(must=(A, B))


def test_a_boost_goes_to_all_leaves() -> None:
    whole = Boolean(must=(A,), should=(Boolean(should=(PHRASE, B)),), must_not=(B,))
    assert [each.boost for each in leaves(boosted(boosted(whole, 2.0), 3.0))] == [6.0] * 4
    assert [each.boost for each in leaves(whole)] == [1.0] * 4


def test_words_whose_boosts_become_equal_are_joined() -> None:
    """Two boosts that differ in their last bit may have one product."""
    one, other, factor = 7.857142857142857, 7.857142857142858, 1.02
    assert one != other
    assert one * factor == other * factor
    apart = boolean(should=[Words("a", BOTH, one), Words("b", BOTH, other)])
    assert boosted(apart, factor) == Words("a b", BOTH, one * factor)
