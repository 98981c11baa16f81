"""Tests the words that prefixes and fuzzy words stand for.

Tests the order of hits.
"""

from __future__ import annotations

import math
import random
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.lance.word_counts import CountFile, LiveCounts, merged_counts
from iscp.index.model.analysed_query import edit_distance
from iscp.index.search.searched_index import BestRows, LiveVocabulary, rows_with


def counts(*files: dict[str, int]) -> LiveCounts:
    """Counts of words of the column 1; another column has others."""
    made = []
    for file in files:
        words = [*file, "other"]
        table = pa.table(
            {"column": pa.array([1] * len(file) + [0], pa.int16()), "word": words, "rows": [*file.values(), 9]}
        )
        made.append(CountFile(merged_counts([table])))
    return LiveCounts(made)


def test_a_prefix_stands_for_the_words_of_live_rows_those_of_most_rows_first() -> None:
    vocabulary = LiveVocabulary(
        counts({"ab": 2, "abc": 5, "abd": 5, "b": 9, "ab\U0010ffff": 1}, {"abc": -5, "ab": 1, "abe": 4}), ("t", "u")
    )
    assert vocabulary.with_prefix("u", "ab", 10) == ["abd", "abe", "ab", "ab\U0010ffff"]
    assert vocabulary.with_prefix("u", "ab", 2) == ["abd", "abe"]
    assert vocabulary.with_prefix("u", "x", 2) == []
    assert vocabulary.with_prefix("t", "o", 2) == ["other"]
    assert LiveVocabulary(counts(), ("t",)).with_prefix("t", "a", 1) == []


def test_near_words_are_those_within_the_changes_the_nearest_first() -> None:
    vocabulary = LiveVocabulary(counts({"alpha": 1, "alpah": 2, "alph": 3, "beta": 4, "gone": 1}, {"gone": -1}), "tu")
    assert vocabulary.near("u", "alpha", 1, 10) == ["alpha", "alph", "alpah"]
    assert vocabulary.near("u", "alpha", 1, 2) == ["alpha", "alph"]
    assert vocabulary.near("u", "gone", 2, 10) == []


@pytest.mark.parametrize("distance", [1, 2])
def test_changes_are_those_of_the_model(distance: int) -> None:
    draw = random.Random(distance)
    words = sorted({"".join(draw.choices("abc", k=draw.randint(1, 6))) for _ in range(300)})
    vocabulary = LiveVocabulary(counts(dict.fromkeys(words, 1)), "tu")
    for term in words[::10]:
        wanted = {word for word in words if edit_distance(term, word) <= distance}
        assert set(vocabulary.near("u", term, distance, 1_000)) == wanted


def test_counts_of_many_words_are_those_of_each() -> None:
    files = counts({letter: number for number, letter in enumerate(string.ascii_letters)}, {"a": 3, "b": -1}).files
    words = [*string.ascii_letters, "none"]
    few = {word: sum(file.rows(1, word) for file in files) for word in words}
    assert rows_with(files, 1, words) == few
    assert rows_with(files, 1, words[:3]) == {word: few[word] for word in words[:3]}


SCORED = st.lists(st.one_of(st.sampled_from([1.0, 2.0, math.nan]), st.floats(-5, 5)), max_size=40)


@given(SCORED, st.integers(1, 8), st.integers(1, 15))
def test_the_best_are_kept_in_their_order_however_they_come(scores: list[float], most: int, size: int) -> None:
    keys = [f"{number * 7 % 41:02}" for number in range(len(scores))]
    best = BestRows(most)
    for begin in range(0, len(scores), size):
        part = slice(begin, begin + size)
        best.add(np.array(scores[part]), keys[part], list(range(begin, min(begin + size, len(scores)))))
    wanted = sorted((-score, key) for score, key in zip(scores, keys, strict=True) if not math.isnan(score))[:most]
    assert [(-row.score, row.key) for row in best.rows] == wanted
    assert all(scores[row.address] == row.score for row in best.rows)


@pytest.mark.parametrize(("score", "reached"), [(1.9, True), (2.0, True), (2.1, False)])
def test_what_is_missing_may_be_no_better_than_the_last(score: float, reached: bool) -> None:
    best = BestRows(2)
    best.add(np.array([3.0]), ["a"], [0])
    assert not best.reaches(0.0)
    best.add(np.array([2.0]), ["b"], [1])
    assert best.reaches(score) is reached


def test_a_restart_forgets_what_came_since() -> None:
    best = BestRows(2)
    best.add(np.array([1.0]), ["a"], [0])
    kept = best.rows
    best.add(np.array([2.0]), ["b"], [1])
    best.restart(kept)
    assert [row.key for row in best.rows] == ["a"]
