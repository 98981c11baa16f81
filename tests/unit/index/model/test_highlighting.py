"""Fragments show the best places of a text, whole characters, and no more than allowed."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.core.values.errors import InvalidRequest
from iscp.index.model.graphemes import is_boundary
from iscp.index.model.highlighting import (
    FRAGMENT_CHARS_MAX,
    FRAGMENTS_MAX,
    HIGHLIGHTED_CHARS_MAX,
    HighlightOptions,
    TokenSpan,
    highlight,
    token_spans,
)


def spans(text: str) -> list[TokenSpan]:
    return [TokenSpan(found.start(), found.end(), found[0].lower()) for found in re.finditer(r"\w+", text)]


def shown(text: str, *terms: str, **options: Any) -> tuple[str, ...]:
    return highlight(text, spans(text), terms, replace(HighlightOptions("[", "]"), **options))


def test_matched_words_are_marked() -> None:
    assert highlight("The Lake.", spans("The Lake."), {"lake"}) == ("The <em>Lake</em>.",)
    assert shown("a lake of data", "lake", "data") == ("a [lake] of [data]",)
    assert shown("no such word", "lake") == ()
    assert shown("  a lake  \n", "lake") == ("a [lake]",)
    assert shown("", "lake") == ()


def test_neighbours_are_marked_as_one() -> None:
    assert shown("a data  lake, house", "data", "lake", "house") == ("a [data  lake], [house]",)
    touching = [TokenSpan(0, 2, "数据"), TokenSpan(2, 3, "库")]
    assert highlight("数据库索引", touching, {"数据", "库"}, HighlightOptions("[", "]")) == ("[数据库]索引",)
    assert shown("abcde abcde abcdefgh", "abcde", "abcdefgh", fragment_chars=20) == ("[abcde abcde abcdefgh]",)
    grams = [TokenSpan(at, at + 3, "x") for at in range(4)]
    assert highlight("abcdefgh", grams, {"x"}, HighlightOptions("[", "]")) == ("[abcdef]gh",)


def test_the_text_is_escaped_and_the_marks_are_not() -> None:
    text = '<b>lake</b> & "x"'
    options = HighlightOptions('<em class="x">', "</em>", html=True)
    assert highlight(text, spans(text), {"lake", "b"}, options) == (
        '&lt;<em class="x">b</em>&gt;<em class="x">lake</em>&lt;/<em class="x">b</em>&gt; &amp; "x"',
    )
    assert highlight(text, spans(text), {"lake"}) == ('<b><em>lake</em></b> & "x"',)


def test_the_best_fragments_are_taken_in_the_order_of_the_text() -> None:
    filler = " ".join(["filler"] * 20)
    text = f"one lake {filler} lake lake {filler} data lake {filler} data"
    assert shown(text, "lake", "data", fragments=1, fragment_chars=30) == ("filler [data lake] filler filler",)
    two = shown(text, "lake", "data", fragments=2, fragment_chars=30)
    assert two == ("filler [lake lake] filler filler", "filler [data lake] filler filler")
    three = shown(text, "lake", "data", fragments=3, fragment_chars=30)
    assert three[0] == "one [lake] filler filler filler"
    assert three[1:] == two
    assert shown(text, "lake", "data", fragments=4, fragment_chars=30)[3].endswith("filler [data]")


def test_more_different_words_are_better_than_more_of_one() -> None:
    text = f"data lake {'filler ' * 20} house house house"
    assert shown(text, "data", "lake", "house", fragments=1, fragment_chars=20) == ("[data lake] filler",)


def test_words_are_not_cut_where_blanks_are_near() -> None:
    text = "abcdefgh ijklmnop lake qrstuvwx yzabcdef"
    assert shown(text, "lake", fragment_chars=20) == ("[lake] qrstuvwx",)
    assert shown("x" * 50 + "_lake_" + "y" * 50 + " lake", "lake", fragment_chars=40) == ("y" * 35 + " [lake]",)


def test_texts_without_blanks_are_cut_between_characters() -> None:
    text = "東京都の数据库索引" * 20 + "湖" + "数据库索引" * 40
    at = text.index("湖")
    (found,) = highlight(text, [TokenSpan(at, at + 1, "湖")], {"湖"}, HighlightOptions("[", "]", fragment_chars=21))
    assert found == f"{text[at - 10 : at]}[湖]{text[at + 1 : at + 11]}"


def test_emoji_and_marks_stay_whole() -> None:
    family = "👨‍👩‍👧‍👦"
    text = family * 10 + "e\u0301lan" + family * 10
    at = text.index("e\u0301")
    (found,) = highlight(text, [TokenSpan(at, at + 1, "e")], {"e"}, HighlightOptions("[", "]", fragment_chars=30))
    assert found == f"{family * 2}[e\u0301]lan{family}"


def test_a_word_that_is_longer_than_a_fragment_is_cut() -> None:
    text = f"a {'👍🏽' * 100} b"
    (found,) = highlight(
        text, [TokenSpan(2, 202, "x"), TokenSpan(4, 202, "x")], {"x"}, HighlightOptions("[", "]", fragment_chars=21)
    )
    assert found == f"[{'👍🏽' * 10}]"


def test_a_character_that_is_longer_than_a_fragment_is_cut() -> None:
    text = "e" + "\u0301" * 40
    options = HighlightOptions("[", "]", fragment_chars=20)
    assert highlight(text, [TokenSpan(0, 1, "x")], {"x"}, options) == (f"[{text[:20]}]",)


def test_blanks_within_a_marked_word_do_not_shorten_it() -> None:
    text = "abcde abcde abcdefghij"
    options = HighlightOptions("[", "]", fragment_chars=20)
    assert highlight(text, [TokenSpan(0, 20, "x")], {"x"}, options) == ("[abcde abcde abcdefgh]",)


def test_spans_that_are_not_in_the_text_are_left_out() -> None:
    wrong = [TokenSpan(5, 9, "x"), TokenSpan(-1, 2, "x"), TokenSpan(2, 2, "x"), TokenSpan(3, 1, "x")]
    assert highlight("abcd", wrong, {"x"}) == ()
    far = "lake " * (HIGHLIGHTED_CHARS_MAX // 5) + "data"
    assert shown(far, "data") == ()


PARTS = ["lake", "data", "數", "据", "👍🏽", "🇩🇪", "e\u0301", " ", " ", "\n", ".", "x" * 30, "👨‍👩‍👧‍👦", "<&>"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PARTS), max_size=60), st.integers(20, 60), st.integers(1, 5), st.data())
def test_fragments_are_parts_of_the_text_with_whole_characters(
    parts: list[str], chars: int, most: int, data: st.DataObject
) -> None:
    text = "".join(parts)
    places = st.integers(0, len(text))
    some = data.draw(st.lists(st.builds(TokenSpan, places, places, st.sampled_from(["a", "b", "c"])), max_size=12))
    found = highlight(text, some, {"a", "b"}, HighlightOptions("\x01", "\x02", most, chars))
    there = [each for each in some if each.term != "c" and each.start < each.end]
    assert bool(found) == bool(there)
    assert len(found) <= most
    at = 0
    for fragment in found:
        plain = re.sub("[\x01\x02]", "", fragment)
        assert 0 < len(plain) <= chars
        at = text.index(plain, at)
        assert re.fullmatch("([^\x01\x02]*\x01[^\x01\x02]+\x02)+[^\x01\x02]*", fragment)
        assert is_boundary(text, at) or text.count(plain) > 1
        assert is_boundary(text, at + len(plain)) or text.count(plain) > 1


def test_a_text_that_is_all_hits_is_highlighted_in_time() -> None:
    text = "lake " * (HIGHLIGHTED_CHARS_MAX // 5)
    all_of_it = spans(text)
    start = time.process_time()
    found = highlight(text, all_of_it, {"lake"}, HighlightOptions("[", "]", FRAGMENTS_MAX, 50))
    assert time.process_time() - start < 5
    assert found == (f"[{'lake ' * 9}lake]",) * FRAGMENTS_MAX


def test_the_places_of_words_are_found_in_the_text() -> None:
    text = "The lakes and the Lakes"
    found = token_spans(text, text.split(), ["the", "lake", "and", "the", "lake"])
    assert [(text[each.start : each.end], each.start, each.term) for each in found] == [
        *(("The", 0, "the"), ("lakes", 4, "lake"), ("and", 10, "and"), ("the", 14, "the"), ("Lakes", 18, "lake"))
    ]
    assert token_spans("a b", ["a", "x", "", "b"], ["a", "x", "", "b"]) == [TokenSpan(0, 1, "a"), TokenSpan(2, 3, "b")]


def test_the_places_of_overlapping_grams_are_found() -> None:
    text = "aaab"
    grams = ["aa", "aaa", "aa", "aab", "ab"]
    found = token_spans(text, grams, grams, overlapping=True)
    assert [(each.start, each.end) for each in found] == [(0, 2), (0, 3), (1, 3), (1, 4), (2, 4)]
    assert [each.start for each in token_spans("aaa", ["aa", "aa"], ["aa", "aa"], overlapping=True)] == [0, 1]
    assert [each.start for each in token_spans("aa a", ["aa", "a"], ["aa", "a"])] == [0, 3]
    with pytest.raises(ValueError, match="zip"):
        token_spans("aa a", ["aa", "a"], ["aa"])


def test_options_at_their_bounds_are_taken() -> None:
    assert HighlightOptions("x" * 200, "y" * 200, FRAGMENTS_MAX, FRAGMENT_CHARS_MAX).html is False
    assert HighlightOptions("", "", 1, 20).fragments == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"fragments": 0}, "fragments"),
        ({"fragments": FRAGMENTS_MAX + 1}, "fragments"),
        ({"fragment_chars": 19}, "fragment_chars"),
        ({"fragment_chars": FRAGMENT_CHARS_MAX + 1}, "fragment_chars"),
        ({"before": "x" * 201}, "before"),
        ({"after": "x" * 201}, "after"),
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        HighlightOptions(**options)  # type: ignore[arg-type]
    assert refused.value.field == f"highlight.{field}"
