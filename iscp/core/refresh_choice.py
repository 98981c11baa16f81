"""Whether a refresh computes what changed, or all rows.

Measured first: what former refreshes of the same query took, by a line over the bytes that have changed. Where nothing
was measured yet, a share of changed bytes that costs about as much either way in most queries. What was measured when
all was cold, or long ago, is measured again once it may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean, median

SHARE_DEFAULT = 0.2
"""Of a query that was never refreshed both ways: from this share of changed bytes on it is recomputed."""

SAMPLES_MAX = 5
"""Refreshes of each way that are remembered; the oldest are forgotten."""

SPREAD = 2
"""From this ratio of the most bytes to the least on, former refreshes by changes show what a byte costs."""

PASSES = 2
"""A change of all rows is expected to cost what so many recomputations do, until that was measured."""

PASSES_LEAST = 0.5
"""The same, where former refreshes show that it costs less; less than this, and more than PASSES, is not believed."""

SCANNED_BYTES_LEAST = 64 * 1024**2
"""Of a query that was never refreshed both ways: from so many bytes on which changes need of the tables besides
themselves, the refresh takes about as long as reading them does, and is compared with a recomputation by that."""

TRY_FACTOR = 1.5
"""The way that is expected to be slower, by no more than this, is tried where it was not measured lately."""


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
class Scans:
    """Bytes of tables that are read, besides changed rows, to refresh a query by its changes and to compute it all."""

    changes: int = 0
    full: int = 0


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """`reason`: what was expected of each, as far as former refreshes show."""

    strategy: Strategy
    reason: str


def choose_strategy(
    policy: Policy, changed: int, total: int, samples: Sequence[RefreshSample], scans: Scans = Scans()
) -> RefreshChoice:
    """`changed` and `total`: bytes of the tables' files; `scans`: what is known of a query before it was refreshed."""
    match policy:
        case Policy.FULL:
            return RefreshChoice(Strategy.FULL, "the policy says so")
        case Policy.INCREMENTAL | Policy.STRICT:
            return RefreshChoice(Strategy.INCREMENTAL, "the policy says so")
        case _:
            return _choose_by_cost(changed, total, samples, scans)


def _choose_by_cost(changed: int, total: int, samples: Sequence[RefreshSample], scans: Scans) -> RefreshChoice:
    incremental = expect_incremental(changed, total, samples)
    full = expect_full(total, samples)
    if incremental is None or full is None:
        if scans.changes >= max(SCANNED_BYTES_LEAST, TRY_FACTOR * scans.full):
            return RefreshChoice(
                Strategy.FULL, f"changes need {scans.changes / scans.full:.1f} times what a full one reads"
            )
        share = changed / total if total else 1.0
        better = Strategy.INCREMENTAL if share < SHARE_DEFAULT else Strategy.FULL
        return RefreshChoice(better, f"{share:.2%} of the bytes have changed")
    expected = {Strategy.INCREMENTAL: incremental, Strategy.FULL: full}
    better, other = sorted(expected, key=lambda each: expected[each])
    reason = f"expected {incremental:.2g} s by changes, {full:.2g} s in full"
    if expected[other] <= TRY_FACTOR * expected[better] and _is_doubtful(other, samples):
        return RefreshChoice(other, f"{reason}; tried, as that was not measured lately")
    return RefreshChoice(better, reason)


def _is_doubtful(strategy: Strategy, samples: Sequence[RefreshSample]) -> bool:
    """It was measured once, when all was cold, or before all that is remembered of the other way."""
    places = [place for place, each in enumerate(samples) if each.strategy is strategy]
    return len(places) == 1 or len(samples) - 1 - places[-1] >= SAMPLES_MAX


def expect_incremental(changed: int, total: int, samples: Sequence[RefreshSample]) -> float | None:
    """As the nearest one took, and for the bytes between them by what a byte costs; never less than half of the
    fastest, as much of a refresh does not depend on what has changed.
    """
    known = _warm(Strategy.INCREMENTAL, samples)
    if not known:
        return None
    nearest = min(reversed(known), key=lambda each: abs(each.bytes - changed))
    expected = nearest.took_s + (changed - nearest.bytes) * _byte_s(known, total, samples)
    return max(expected, min(each.took_s for each in known) / 2)


def _byte_s(known: Sequence[RefreshSample], total: int, samples: Sequence[RefreshSample]) -> float:
    """Of a line through what is known, by least squares, within PASSES_LEAST and PASSES: between small changes, which
    are all about as fast, it is noise. Where all have about the same bytes: what PASSES take.
    """
    full = expect_full(total, samples)
    if full is None:
        return known[-1].took_s / max(known[-1].bytes, 1)
    pass_s = full / max(total, 1)
    least, most = min(each.bytes for each in known), max(each.bytes for each in known)
    if most < SPREAD * max(least, 1):
        return PASSES * pass_s
    bytes_mean, took_mean = mean(each.bytes for each in known), mean(each.took_s for each in known)
    covariance = sum((each.bytes - bytes_mean) * (each.took_s - took_mean) for each in known)
    measured = covariance / sum((each.bytes - bytes_mean) ** 2 for each in known)
    return min(max(measured, PASSES_LEAST * pass_s), PASSES * pass_s)


def expect_full(total: int, samples: Sequence[RefreshSample]) -> float | None:
    known = _warm(Strategy.FULL, samples)
    if not known:
        return None
    return median(each.took_s * max(total, 1) / max(each.bytes, 1) for each in known)


def _warm(strategy: Strategy, samples: Sequence[RefreshSample]) -> list[RefreshSample]:
    """Without the oldest one, which may have been the first, if there are others."""
    known = [each for each in samples if each.strategy is strategy]
    return known[1:] or known


def with_sample(samples: Sequence[RefreshSample], sample: RefreshSample) -> tuple[RefreshSample, ...]:
    """With this one at the end, and without those that are too old."""
    alike = [each for each in samples if each.strategy is sample.strategy]
    kept = list(samples)
    if len(alike) >= SAMPLES_MAX:
        kept.remove(alike[0])
    return (*kept, sample)
