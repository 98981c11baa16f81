"""Fragments show the best places of a text, whole characters, and no more than allowed.

Texts are cut between the characters that people see, and have one form for words that are compared.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from typing import Any
from unicodedata import category, normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.index.model.highlighting import (
    FRAGMENT_CHARS_MAX,
    FRAGMENTS_MAX,
    GRAPHEME_CHARS_MAX,
    HIGHLIGHTED_CHARS_MAX,
    HighlightOptions,
    TokenSpan,
    boundary_at_or_after,
    boundary_at_or_before,
    fold,
    folded_with_places,
    highlight,
    is_boundary,
    token_spans,
)
from iscp.model.values.errors import InvalidRequest
from tests.selection import in_full


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


FAMILY = "👨‍👩‍👧‍👦"
CLUSTERS = [
    *("a", "数", "é", "e\u0301", "\r\n", "👍", "👍🏽", "❤\ufe0f", FAMILY, "🇩🇪", "🏴\U000e0067\U000e0062\U000e007f"),
    *("한", "\u1112\u1161\u11ab", "가\u11a8", "न\u0940", "\u0915\u094d\u0937", "か\u3099", "ｶ\uff9e", "g\u0308\u0323"),
    *("👍🏻", "👍🏿", "🇦🇿", "🏴\U000e0020", "\u1100\u1160", "\ua960\ud7b0\ud7cb", "각\u11a8", "\u115f\ud7c6\ud7fb"),
]


@given(st.lists(st.sampled_from([*CLUSTERS, " "]), max_size=12))
def test_boundaries_are_those_between_clusters(clusters: list[str]) -> None:
    """Neighbours are kept apart by a letter, since some would join, as two halves of a flag do."""
    text, wanted = "", {0}
    for cluster in clusters:
        text += cluster
        wanted.add(len(text))
        text += "x"
        wanted.add(len(text))
    assert {at for at in range(len(text) + 1) if is_boundary(text, at)} == wanted | {len(text)}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_cluster_is_found_from_within(cluster: str) -> None:
    text = f"数{cluster}x"
    for at in range(1, len(cluster) + 1):
        assert boundary_at_or_before(text, at) == 1
        assert boundary_at_or_after(text, at + 1) in (len(cluster) + 1, len(cluster) + 2)


def test_flags_in_a_row_are_cut_in_pairs() -> None:
    text = "🇩🇪🇫🇷🇯🇵" * 100
    assert {at for at in range(len(text) + 1) if is_boundary(text, at)} == set(range(0, len(text) + 1, 2))


def test_what_is_no_text_is_a_boundary() -> None:
    assert is_boundary("", 0)
    assert is_boundary("ab", -1)
    assert is_boundary("ab", 3)
    assert is_boundary("\u0301a", 0)
    assert all(is_boundary(f"{control}\u0301", 1) for control in "\n\r\x07\u2028\u2029")
    assert is_boundary("\u0300\r", 1)


@pytest.mark.parametrize("pair", ["각\u1161", "\u1100\u11a8", "\u11a8\u1161", "가가", "a\u1161", "\u11ff\u1100"])
def test_parts_of_different_syllables_are_cut(pair: str) -> None:
    assert is_boundary(pair, 1)


def test_marks_without_end_are_cut() -> None:
    text = "e" + "\u0301" * 10_000
    assert boundary_at_or_before(text, 5_000) == 5_000
    assert boundary_at_or_after(text, 5_000) == 5_000
    assert boundary_at_or_before(text, GRAPHEME_CHARS_MAX - 1) == 0


CHARACTERS = [each for each in map(chr, range(sys.maxunicode + 1)) if category(each) not in ("Cn", "Co", "Cs")]
"""All that is assigned: the others have no further form."""


def forms(text: str) -> dict[str, str]:
    normal = {form: normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    return {**normal, "upper": text.upper(), "lower": text.lower(), "folded": text.casefold()}


@pytest.mark.parametrize("context", ["ab {} cd", "a{}b", "i{}"])
def test_all_forms_of_each_character_are_folded_to_one(context: str) -> None:
    # One text has all of them, as a fold of each would take minutes; only where it differs is each looked at.
    text = "\n".join(context.format(each) for each in CHARACTERS)
    wanted = fold(text)
    for name, form in forms(text).items():
        assert fold(form) == wanted, name
    assert fold(wanted) == wanted


def test_the_case_is_left_and_the_dotless_i_is_another_letter_where_that_is_wanted() -> None:
    assert fold("\uff21e\u0301", case=False) == "A\xe9"
    assert (fold("\u0130stanbul"), fold("I\u015fIK"), fold("\u0131\u015f\u0131k")) == (
        "istanbul",
        "i\u015fik",
        "i\u015fik",
    )
    assert (fold("\u0131\u015f\u0131k", dotless=True), fold("\u0130z", dotless=True)) == ("\u0131\u015f\u0131k", "iz")
    assert fold("\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3") == fold("\u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2")


def test_folded_characters_know_where_they_have_come_from() -> None:
    text = "e\u0301 \ufb01n \uff8a\uff9e \u1100\u1161\u11a8!"
    folded = folded_with_places(text)
    assert folded.text == "\xe9 fin \u30d0 \uac01!"
    places = {folded.text[at]: text[slice(*folded.source(at, at + 1))] for at in range(len(folded.text))}
    assert places["\xe9"] == "e\u0301"
    assert places["f"] == places["i"] == "\ufb01"
    assert places["\u30d0"] == "\uff8a\uff9e"
    assert places["\uac01"] == "\u1100\u1161\u11a8"
    assert text[slice(*folded.source(2, 5))] == "\ufb01n"


@pytest.mark.parametrize("step", in_full([37, 1]))
@pytest.mark.parametrize("context", ["{}x", "a{}b", "\u1100{}\u11a8", "\uff76{}"])
def test_characters_that_are_folded_with_their_places_are_the_folded_text(context: str, step: int) -> None:
    text = "\n".join(context.format(each) for each in CHARACTERS[::step])
    folded = folded_with_places(text)
    assert folded.text == fold(text)
    assert len(folded.starts) == len(folded.ends) == len(folded.text)
    assert all(start < end for start, end in zip(folded.starts, folded.ends, strict=True))
