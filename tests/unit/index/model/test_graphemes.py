"""Texts are cut between the characters that people see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.model.graphemes import (
    GRAPHEME_CHARS_MAX,
    boundary_at_or_after,
    boundary_at_or_before,
    is_boundary,
)

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
