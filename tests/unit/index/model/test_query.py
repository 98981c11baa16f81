"""Queries of several have one form, which scores and matches as they do."""

from __future__ import annotations

from iscp.index.model.query import Boolean, Phrase, Words, boolean, boosted, leaves

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
