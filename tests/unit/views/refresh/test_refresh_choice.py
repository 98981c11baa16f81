"""Which way a refresh is computed, from what changed and from what former refreshes took.

What a change is estimated to cost at each operator: the rows that come to it, and those among which it looks.

How many bytes a refresh reads besides the changed rows, by the shape of its query.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.query_plan import ChangeCost, JoinSide, Operator, OperatorKind, OperatorUpkeep, upkeep_of
from iscp.views.refresh.refresh_choice import (
    BUDGET_LEAST_S,
    COLD_FACTOR,
    MAGNITUDE,
    MAGNITUDE_SAMPLES_MAX,
    MAGNITUDES_MAX,
    PASSED_OVER_MAX,
    PASSES,
    SAMPLES_MAX,
    SCANNED_BYTES_LEAST,
    SCANS_FACTOR,
    SHARE_DEFAULT,
    TRY_FACTOR,
    CostEstimator,
    Policy,
    RefreshHistory,
    RefreshSample,
    ScanEstimator,
    Scans,
    Strategy,
    Trials,
    choose_strategy,
    direct_budget_s,
    expect_incremental,
    refreshes_from_json,
    refreshes_to_json,
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
    worse, near = Scans(int(SCANS_FACTOR * full), full), Scans(int(SCANS_FACTOR * full) - 1, full)
    small = Scans(SCANNED_BYTES_LEAST - 1, 1)
    found = choose_strategy(Policy.AUTO, 1, 1_000_000, (), worse)
    assert (found.strategy, found.reason) == (Strategy.FULL, "changes need 1.5 times what a full one reads")
    for scans in (near, small):
        assert choose_strategy(Policy.AUTO, 1, 1_000_000, (), scans).strategy is Strategy.INCREMENTAL
    tried = choose_strategy(Policy.AUTO, 1, 1_000_000, (FULL_10_S,), worse)
    assert (tried.strategy, tried.budget_s) == (Strategy.INCREMENTAL, 10.0), "it costs no more than that"
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, WARM, worse).strategy is Strategy.INCREMENTAL


SHARES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
WARM = (FULL_10_S, FULL_10_S, CHANGES_1_S, CHANGES_1_S)


def changes(size: int, took_s: float) -> RefreshSample:
    return RefreshSample(Strategy.INCREMENTAL, size, took_s)


def test_with_experience_of_both_the_faster_is_taken_and_both_expectations_are_said() -> None:
    small = choose_strategy(Policy.AUTO, 1_000, 1_000_000, WARM)
    large = choose_strategy(Policy.AUTO, 951_000, 1_000_000, (*WARM, changes(900_000, 19.0)))
    assert (small.strategy, small.reason) == (Strategy.INCREMENTAL, "expected 1 s by changes, 10 s in full")
    assert (large.strategy, large.reason) == (Strategy.FULL, "expected 22 s by changes, 10 s in full")


def test_between_two_changes_that_are_known_it_is_expected_to_cost_as_both_let_expect() -> None:
    known = (FULL_10_S, changes(1_000, 1.0), changes(100_000, 9.0))
    assert expect_incremental(1_000, 1_000_000, known) == pytest.approx(1.0)
    assert expect_incremental(10_000, 1_000_000, known) == pytest.approx(3.0)
    assert expect_incremental(100_000, 1_000_000, known) == pytest.approx(9.0)


def test_what_a_large_change_took_says_little_of_a_small_one() -> None:
    known = (FULL_10_S, changes(200_000, 22.0))
    assert expect_incremental(200_000 // MAGNITUDE, 1_000_000, known) == pytest.approx(22.0)
    assert expect_incremental(2_000, 1_000_000, known) == pytest.approx(0.22)
    small = choose_strategy(Policy.AUTO, 2_000, 1_000_000, known)
    assert small.strategy is Strategy.INCREMENTAL


def test_a_change_larger_than_any_that_is_known_costs_passes_and_is_not_tried() -> None:
    known = (FULL_10_S, FULL_10_S, changes(1_000, 1.0))
    assert expect_incremental(101_000, 1_000_000, known) == pytest.approx(1.0 + PASSES * 10.0 * 0.1)
    most = 1_000 + int(0.9 * 1_000_000 / PASSES)
    assert choose_strategy(Policy.AUTO, most - 1, 1_000_000, known).strategy is Strategy.INCREMENTAL
    large = choose_strategy(Policy.AUTO, most + 1_000, 1_000_000, known)
    assert (large.strategy, large.reason) == (Strategy.FULL, "expected 10 s by changes, 10 s in full")


def test_a_change_of_which_only_larger_and_smaller_ones_are_known_is_tried() -> None:
    """What a larger one took, which was given up perhaps, says little of it."""
    known = (FULL_10_S, FULL_10_S, changes(1_000, 1.0), changes(250_000, 25.0))
    tried = choose_strategy(Policy.AUTO, 60_000, 1_000_000, known)
    assert (tried.strategy, tried.budget_s) == (Strategy.INCREMENTAL, 10.0)
    assert tried.reason == "expected 11 s by changes, 10 s in full; tried, as that was not measured lately"


def test_a_small_change_is_expected_to_cost_no_more_than_a_larger_one_did() -> None:
    """What was measured of it may have found all cold."""
    known = (FULL_10_S, changes(1_000, 15.0), changes(100_000, 2.0))
    assert expect_incremental(1_000, 1_000_000, known) == pytest.approx(2.0)


def test_what_was_measured_first_counts_for_nothing_once_there_is_more() -> None:
    cold = RefreshSample(Strategy.FULL, 1_000_000, 60.0)
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (cold, FULL_10_S)).strategy is Strategy.INCREMENTAL
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (cold, *WARM)).reason.endswith("10 s in full")


def test_the_other_way_is_tried_where_it_was_measured_once_and_is_not_much_slower() -> None:
    """A first refresh by changes, in which all was cold, does not have all later ones computed in full."""
    cold = RefreshSample(Strategy.INCREMENTAL, 1_000, 10.0 * COLD_FACTOR)
    tried = choose_strategy(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, cold, FULL_10_S))
    assert (tried.strategy, tried.reason) == (
        Strategy.INCREMENTAL,
        "expected 20 s by changes, 10 s in full; tried, as that was not measured lately",
    )
    slow = RefreshSample(Strategy.INCREMENTAL, 1_000, 21.0)
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, slow, FULL_10_S)).strategy is Strategy.FULL


def test_the_other_way_is_tried_once_in_as_many_refreshes_as_are_remembered() -> None:
    slower = RefreshSample(Strategy.INCREMENTAL, 1_000, 10.0 * TRY_FACTOR)
    samples: tuple[RefreshSample, ...] = (FULL_10_S, slower, slower)
    taken = []
    for _ in range(2 * (SAMPLES_MAX + 1)):
        choice = choose_strategy(Policy.AUTO, 1_000, 1_000_000, samples)
        taken.append(choice.strategy)
        samples = with_sample(samples, FULL_10_S if choice.strategy is Strategy.FULL else slower)
    assert taken.count(Strategy.INCREMENTAL) == 2


def test_a_table_that_has_grown_is_expected_to_take_longer_in_full() -> None:
    assert choose_strategy(Policy.AUTO, 1_000, 3_000_000, (FULL_10_S, CHANGES_1_S)).reason.endswith("30 s in full")


def test_a_refresh_by_changes_may_take_as_long_as_a_full_one_if_the_policy_leaves_the_choice() -> None:
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, WARM).budget_s == pytest.approx(10.0)
    assert choose_strategy(Policy.AUTO, 1_000, 2_000_000, WARM).budget_s == pytest.approx(20.0)
    quick = (RefreshSample(Strategy.FULL, 1_000_000, 0.01),)
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, quick).budget_s == BUDGET_LEAST_S
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, ()).budget_s == inf, "nobody knows how long a full one takes"
    for policy in (Policy.INCREMENTAL, Policy.STRICT):
        assert choose_strategy(policy, 1_000, 1_000_000, WARM).budget_s == inf


def test_most_refreshes_of_queries_of_all_kinds_take_the_way_that_is_faster() -> None:
    """Simulated: a refresh by changes costs a hundredth to all of a recomputation by itself, and one to eight passes
    over what changed; from some share on it may cost ten times as much, as was seen of joins and windows. Each first
    one is up to three times as slow, and all vary. Shares of 0.01 % to 50 % change, in random order. The first refresh
    knows nothing, and does not count. One that is given up takes its budget and a recomputation, and was not right.
    """
    histories = [[*simulate_history(random.Random(seed))][1:] for seed in range(300)]
    assert share(histories, lambda factor: factor <= 1.1) > 0.9
    assert share(histories, lambda factor: factor > 2.3) < 0.015
    later = [history[2 * len(SHARES) :] for history in histories]
    assert share(later, lambda factor: factor <= 1.1) > 0.92


def share(histories: list[list[float]], which: Callable[[float], bool]) -> float:
    factors = [factor for history in histories for factor in history]
    return sum(map(which, factors)) / len(factors)


def simulate_history(draw: random.Random) -> Iterator[float]:
    """How much longer each refresh took than the faster of the two."""
    total, full_s = 100_000_000, draw.uniform(1, 10)
    fixed_s, passes = full_s * 10 ** draw.uniform(-2, 0.1), draw.choice((1, 2, 4, 8))
    steep_from = draw.choice((0.02, 0.08, 0.15, 1.0))
    cold = {strategy: draw.uniform(1.2, 3) for strategy in Strategy}
    samples: tuple[RefreshSample, ...] = (RefreshSample(Strategy.FULL, total, full_s * cold.pop(Strategy.FULL)),)
    for share in [0.001, *(each for _ in range(4) for each in draw.sample(SHARES, len(SHARES)))]:
        changed = round(2 * share * total)  # rows before and after
        took_s = {
            Strategy.INCREMENTAL: (fixed_s + passes * full_s * share)
            * (10 if share >= steep_from else 1)
            * draw.lognormvariate(0, 0.05),
            Strategy.FULL: full_s * draw.lognormvariate(0, 0.05),
        }
        choice = choose_strategy(Policy.AUTO, changed, total, samples)
        spent_s = took_s[choice.strategy] * cold.pop(choice.strategy, 1.0)
        if choice.strategy is Strategy.INCREMENTAL and spent_s > choice.budget_s:
            spent_s = choice.budget_s + took_s[Strategy.FULL]
            samples = with_sample(samples, RefreshSample(Strategy.FULL, total, took_s[Strategy.FULL]))
            yield max(spent_s / min(took_s.values()), 1.2)
        else:
            yield took_s[choice.strategy] / min(took_s.values())
        size = total if choice.strategy is Strategy.FULL else changed
        samples = with_sample(samples, RefreshSample(choice.strategy, size, spent_s))


@given(st.lists(st.tuples(st.sampled_from(list(Strategy)), st.integers(0, 10**9)), max_size=60))
def test_recomputations_and_refreshes_of_each_magnitude_are_remembered(made: list[tuple[Strategy, int]]) -> None:
    samples: tuple[RefreshSample, ...] = ()
    for number, (strategy, size) in enumerate(made):
        samples = with_sample(samples, RefreshSample(strategy, size, float(number)))
        assert samples[-1] == RefreshSample(strategy, size, float(number))
    full = [float(number) for number, (strategy, _) in enumerate(made) if strategy is Strategy.FULL]
    assert [each.took_s for each in samples if each.strategy is Strategy.FULL] == full[-SAMPLES_MAX:]
    by_changes = [each for each in samples if each.strategy is Strategy.INCREMENTAL]
    assert len(by_changes) <= MAGNITUDE_SAMPLES_MAX * MAGNITUDES_MAX
    assert [each.took_s for each in by_changes] == sorted(each.took_s for each in by_changes), "in their order"


def test_of_a_magnitude_the_last_few_are_remembered_and_the_fastest_counts() -> None:
    samples: tuple[RefreshSample, ...] = (FULL_10_S, changes(500_000, 9.0))
    for took_s in (1.0, 5.0, 3.0):
        samples = with_sample(samples, changes(1_000, took_s))
    assert samples == (FULL_10_S, changes(500_000, 9.0), changes(1_000, 5.0), changes(1_000, 3.0))
    assert expect_incremental(1_000, 1_000_000, samples) == pytest.approx(3.0)


SAMPLES = st.builds(
    RefreshSample, st.sampled_from(Strategy), st.integers(0, 2**62), st.floats(0.0, 1e9, allow_nan=False)
)


TRIALS = st.builds(Trials, st.integers(0, 64), st.integers(0, 64))


HISTORIES = st.builds(RefreshHistory, st.lists(SAMPLES, max_size=20).map(tuple), TRIALS, TRIALS, TRIALS, TRIALS)


@given(HISTORIES)
def test_stored_refreshes_are_read_as_they_were(history: RefreshHistory) -> None:
    assert refreshes_from_json(refreshes_to_json(history)) == history


FORGED_SAMPLES = (
    *(b"7", b"null", b"[[]]", b'["full"]', b"[[null, 1, 1.0]]", b'[["FULL", 1, 1.0]]', b'[["full", true, 1.0]]'),
    *(b'[["full", -1, 1.0]]', b'[["full", 1, NaN]]', b'[["full", 1, Infinity]]', b'[["full", 1.5, 1.0]]'),
    *(b'[["full", 1, "1"]]', b'[["full", 1, -1.0]]'),
)
FORGED_TRIALS = (b"7", b"[]", b"[1]", b"[1, 2, 3]", b"[65, 0]", b"[0, -1]", b"[0, 1.5]", b'["1", "0"]', b"[true, 0]")


def _forged(name: str, value: bytes) -> bytes:
    """Return what is stored of a refresh that was measured, with another value of this name."""
    stored = json.loads(refreshes_to_json(RefreshHistory((RefreshSample(Strategy.FULL, 1, 1.0),))))
    assert refreshes_from_json(json.dumps(stored).encode()) != RefreshHistory()
    return json.dumps({**stored, name: "forged"}).encode().replace(b'"forged"', value)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"7", b"null", b"\xff", b"[" * 100_000, b"[]"),
        *(_forged("samples", each) for each in FORGED_SAMPLES),
        *(_forged(name, each) for name in ("differences", "changes", "scans") for each in FORGED_TRIALS),
        refreshes_to_json(RefreshHistory((RefreshSample(Strategy.FULL, 1, 1.0),) * 101)),
    ],
)
def test_forged_refreshes_are_none(content: bytes) -> None:
    assert refreshes_from_json(content) == RefreshHistory()


def test_after_each_difference_that_was_too_large_twice_as_many_recomputations_do_without() -> None:
    trials, tried = Trials(), list[int]()
    for number in range(260):
        if trials.is_due:
            tried.append(number)
        trials = trials.after(found=False)
    pauses = [later - earlier - 1 for earlier, later in pairwise(tried)]
    assert pauses == [1, 3, 7, 15, 31, 63, PASSED_OVER_MAX, PASSED_OVER_MAX]
    while not trials.is_due:
        trials = trials.after(found=False)
    assert trials.after(found=True).is_due, "the next one is as likely"


ORDERS = Operator(OperatorKind.TABLE, "orders", table="orders")
CUSTOMERS = Operator(OperatorKind.TABLE, "customers", table="customers")
ROWS = {"orders": 5_000_000, "customers": 150_000}


def operator(kind: OperatorKind, *inputs: Operator, keyed: bool = True, linear_in: JoinSide | None = None) -> Operator:
    return Operator(kind, kind.value, inputs, keyed=keyed, linear_in=linear_in or JoinSide.NEITHER)


JOIN = operator(OperatorKind.JOIN, ORDERS, CUSTOMERS, linear_in=JoinSide.BOTH)
OUTER = operator(OperatorKind.JOIN, ORDERS, CUSTOMERS, linear_in=JoinSide.LEFT)
GROUPED = operator(OperatorKind.AGGREGATE, JOIN)
LIMIT = operator(OperatorKind.LIMIT, GROUPED, keyed=False)


def costs(of: Operator, known: dict[Operator, int] | None = None) -> list[tuple[str, int, int]]:
    found = CostEstimator(ROWS, known or {}).costs(of, upkeep_of(of))
    return [(each.table, each.changed, each.read) for each in found]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (ORDERS, [("orders", 1_000, 0)]),
        (operator(OperatorKind.FILTER, ORDERS), [("orders", 1_000, 0)]),
        (JOIN, [("customers", 1_000, 5_000_000), ("orders", 1_000, 150_000)]),
        (OUTER, [("customers", 1_000, 5_150_000), ("orders", 1_000, 5_150_000)]),
        (GROUPED, [("customers", 1_000, 5_000_000), ("orders", 1_000, 5_000_000)]),
        (operator(OperatorKind.UNION, ORDERS, ORDERS), [("orders", 2_000, 0)]),
        (operator(OperatorKind.AGGREGATE, ORDERS, keyed=False), [("orders", 1_000, 5_000_000)]),
    ],
)
def test_changed_rows_meet_those_of_the_other_tables(of: Operator, expected: list[tuple[str, int, int]]) -> None:
    assert costs(of) == expected


def test_what_is_above_an_operator_that_is_recomputed_sees_all_of_its_rows() -> None:
    above = operator(OperatorKind.PROJECT, operator(OperatorKind.WINDOW, ORDERS, keyed=False))
    assert costs(above) == [("orders", 5_000_000, 0)]
    value = Operator(OperatorKind.FILTER, "Filter", (CUSTOMERS,), subqueries=(ORDERS,))
    assert costs(value) == [("customers", 1_000, 0), ("orders", 0, 150_000)]
    assert costs(operator(OperatorKind.PROJECT, value))[1] == ("orders", 150_000, 0)


def test_rows_that_are_kept_are_counted_and_not_guessed() -> None:
    assert costs(LIMIT)[0] == ("customers", 1_000, 5_000_000)
    assert costs(LIMIT, {GROUPED: 80})[0] == ("customers", 1_000, 80)
    assert costs(LIMIT, {GROUPED: -1})[0] == ("customers", 1_000, 5_000_000)


def test_groups_whose_sums_are_kept_read_nothing_else() -> None:
    grouped = operator(OperatorKind.AGGREGATE, ORDERS)
    assert CostEstimator(ROWS, {}).costs(grouped, OperatorUpkeep.STATE) == (ChangeCost("orders", 1_000, 0),)


def test_of_a_table_whose_log_does_not_say_nothing_is_made_up() -> None:
    found = CostEstimator({"orders": 5_000_000}, {}).costs(JOIN, OperatorUpkeep.JOINED)
    assert [each.read for each in found] == [5_000_000, -1]


FACT = Operator(OperatorKind.TABLE, "fact", table="fact")
OTHER = Operator(OperatorKind.TABLE, "other", table="other")
DIM = Operator(OperatorKind.TABLE, "dim", table="dim")
SIZES = {"fact": 1_000, "other": 100, "dim": 10}


def join(left: Operator, right: Operator, linear_in: JoinSide = JoinSide.BOTH) -> Operator:
    return Operator(OperatorKind.JOIN, "Join", (left, right), keyed=True, linear_in=linear_in)


def groups(below: Operator) -> Operator:
    return Operator(OperatorKind.AGGREGATE, "Aggregate", (below,), keyed=True)


def total(below: Operator, distincts: int = 0) -> Operator:
    return Operator(OperatorKind.AGGREGATE, "Aggregate", (below,), adds_up=True, distincts=distincts)


@pytest.mark.parametrize(
    ("operator", "moved", "read"),
    [
        (Operator(OperatorKind.FILTER, "Filter", (FACT,)), {"fact"}, 0),
        (join(FACT, DIM), {"fact"}, 10),
        (join(FACT, DIM), {"dim"}, 1_000),
        (join(join(FACT, OTHER), DIM), {"fact", "other"}, 1_000 + 100 + 10),
        (join(join(FACT, OTHER), DIM), {"dim"}, 1_100),
        (join(FACT, OTHER, JoinSide.LEFT), {"fact"}, 100),
        (join(FACT, OTHER, JoinSide.LEFT), {"other"}, 2 * 1_100),
        (join(FACT, OTHER, JoinSide.NEITHER), {"fact"}, 2 * 1_100),
        (groups(join(FACT, DIM)), {"fact"}, 10 + 2 * 1_010),
        (join(groups(FACT), groups(FACT)), {"fact"}, 2 * 2_000 + 2_000),
        (total(FACT), {"fact"}, 0),
        (total(FACT, distincts=2), {"fact"}, 4_000),
        (join(FACT, DIM), {"none"}, 0),
    ],
)
def test_what_belongs_to_changed_rows_is_read_once_and_what_is_recomputed_twice(
    operator: Operator, moved: set[str], read: int
) -> None:
    assert ScanEstimator(SIZES, moved).changes(operator) == read


def test_what_the_rows_of_keys_are_now_is_read_once() -> None:
    estimator = ScanEstimator(SIZES, {"fact"})
    assert estimator.rows_now(join(FACT, DIM)) == 10 + 1_010
    assert estimator.rows_now(DIM) == 0
    assert estimator.all_rows(join(FACT, join(FACT, DIM))) == 2_010


def test_the_rows_of_a_subquery_are_followed_too() -> None:
    value = total(join(FACT, OTHER))
    root = Operator(OperatorKind.FILTER, "Filter", (DIM,), subqueries=(value,))
    assert ScanEstimator(SIZES, {"fact"}).changes(root) == 100
    assert ScanEstimator(SIZES, {"fact"}).all_rows(root) == 1_110


# --- without Spark ----------------------------------------------------------------------------------------------------


def direct(took_s: float, size: int = 1_000) -> RefreshSample:
    return RefreshSample(Strategy.DIRECT, size, took_s)


def test_changes_without_spark_may_take_as_long_as_a_recomputation() -> None:
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, ()) == inf
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, (FULL_10_S, CHANGES_1_S)) == 10.0
    assert direct_budget_s(Policy.AUTO, 1_000, 10_000, (FULL_10_S,)) == BUDGET_LEAST_S
    for policy in (Policy.INCREMENTAL, Policy.STRICT):
        assert direct_budget_s(policy, 1_000, 1_000_000, (FULL_10_S, direct(99.0))) == inf


def test_changes_that_took_longer_without_spark_are_left_out_until_that_is_long_ago() -> None:
    slow = (FULL_10_S, direct(COLD_FACTOR * 10.0 + 1))
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, slow) == 0.0
    assert direct_budget_s(Policy.AUTO, 10, 1_000_000, slow) == 10.0, "fewer changes"
    once = (FULL_10_S, direct(COLD_FACTOR * 10.0 - 1))
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, once) == 10.0, "it may have found all cold"
    twice = (FULL_10_S, direct(12.0), direct(12.0))
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, twice) == 0.0
    assert direct_budget_s(Policy.AUTO, 1_000, 1_000_000, (*twice, *[FULL_10_S] * SAMPLES_MAX)) == 10.0


def test_each_way_by_changes_is_remembered_for_itself() -> None:
    samples: tuple[RefreshSample, ...] = (FULL_10_S, CHANGES_1_S)
    for power in range(MAGNITUDES_MAX + 2):
        samples = with_sample(samples, direct(5.0, MAGNITUDE**power))
    assert CHANGES_1_S in samples
    assert sum(each.strategy is Strategy.DIRECT for each in samples) == MAGNITUDES_MAX
    assert refreshes_from_json(refreshes_to_json(RefreshHistory(samples))).samples == samples
    assert choose_strategy(Policy.AUTO, 1_000, 1_000_000, samples).strategy is Strategy.INCREMENTAL


# --- what was measured while a machine stalled ------------------------------------------------------------------------


def refreshed(history: RefreshHistory, direct_s: float, spark_s: float, full_s: float) -> tuple[RefreshHistory, float]:
    """Refresh a view of a gigabyte by changes of a thousand bytes, as its consumer does: first without Spark, then by
    Spark, and by all rows where these were slower or took as long. Return the history and how long it took.
    """

    def learned(strategy: Strategy, took_s: float, *, changes: bool | None) -> RefreshHistory:
        size = 1_000_000_000 if strategy is Strategy.FULL else 1_000
        known = replace(history, samples=with_sample(history.samples, RefreshSample(strategy, size, took_s)))
        if changes is None:
            return known
        return known.after("changes", found=changes)

    given = (Policy.AUTO, 1_000, 1_000_000_000, history.samples)
    if budget_s := direct_budget_s(*given, history.changes):
        if direct_s <= budget_s:
            return learned(Strategy.DIRECT, direct_s, changes=True), direct_s
        history = learned(Strategy.FULL, full_s, changes=False)
        return learned(Strategy.DIRECT, budget_s + full_s, changes=None), budget_s + full_s
    choice = choose_strategy(*given, Scans(), history.changes)
    if choice.strategy is Strategy.FULL:
        return learned(Strategy.FULL, full_s, changes=False), full_s
    if spark_s <= choice.budget_s:
        return learned(Strategy.INCREMENTAL, spark_s, changes=True), spark_s
    history = learned(Strategy.FULL, full_s, changes=False)
    return learned(Strategy.INCREMENTAL, choice.budget_s + full_s, changes=None), choice.budget_s + full_s


@given(st.integers(1, 6), st.floats(1.0, 100.0), st.floats(0.5, 20.0), st.integers(0, 30))
def test_a_machine_that_stalled_does_not_end_refreshes_by_changes(
    stalls: int, stall_s: float, full_s: float, before: int
) -> None:
    """However often changes took long, they are tried again, and stay what is done from then on."""
    history = RefreshHistory((RefreshSample(Strategy.FULL, 1_000_000_000, full_s),) * 2)
    for _ in range(before):
        history, _ = refreshed(history, 0.1, 1.0, full_s)
    for _ in range(stalls):
        history, _ = refreshed(history, stall_s, stall_s + 1, full_s)
    taken = list[float]()
    for _ in range(40):
        history, took_s = refreshed(history, 0.1, 1.0, full_s)
        taken.append(took_s)
    assert taken[-20:] == [0.1] * 20


@given(st.floats(1.0, 100.0), st.floats(0.5, 20.0))
def test_changes_that_are_slower_each_time_are_tried_ever_more_rarely(factor: float, full_s: float) -> None:
    history, total_s = RefreshHistory((RefreshSample(Strategy.FULL, 1_000_000_000, full_s),) * 2), 0.0
    for _ in range(100):
        history, took_s = refreshed(history, factor * full_s + 1, factor * full_s + 2, full_s)
        total_s += took_s
    assert total_s <= 125 * full_s
