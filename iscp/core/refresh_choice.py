"""Whether a refresh computes what changed, or all rows.

Measured first: what former refreshes of the same query took. Where nothing was measured yet, a share of changed bytes
that costs about as much either way in most queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

SHARE_DEFAULT = 0.2
"""Of a query that was never refreshed both ways: from this share of changed bytes on it is recomputed."""

SAMPLES_MAX = 5
"""Refreshes of each way that are remembered; the oldest are forgotten."""


class Policy(StrEnum):
    """How a view is refreshed. STRICT: it is refused where it cannot be kept by what changed."""

    AUTO = "auto"
    INCREMENTAL = "incremental"
    STRICT = "strict"
    FULL = "full"


class Strategy(StrEnum):
    INCREMENTAL = "incremental"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RefreshSample:
    """One refresh: the bytes that it had to take into account (changed ones, or all), and how long it took."""

    strategy: Strategy
    bytes: int
    took_s: float


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """`reason`: what was expected of each, as far as former refreshes show."""

    strategy: Strategy
    reason: str


def choose_strategy(policy: Policy, changed: int, total: int, samples: Sequence[RefreshSample]) -> RefreshChoice:
    """`changed` and `total`: bytes of the tables' files."""
    match policy:
        case Policy.FULL:
            return RefreshChoice(Strategy.FULL, "the policy says so")
        case Policy.INCREMENTAL | Policy.STRICT:
            return RefreshChoice(Strategy.INCREMENTAL, "the policy says so")
        case _:
            return _choose_by_cost(changed, total, samples)


def _choose_by_cost(changed: int, total: int, samples: Sequence[RefreshSample]) -> RefreshChoice:
    incremental = expect_incremental(changed, samples)
    full = expect_full(total, samples)
    share = changed / total if total else 1.0
    if incremental is not None and full is not None:
        better = Strategy.INCREMENTAL if incremental <= full else Strategy.FULL
        return RefreshChoice(better, f"expected {incremental:.2g} s by changes, {full:.2g} s in full")
    better = Strategy.INCREMENTAL if share < SHARE_DEFAULT else Strategy.FULL
    return RefreshChoice(better, f"{share:.2%} of the bytes have changed")


def expect_incremental(changed: int, samples: Sequence[RefreshSample]) -> float | None:
    """As long as the nearest one took, and in proportion to the bytes where they are more."""
    known = [each for each in samples if each.strategy is Strategy.INCREMENTAL]
    if not known:
        return None
    nearest = min(known, key=lambda each: abs(each.bytes - changed))
    return nearest.took_s * max(1.0, changed / max(nearest.bytes, 1))


def expect_full(total: int, samples: Sequence[RefreshSample]) -> float | None:
    known = [each for each in samples if each.strategy is Strategy.FULL]
    if not known:
        return None
    return median(each.took_s * max(total, 1) / max(each.bytes, 1) for each in known)


def with_sample(samples: Sequence[RefreshSample], sample: RefreshSample) -> tuple[RefreshSample, ...]:
    """With this one, and without those that are too old."""
    alike = [each for each in samples if each.strategy is sample.strategy][-(SAMPLES_MAX - 1) :]
    return (*(each for each in samples if each.strategy is not sample.strategy), *alike, sample)
