"""Rankings are fused by ranks, whatever the order in which they and their keys come."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.errors import InvalidRequest
from iscp.index.model.fusion import RANK_CONSTANT, RANKINGS_MAX, FusedHit, Ranking, fuse, order_of


def test_scores_are_the_sums_of_the_formula() -> None:
    hits = fuse([Ranking(["a", "b", "c"]), Ranking(["b", "d"], 2.0)])
    assert [hit.key for hit in hits] == ["b", "d", "a", "c"]
    assert hits[0] == FusedHit("b", 1 / 62 + 2 / 61, (2, 1))
    assert hits[1] == FusedHit("d", 2 / 62, (None, 2))
    assert hits[3].score == pytest.approx(1 / (RANK_CONSTANT + 3))
    assert fuse([Ranking(["a"])], k=1)[0].score == 0.5


def test_equal_scores_are_ordered_by_key() -> None:
    assert [hit.key for hit in fuse([Ranking(["b", "c"]), Ranking(["a", "d"])])] == ["a", "b", "c", "d"]
    assert [hit.key for hit in fuse([Ranking([(2, "a")]), Ranking([(1, "b")])])] == [(1, "b"), (2, "a")]


def test_a_key_that_is_there_again_keeps_its_first_rank() -> None:
    assert [(hit.key, hit.ranks) for hit in fuse([Ranking(["a", "a", "b"])])] == [("a", (1,)), ("b", (2,))]


def test_a_ranking_without_weight_orders_nothing_but_is_there() -> None:
    hits = fuse([Ranking(["a", "b"]), Ranking(["z", "b"], 0.0)])
    assert [hit.key for hit in hits] == ["a", "b", "z"]
    assert hits[2].score == 0


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_rankings_does_not_matter(lists: list[list[int]], draw: random.Random) -> None:
    rankings = [Ranking(keys, 0.1 + 0.7 * number) for number, keys in enumerate(lists)]
    shuffled = rankings[:]
    draw.shuffle(shuffled)
    hits = fuse(rankings)
    assert [(hit.key, hit.score) for hit in hits] == [(hit.key, hit.score) for hit in fuse(shuffled)]
    for hit in hits:
        ranks = [list(dict.fromkeys(each.keys)).index(hit.key) if hit.key in each.keys else None for each in rankings]
        wanted = sum(each.weight / (61 + at) for each, at in zip(rankings, ranks, strict=True) if at is not None)
        assert hit.score == pytest.approx(wanted)
    assert {hit.key for hit in hits} == {key for keys in lists for key in keys}


def test_keys_of_any_types_have_an_order() -> None:
    keys: list[object] = [None, (1, None), 2, 1.5, Decimal("1.7"), "b", "a", b"x", True, float("nan"), frozenset()]
    ordered = sorted(keys, key=order_of)
    assert [repr(each) for each in ordered] == [
        *("None", "True", "1.5", "Decimal('1.7')", "2", "nan", "'a'", "'b'", "b'x'", "(1, None)", "frozenset()")
    ]
    keys.reverse()
    assert sorted(keys, key=order_of) == ordered


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_what_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="which is no weight"):
        fuse([Ranking(["a"], weight)])


def test_too_many_rankings_are_refused() -> None:
    assert len(fuse([Ranking(["a"])] * RANKINGS_MAX)) == 1
    with pytest.raises(InvalidRequest, match="fuses 17 rankings, more than 16"):
        fuse([Ranking(["a"])] * (RANKINGS_MAX + 1))
