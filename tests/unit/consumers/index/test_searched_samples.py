"""The words that a verification searches for follow from the counts alone, and are of each sort."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.consumers.index.searched_samples import WORDS_OF_EACH_SORT, sampled_words


def counts(rows: list[int]) -> pa.Table:
    return pa.table({"word": [f"w{each}" for each in range(len(rows))], "rows": rows})


@pytest.mark.parametrize("number", [0, 1, 2, 5, 20])
def test_of_a_few_words_each_is_searched_for_at_most_once(number: int) -> None:
    found = sampled_words(counts(list(range(number))))
    assert len(found) == len(set(found))
    assert set(found) <= {f"w{each}" for each in range(number)}
    assert bool(found) == bool(number)


def test_rare_words_middling_ones_and_the_most_common_are_searched_for() -> None:
    rows = [1] * 400 + [5] * 300 + [1_000 + each for each in range(300)]
    found = [int(word[1:]) for word in sampled_words(counts(rows[::-1]))]
    by_sort = [999 - each for each in found]
    assert len(found) == 3 * WORDS_OF_EACH_SORT
    assert sum(each < 333 for each in by_sort) == WORDS_OF_EACH_SORT
    assert sorted(by_sort)[-WORDS_OF_EACH_SORT:] == list(range(1_000 - WORDS_OF_EACH_SORT, 1_000))
