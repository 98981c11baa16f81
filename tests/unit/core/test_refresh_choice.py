"""Which way a refresh is computed, from what changed and from what former refreshes took."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.refresh_choice import (
    PASSES,
    PASSES_LEAST,
    SAMPLES_MAX,
    SCANNED_BYTES_LEAST,
    SHARE_DEFAULT,
    TRY_FACTOR,
    Policy,
    RefreshSample,
    Scans,
    Strategy,
    choose_strategy,
    expect_incremental,
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


def test_without_experience_a_query_whose_changes_need_more_than_all_of_it_is_recomputed() -> None:
    full = SCANNED_BYTES_LEAST
    worse, near = Scans(int(TRY_FACTOR * full), full), Scans(int(TRY_FACTOR * full) - 1, full)
    small = Scans(SCANNED_BYTES_LEAST - 1, 1)
    found = choose_strategy(Policy.AUTO, 1, 1_000_000, (FULL_10_S,), worse)
    assert (found.strategy, found.reason) == (Strategy.FULL, "changes need 1.5 times what a full one reads")
    for scans in (near, small):
        assert choose_strategy(Policy.AUTO, 1, 1_000_000, (FULL_10_S,), scans).strategy is Strategy.INCREMENTAL
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, WARM, worse).strategy is Strategy.INCREMENTAL


SHARES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
WARM = (FULL_10_S, FULL_10_S, CHANGES_1_S, CHANGES_1_S)


def test_with_experience_of_both_the_faster_is_taken_and_both_expectations_are_said() -> None:
    small = choose_strategy(Policy.AUTO, 1_000, 1_000_000, WARM)
    large = choose_strategy(Policy.AUTO, 951_000, 1_000_000, WARM)
    assert (small.strategy, small.reason) == (Strategy.INCREMENTAL, "expected 1 s by changes, 10 s in full")
    assert (large.strategy, large.reason) == (Strategy.FULL, "expected 20 s by changes, 10 s in full")


def test_more_bytes_cost_what_a_byte_has_cost_and_not_the_whole_refresh_as_often() -> None:
    """A tenth of a second for ten times the bytes, as measured; of one size alone, as passes over all rows cost."""
    measured = (FULL_10_S, *[RefreshSample(Strategy.INCREMENTAL, size, took) for size, took in
                             ((1, 9.0), (1_000, 1.0), (10_000, 1.1))])  # fmt: skip
    assert expect_incremental(110_000, 1_000_000, measured) == pytest.approx(1.1 + 100_000 * 0.1 / 9_000)
    assert expect_incremental(101_000, 1_000_000, WARM) == pytest.approx(3.0)
    assert expect_incremental(10, 1_000_000, measured) == pytest.approx(1.0 - 990 * 0.1 / 9_000)


@pytest.mark.parametrize(("took_s", "passes"), [(1.0, PASSES_LEAST), (1.4, PASSES)])
def test_a_line_that_falls_or_is_steeper_than_all_rows_is_noise(took_s: float, passes: float) -> None:
    known = [RefreshSample(Strategy.INCREMENTAL, size, took) for size, took in ((1_000, 1.2), (2_000, took_s))]
    expected = expect_incremental(102_000, 1_000_000, (FULL_10_S, CHANGES_1_S, *known))
    assert expected == pytest.approx(took_s + 0.1 * passes * 10.0)


def test_what_was_measured_first_counts_for_nothing_once_there_is_more() -> None:
    cold = RefreshSample(Strategy.FULL, 1_000_000, 60.0)
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (cold, FULL_10_S)).strategy is Strategy.INCREMENTAL
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (cold, *WARM)).reason.endswith("10 s in full")


def test_the_other_way_is_tried_where_it_was_measured_once_and_is_not_much_slower() -> None:
    """A first refresh by changes, in which all was cold, does not have all later ones computed in full."""
    cold = RefreshSample(Strategy.INCREMENTAL, 1_000, 15.0)
    tried = choose_strategy(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, cold, FULL_10_S))
    assert (tried.strategy, tried.reason) == (
        Strategy.INCREMENTAL,
        "expected 15 s by changes, 10 s in full; tried, as that was not measured lately",
    )
    slow = RefreshSample(Strategy.INCREMENTAL, 1_000, 21.0)
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, slow, FULL_10_S)).strategy is Strategy.FULL


def test_the_other_way_is_tried_once_in_as_many_refreshes_as_are_remembered() -> None:
    slower = RefreshSample(Strategy.INCREMENTAL, 1_000, 15.0)
    samples: tuple[RefreshSample, ...] = (FULL_10_S, slower, slower)
    taken = []
    for _ in range(2 * (SAMPLES_MAX + 1)):
        choice = choose_strategy(Policy.AUTO, 1_000, 1_000_000, samples)
        taken.append(choice.strategy)
        samples = with_sample(samples, FULL_10_S if choice.strategy is Strategy.FULL else slower)
    assert taken.count(Strategy.INCREMENTAL) == 2


def test_a_table_that_has_grown_is_expected_to_take_longer_in_full() -> None:
    assert choose_strategy(Policy.AUTO, 1_000, 3_000_000, (FULL_10_S, CHANGES_1_S)).reason.endswith("30 s in full")


def test_most_refreshes_of_queries_of_all_kinds_take_the_way_that_is_faster() -> None:
    """Simulated: a refresh by changes costs a hundredth to all of a recomputation by itself, and one to four passes
    over what changed; each first one is up to three times as slow, and all vary. Shares of 0.01 % to 50 % change, in
    random order. The first refresh knows nothing, and does not count.
    """
    factors = [factor for seed in range(300) for factor in [*simulate_history(random.Random(seed))][1:]]
    assert sum(each <= 1.1 for each in factors) / len(factors) > 0.9
    assert sum(each > 2 for each in factors) / len(factors) < 0.01


def simulate_history(draw: random.Random) -> Iterator[float]:
    """How much longer each refresh took than the faster of the two."""
    total, full_s = 100_000_000, draw.uniform(1, 10)
    fixed_s, passes = full_s * 10 ** draw.uniform(-2, 0.1), draw.choice((1, 2, 4))
    cold = {strategy: draw.uniform(1.2, 3) for strategy in Strategy}
    samples: tuple[RefreshSample, ...] = (RefreshSample(Strategy.FULL, total, full_s * cold.pop(Strategy.FULL)),)
    for share in [0.001, *(each for _ in range(4) for each in draw.sample(SHARES, len(SHARES)))]:
        changed = round(2 * share * total)  # rows before and after
        took_s = {
            Strategy.INCREMENTAL: (fixed_s + passes * full_s * share) * draw.lognormvariate(0, 0.05),
            Strategy.FULL: full_s * draw.lognormvariate(0, 0.05),
        }
        chosen = choose_strategy(Policy.AUTO, changed, total, samples).strategy
        yield took_s[chosen] / min(took_s.values())
        size = total if chosen is Strategy.FULL else changed
        samples = with_sample(samples, RefreshSample(chosen, size, took_s[chosen] * cold.pop(chosen, 1.0)))


@given(st.lists(st.sampled_from(list(Strategy)), max_size=40))
def test_the_last_few_of_each_way_are_remembered(strategies: list[Strategy]) -> None:
    samples: tuple[RefreshSample, ...] = ()
    for number, strategy in enumerate(strategies):
        samples = with_sample(samples, RefreshSample(strategy, number, float(number)))
    for strategy in Strategy:
        numbers = [number for number, each in enumerate(strategies) if each is strategy]
        assert [each.bytes for each in samples if each.strategy is strategy] == numbers[-SAMPLES_MAX:]
