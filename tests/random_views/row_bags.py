"""Bags of rows as Spark gives them, and whether two are equal but for the last digits of doubles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

RELATIVE_MOST = 1e-9

CANCELLED_MOST = 1e-14
"""Random doubles are nought or some tenths."""

Bag = Counter[Any]
"""Of rows, each as a tuple that can be counted."""


def bag_of(rows: Iterable[Any], *, exactly: bool = False) -> Bag:
    return Counter(tuple(countable(each, exactly=exactly) for each in row) for row in rows)


def countable(value: Any, *, exactly: bool = False) -> Any:
    """NaN equals itself, and so do zeros; of doubles ten digits count, or all, and what cancels is nothing."""
    match value:
        case float() if exactly:
            return "NaN" if math.isnan(value) else value + 0.0
        case float() if abs(value) < CANCELLED_MOST:
            return 0.0
        case float():
            return "NaN" if math.isnan(value) else float(f"{value:.9e}") + 0.0
        case list() | tuple():
            return tuple(countable(each, exactly=exactly) for each in value)
        case bytearray():
            return bytes(value)
        case _:
            return value


def alike(one: Bag, other: Bag) -> bool:
    """Equal bags, or such whose rows differ pair by pair in last digits only."""
    if one == other:
        return True
    if min([*one.values(), *other.values()], default=0) < 0:
        return False
    left, right = (sorted((one - other).elements(), key=repr), sorted((other - one).elements(), key=repr))
    return len(left) == len(right) and all(map(_near, left, right))


def _near(one: Any, other: Any) -> bool:
    match one, other:
        case (float(), float()):
            return math.isclose(one, other, rel_tol=RELATIVE_MOST)
        case (tuple(), tuple()):
            return len(one) == len(other) and all(map(_near, one, other))
        case _:
            return bool(one == other)


def difference(wanted: Bag, held: Bag) -> str:
    """Rows that are in one of them alone, each with how often."""
    lacking = [f"  lacks {number} × {row}" for row, number in sorted((wanted - held).items(), key=repr)]
    return "\n".join(
        [*lacking, *[f"  has {n} × {row} too many" for row, n in sorted((held - wanted).items(), key=repr)]]
    )
