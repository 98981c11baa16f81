"""Which way a refresh is computed, from what changed and from what former refreshes took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.refresh_choice import (
    SAMPLES_MAX,
    SHARE_DEFAULT,
    Policy,
    RefreshSample,
    Strategy,
    choose_strategy,
    with_sample,
)

FULL_10_S = RefreshSample(Strategy.FULL, 1_000_000, 10.0)
CHANGES_1_S = RefreshSample(Strategy.INCREMENTAL, 1_000, 1.0)


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [(Policy.FULL, Strategy.FULL), (Policy.INCREMENTAL, Strategy.INCREMENTAL), (Policy.STRICT, Strategy.INCREMENTAL)],
)
def test_a_policy_that_says_which_is_followed_whatever_it_costs(policy: Policy, strategy: Strategy) -> None:
    slow = RefreshSample(strategy, 1, 1e9)
    assert choose_strategy(policy, 1, 1, (slow, FULL_10_S, CHANGES_1_S)).strategy is strategy


def test_without_experience_the_share_of_changed_bytes_decides() -> None:
    least = int(SHARE_DEFAULT * 1_000_000)
    assert choose_strategy(Policy.AUTO, least - 1, 1_000_000, ()).strategy is Strategy.INCREMENTAL
    assert choose_strategy(Policy.AUTO, least, 1_000_000, ()).strategy is Strategy.FULL
    assert choose_strategy(Policy.AUTO, 0, 0, ()).strategy is Strategy.FULL


def test_with_experience_of_both_the_faster_is_taken_and_both_expectations_are_said() -> None:
    small = choose_strategy(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, CHANGES_1_S))
    large = choose_strategy(Policy.AUTO, 20_000, 1_000_000, (FULL_10_S, CHANGES_1_S))
    assert (small.strategy, small.reason) == (Strategy.INCREMENTAL, "expected 1 s by changes, 10 s in full")
    assert (large.strategy, large.reason) == (Strategy.FULL, "expected 20 s by changes, 10 s in full")


def test_a_table_that_has_grown_is_expected_to_take_longer_in_full() -> None:
    assert choose_strategy(Policy.AUTO, 1_000, 3_000_000, (FULL_10_S, CHANGES_1_S)).reason.endswith("30 s in full")


@given(st.lists(st.sampled_from(list(Strategy)), max_size=40))
def test_the_last_few_of_each_way_are_remembered(strategies: list[Strategy]) -> None:
    samples: tuple[RefreshSample, ...] = ()
    for number, strategy in enumerate(strategies):
        samples = with_sample(samples, RefreshSample(strategy, number, float(number)))
    for strategy in Strategy:
        numbers = [number for number, each in enumerate(strategies) if each is strategy]
        assert [each.bytes for each in samples if each.strategy is strategy] == numbers[-SAMPLES_MAX:]
