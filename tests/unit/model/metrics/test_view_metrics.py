from __future__ import annotations

from collections.abc import Sequence

import pytest

from iscp.model.metrics.view_metrics import reason_class
from iscp.views.refresh.refresh_choice import Policy, RefreshSample, Scans, Strategy, choose_strategy

MEASURED = [
    *(RefreshSample(Strategy.FULL, 1_000_000, 4.0) for _ in range(3)),
    *(RefreshSample(Strategy.INCREMENTAL, 1_000, 0.2) for _ in range(3)),
]


@pytest.mark.parametrize(
    ("policy", "samples", "scans", "expected"),
    [
        (Policy.FULL, (), Scans(), "policy"),
        (Policy.INCREMENTAL, (), Scans(), "policy"),
        (Policy.AUTO, (), Scans(), "cost"),
        (Policy.AUTO, (), Scans(changes=10**10, full=10**9), "cost"),
        (Policy.AUTO, MEASURED, Scans(), "cost"),
    ],
)
def test_a_choice_has_its_class(policy: Policy, samples: Sequence[RefreshSample], scans: Scans, expected: str) -> None:
    choice = choose_strategy(policy, 1_000, 1_000_000, samples, scans)
    assert reason_class(choice.strategy, choice.reason) == expected


@pytest.mark.parametrize(
    ("strategy", "reason", "expected"),
    [
        ("full", "the first build", "first"),
        ("full", "the first build, on one node: it has no key", "first"),
        ("groups", "few rows of a view of groups have changed", "small"),
        ("joins", "few rows of a view of joined tables have changed", "small"),
        ("full", "changes took 2.1 s, as long as a full one, and were given up", "abandoned"),
        ("unchanged", "50.00% of the bytes have changed", "unchanged"),
        ("full", "versions 3 to 5 of orders were cleaned away", "forced"),
        ("full", "", "forced"),
    ],
)
def test_each_other_reason_has_its_class_and_what_is_not_known_was_forced(
    strategy: str, reason: str, expected: str
) -> None:
    assert reason_class(strategy, reason) == expected
