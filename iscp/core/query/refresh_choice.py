"""Decide whether a refresh computes what changed, or all rows.

The first measure is what former refreshes of the same query took that changed about as many bytes. Where nothing was
measured yet, a share of changed bytes decides that costs about as much either way in most queries. What was measured
when all was cold, or long ago, is measured again once it may be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, log
from statistics import median

from iscp.core.values.untrusted_values import exact_float, exact_int

STORED_SAMPLES_MAX = 100
"""Refreshes of a view that are read from where they are stored; a list of more was written by somebody else."""

SHARE_DEFAULT = 0.2
"""The share of changed bytes from which on a query is recomputed that was never refreshed both ways."""

SAMPLES_MAX = 5
"""Recomputations that are remembered; the oldest are forgotten."""

MAGNITUDE = 4
"""Refreshes by changes whose bytes are between the same two powers of this are remembered together: what they cost may
jump from one magnitude to the next, as where rows do not fit into memory any more, and a few large ones say little of
small ones.
"""

MAGNITUDE_SAMPLES_MAX = 2
"""Refreshes by changes of one magnitude that are remembered. The faster counts: the other one may have found all cold.
"""

MAGNITUDES_MAX = 10
"""Magnitudes of which refreshes by changes are remembered; those that were refreshed longest ago are forgotten."""

MEASURABLE_S = 0.001
"""No refresh is taken for faster."""

PASSES = 6
"""A change of all rows is expected to cost what so many recomputations do, until that was measured: of groups, windows
and joins four to ten were seen."""

SCANNED_BYTES_LEAST = 64 * 1024**2
"""Bytes of unchanged rows from which on changes are compared with a recomputation by the bytes that each needs.

This counts while no recomputation was measured, so that no refresh by changes could be given up in time.
"""

SCANS_FACTOR = 1.5
"""Changes that need so many times the bytes that a recomputation reads are not tried then."""

TRY_FACTOR = 1.3
"""The way that is expected to be slower, by no more than this, is tried where it was not measured lately."""

COLD_FACTOR = 2.0
"""The factor in place of TRY_FACTOR for changes such as were refreshed only once, when all was cold."""

BUDGET_LEAST_S = 0.5
"""No refresh by changes is given up before it has taken so long."""


class Policy(StrEnum):
    """The way in which a view is refreshed. STRICT refuses a view that cannot be refreshed by what changed."""

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
    """The choice, with what was expected of each way (`reason`), as far as former refreshes show.

    After `budget_s` a refresh by changes is given up for a recomputation.
    """

    strategy: Strategy
    reason: str
    budget_s: float = inf


def choose_strategy(
    policy: Policy, changed: int, total: int, samples: Sequence[RefreshSample], scans: Scans = Scans()
) -> RefreshChoice:
    """Choose a strategy. `changed` and `total` are bytes of the tables' files; `scans` is what is known before any
    refresh.
    """
    match policy:
        case Policy.FULL:
            return RefreshChoice(Strategy.FULL, "the policy says so")
        case Policy.INCREMENTAL | Policy.STRICT:
            return RefreshChoice(Strategy.INCREMENTAL, "the policy says so")
        case _:
            choice = _choose_by_cost(changed, total, samples, scans)
            return replace(choice, budget_s=_budget_s(total, samples))


def _budget_s(total: int, samples: Sequence[RefreshSample]) -> float:
    """Return the seconds that a recomputation takes.

    Both together then take at most twice as long as the faster one alone, whichever that is (like somebody who rents
    skis until he has paid their price, and then buys them).
    """
    full = expect_full(total, samples)
    return inf if full is None else max(full, BUDGET_LEAST_S)


def _choose_by_cost(changed: int, total: int, samples: Sequence[RefreshSample], scans: Scans) -> RefreshChoice:
    incremental = expect_incremental(changed, total, samples)
    full = expect_full(total, samples)
    if incremental is None or full is None:
        if full is None and scans.changes >= max(SCANNED_BYTES_LEAST, SCANS_FACTOR * scans.full):
            return RefreshChoice(
                Strategy.FULL, f"changes need {scans.changes / scans.full:.1f} times what a full one reads"
            )
        share = changed / total if total else 1.0
        better = Strategy.INCREMENTAL if share < SHARE_DEFAULT else Strategy.FULL
        return RefreshChoice(better, f"{share:.2%} of the bytes have changed")
    expected = {Strategy.INCREMENTAL: incremental, Strategy.FULL: full}
    better, other = sorted(expected, key=lambda each: expected[each])
    reason = f"expected {incremental:.2g} s by changes, {full:.2g} s in full"
    if expected[other] <= _tried_to(other, changed, samples) * expected[better]:
        return RefreshChoice(other, f"{reason}; tried, as that was not measured lately")
    return RefreshChoice(better, reason)


def _tried_to(strategy: Strategy, changed: int, samples: Sequence[RefreshSample]) -> float:
    """Return the factor by which a way may be slower than the other one and is tried all the same.

    This is for a way that was measured once, when all was cold, or before much of what is remembered. Refreshes by
    changes are those of about as many bytes; where it is not known what such cost, but what larger ones do, this is
    tried too. A change that is larger than all that were measured is not tried here.
    """
    known = [(place, each.bytes) for place, each in enumerate(samples) if each.strategy is strategy]
    alike = [
        place
        for place, size in known
        if strategy is Strategy.FULL or changed <= size * MAGNITUDE <= changed * MAGNITUDE**2
    ]
    if not alike:
        return TRY_FACTOR if any(size > changed for _, size in known) else 0.0
    if len(alike) == 1:
        return TRY_FACTOR if strategy is Strategy.FULL else COLD_FACTOR
    return TRY_FACTOR if len(samples) - 1 - alike[-1] >= SAMPLES_MAX else 0.0


def expect_incremental(changed: int, total: int, samples: Sequence[RefreshSample]) -> float | None:
    """Return the seconds that changes of so many bytes are expected to take, or None if nothing is known.

    Between a smaller and a larger change that are known, both let expect it. Below all that are known it is in
    proportion to the least: what is not known to be fixed is found out by a refresh. Above all it follows from PASSES.
    """
    known = _by_magnitude(samples)
    if not known:
        return None
    below = max((each for each in known if each.bytes <= changed), key=lambda each: each.bytes, default=None)
    above = min((each for each in known if each.bytes >= changed), key=lambda each: each.bytes, default=None)
    if below is None:
        assert above is not None
        near = changed * MAGNITUDE >= above.bytes
        return above.took_s if near else above.took_s * changed / above.bytes
    if above is None:
        full = expect_full(total, samples)
        byte_s = below.took_s / max(below.bytes, 1) if full is None else PASSES * full / max(total, 1)
        return below.took_s + (changed - below.bytes) * byte_s
    if above is below:
        return above.took_s
    part = log(max(changed, 1) / max(below.bytes, 1)) / log(above.bytes / max(below.bytes, 1))
    return float(below.took_s ** (1 - part) * above.took_s**part)


def _by_magnitude(samples: Sequence[RefreshSample]) -> list[RefreshSample]:
    """Return the fastest refresh by changes of each magnitude; none is slower than a larger one."""
    fastest: dict[int, RefreshSample] = {}
    for each in samples:
        place = _magnitude(each)
        if each.strategy is Strategy.INCREMENTAL and (place not in fastest or each.took_s < fastest[place].took_s):
            fastest[place] = each
    least, found = inf, list[RefreshSample]()
    for each in sorted(fastest.values(), key=lambda each: each.bytes, reverse=True):
        least = min(least, each.took_s)
        found.append(replace(each, took_s=max(least, MEASURABLE_S)))
    return found


def _magnitude(sample: RefreshSample) -> int:
    return int(log(max(sample.bytes, 1), MAGNITUDE))


def expect_full(total: int, samples: Sequence[RefreshSample]) -> float | None:
    known = [each for each in samples if each.strategy is Strategy.FULL]
    known = known[1:] or known  # the oldest may have been the first, when all was cold
    if not known:
        return None
    return median(each.took_s * max(total, 1) / max(each.bytes, 1) for each in known)


def samples_to_json(samples: Sequence[RefreshSample]) -> bytes:
    return json.dumps([[each.strategy, each.bytes, each.took_s] for each in samples]).encode()


def samples_from_json(content: bytes) -> tuple[RefreshSample, ...]:
    """Return stored samples; none if the content is not of `samples_to_json`, as it lies where tenants write."""
    try:
        found = json.loads(content)
        if not isinstance(found, list) or len(found) > STORED_SAMPLES_MAX:
            return ()
        return tuple(
            RefreshSample(Strategy(strategy), exact_int(size, "bytes", 0), exact_float(took_s, "took_s", 0.0))
            for strategy, size, took_s in found
        )
    except (ValueError, TypeError, RecursionError):
        return ()


def with_sample(samples: Sequence[RefreshSample], sample: RefreshSample) -> tuple[RefreshSample, ...]:
    """Return the samples with this one at the end, and without those that are too old."""
    recent, alike = list(samples), [each for each in samples if each.strategy is sample.strategy]
    if sample.strategy is Strategy.FULL:
        if len(alike) >= SAMPLES_MAX:
            recent.remove(alike[0])
        return (*recent, sample)
    same = [each for each in alike if _magnitude(each) == _magnitude(sample)]
    if len(same) >= MAGNITUDE_SAMPLES_MAX:
        recent.remove(same[0])
    newest = list(dict.fromkeys(_magnitude(each) for each in reversed([*alike, sample])))
    forgotten = set(newest[MAGNITUDES_MAX:])
    return (*(each for each in recent if each.strategy is Strategy.FULL or _magnitude(each) not in forgotten), sample)
