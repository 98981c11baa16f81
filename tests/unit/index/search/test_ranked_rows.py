"""Tests the order of hits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.search.ranked_rows import BestRows

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
