"""Key-hash ranges of a table: which there may be, which overlap, which keys are in one.

Ranges follow a binary tree (iscp.core.rows.range_tree), of which 1 is the whole table. A key belongs to a range by the
highest bits of its hash, a signed number of 64 bits: in order of their hashes the ranges of one level lie side by side,
so that a range is all hashes between a lowest and a highest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp.core.rows.range_tree import WHOLE as WHOLE
from iscp.core.rows.range_tree import children as children
from iscp.core.rows.range_tree import depth_within
from iscp.core.rows.range_tree import parent as parent
from iscp.core.rows.range_tree import sibling as sibling
from iscp.core.sql.sql_names import quoted

RANGES_MAX = 64
"""Ranges of one table at a time; none is smaller than this part of it, and a split beyond it is refused."""

_BITS = 64


def depth(range_id: int) -> int:
    """How often the whole was cut to get it; raises ValueError for what is no range."""
    return depth_within(range_id, RANGES_MAX.bit_length() - 1)


def may_split(range_id: int) -> bool:
    return 2 * range_id < 2 * RANGES_MAX


def overlaps(one: int, other: int) -> bool:
    """Whether they share keys: one is the other, or was cut from it."""
    low, high = sorted((one, other))
    return high >> (depth(high) - depth(low)) == low


def below(range_id: int) -> list[int]:
    """All ranges that may be cut from it."""
    found, level = [], [range_id]
    while level := [child for each in level if may_split(each) for child in children(each)]:
        found += level
    return found


def above(range_id: int) -> list[int]:
    """The ranges that it was cut from, the nearest first."""
    return [range_id >> steps for steps in range(1, depth(range_id) + 1)]


def overlapping(range_id: int) -> list[int]:
    """All other ranges that share keys with it."""
    return [*above(range_id), *below(range_id)]


def deepest(ranges: Collection[int]) -> list[int]:
    """The parents of the smallest of a table's ranges; those are always there in pairs."""
    low = max(map(depth, ranges))
    return sorted({parent(each) for each in ranges if depth(each) == low}) if low else []


def hashes(range_id: int) -> tuple[int, int]:
    """The lowest and the highest hash of its keys."""
    width = 1 << (_BITS - depth(range_id))
    low = -(1 << (_BITS - 1)) + (range_id - (1 << depth(range_id))) * width
    return low, low + width - 1


def parts(range_id: int, count: int) -> range:
    """In which of `count` equal parts of all hashes, a power of two, its keys are."""
    levels = count.bit_length() - 1 - depth(range_id)
    place = range_id - (1 << depth(range_id))
    return (
        range(place << levels, (place + 1) << levels)
        if levels >= 0
        else range(place >> -levels, (place >> -levels) + 1)
    )


def holds(range_id: int, key_hash: int) -> bool:
    low, high = hashes(range_id)
    return low <= key_hash <= high


def hash_sql(key: Sequence[str]) -> str:
    """The hash of a row's key, as Spark computes it in UTC.

    Keys that are equal have one hash, also when their type was widened between: numbers count by what they are as
    doubles, and so do texts that are one; a date by itself is its midnight.
    """
    return f"xxhash64({', '.join(part for name in key for part in _canonical(quoted(name)))})"


def _canonical(column: str) -> tuple[str, str]:
    text = f"CAST({column} AS STRING)"
    return f"try_cast({text} AS DOUBLE)", f"IF(try_cast({text} AS DOUBLE) IS NULL, replace({text}, ' 00:00:00'), NULL)"


def condition_sql(key: Sequence[str], range_id: int) -> str:
    """Which rows are in the range, as a condition of Spark's; empty: all are."""
    if range_id == WHOLE:
        return ""
    low, high = hashes(range_id)
    return f"{hash_sql(key)} BETWEEN {low}L AND {high}L"
