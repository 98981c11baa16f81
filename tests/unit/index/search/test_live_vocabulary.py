"""Tests the words that prefixes and fuzzy words stand for."""

from __future__ import annotations

import random
import string

import pyarrow as pa
import pytest

from iscp.index.lance.word_counts import CountFile, LiveCounts, merged_counts
from iscp.index.model.analysed_query import edit_distance
from iscp.index.search.live_vocabulary import LiveVocabulary, rows_with


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
