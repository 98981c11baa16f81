"""Reciprocal rank fusion: one ranking of several whose scores cannot be compared.

Each ranking gives weight / (k + rank) to what it has, ranks counted from 1 (Cormack, Clarke and Büttcher, SIGIR 2009).
Neither the order of rankings nor that of keys in a dictionary matters: equal scores are ordered by key.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Generic, TypeVar

from iscp.core.values.errors import InvalidRequest

RANK_CONSTANT = 60
"""The k of the formula, by which first ranks count little more than those that follow: the paper's own."""

RANKINGS_MAX = 16
"""Rankings that are fused at a time; more are refused."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ranking(Generic[K]):
    """Keys, the best first, and how much the ranking counts. A key that is there again keeps its first rank."""

    keys: Sequence[K]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FusedHit(Generic[K]):
    """A key, its score, and its rank in each ranking from 1, or None where it is not."""

    key: K
    score: float
    ranks: tuple[int | None, ...]


def fuse(rankings: Sequence[Ranking[K]], k: int = RANK_CONSTANT) -> list[FusedHit[K]]:
    """Return all keys of the rankings, the best first. Raises InvalidRequest for weights that are none."""
    if len(rankings) > RANKINGS_MAX:
        raise InvalidRequest(f"fuses {len(rankings)} rankings, more than {RANKINGS_MAX}", remedy="Fuse fewer")
    for ranking in rankings:
        if not (math.isfinite(ranking.weight) and ranking.weight >= 0):
            raise InvalidRequest(
                f"is {ranking.weight}, which is no weight", field="weights", remedy="Give a number from 0 on"
            )
    ranks: defaultdict[K, list[int | None]] = defaultdict(lambda: [None] * len(rankings))
    for number, ranking in enumerate(rankings):
        for rank, key in enumerate(dict.fromkeys(ranking.keys), start=1):
            ranks[key][number] = rank
    weights = [ranking.weight for ranking in rankings]
    hits = [FusedHit(key, _score(found, weights, k), tuple(found)) for key, found in ranks.items()]
    return sorted(hits, key=lambda hit: (-hit.score, order_of(hit.key)))


def _score(ranks: Sequence[int | None], weights: Sequence[float], k: int) -> float:
    """Return the sum, rounded once: so that it does not depend on the order of the rankings."""
    return math.fsum(weight / (k + rank) for rank, weight in zip(ranks, weights, strict=True) if rank is not None)


def order_of(key: object) -> tuple[object, ...]:
    """Return what keys of any types can be ordered by: null first, numbers, texts, bytes, then others by their text."""
    match key:
        case None:
            return (0,)
        case bool() | int() | Decimal():
            return (1, key, type(key).__name__)
        case float():
            return (2, "") if math.isnan(key) else (1, key, type(key).__name__)
        case str():
            return (3, key)
        case bytes():
            return (4, key)
        case tuple():
            return (5, tuple(order_of(each) for each in key))
        case _:
            return (6, type(key).__name__, str(key))
