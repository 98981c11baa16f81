"""Texts are cut between the characters that people see, and have one form for words that are compared."""

from __future__ import annotations

import sys
from unicodedata import category, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.model.graphemes import (
    GRAPHEME_CHARS_MAX,
    boundary_at_or_after,
    boundary_at_or_before,
    fold,
    folded_with_places,
    is_boundary,
)
from tests.selection import in_full

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
