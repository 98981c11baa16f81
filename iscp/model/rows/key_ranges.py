"""Key-hash ranges of a table: which there may be, which overlap, which keys are in one.

Ranges follow a binary tree (iscp.model.rows.key_ranges), of which 1 is the whole table. The highest bits of a key's
hash, a signed number of 64 bits, say to which range it belongs: in order of their hashes the ranges of one level lie
side by side, so that a range is all hashes between a lowest and a highest.

Ranges as they are cut in halves and put together again, whatever is in them (after ScyllaDB's tablets).

A binary tree: 1 is the whole, n is cut into 2n and 2n+1, and those two are put together again as n.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp.model.sql.sql_names import quoted

WHOLE = 1


def depth_within(range_id: int, depth_max: int) -> int:
    """Return how often the whole was cut to get the range.

    Raises ValueError for what is no range, or was cut more than `depth_max` times.
    """
    if not WHOLE <= range_id < 2 << depth_max:
        raise ValueError(f"{range_id} is no range: they go from {WHOLE} to {(2 << depth_max) - 1}")
    return range_id.bit_length() - 1


def children(range_id: int) -> tuple[int, int]:
    return 2 * range_id, 2 * range_id + 1


def parent(range_id: int) -> int:
    return range_id // 2


def sibling(range_id: int) -> int:
    """Return the other half of its parent."""
    return range_id ^ 1


RANGES_MAX = 64
"""Ranges of one table at a time; none is smaller than this part of it, and a split beyond it is refused."""

_BITS = 64


def depth(range_id: int) -> int:
    """Return how often the whole was cut to get the range; raise ValueError for what is no range."""
    return depth_within(range_id, RANGES_MAX.bit_length() - 1)


def may_split(range_id: int) -> bool:
    return 2 * range_id < 2 * RANGES_MAX


def overlaps(one: int, other: int) -> bool:
    """Return whether two ranges share keys: one is the other, or was cut from it."""
    low, high = sorted((one, other))
    return high >> (depth(high) - depth(low)) == low


def below(range_id: int) -> list[int]:
    """Return all ranges that may be cut from this one."""
    found, level = [], [range_id]
    while level := [child for each in level if may_split(each) for child in children(each)]:
        found += level
    return found


def above(range_id: int) -> list[int]:
    """Return the ranges that this one was cut from, the nearest first."""
    return [range_id >> steps for steps in range(1, depth(range_id) + 1)]


def overlapping(range_id: int) -> list[int]:
    """Return all other ranges that share keys with this one."""
    return [*above(range_id), *below(range_id)]


def deepest(ranges: Collection[int]) -> list[int]:
    """Return the parents of the smallest of a table's ranges; those are always there in pairs."""
    low = max(map(depth, ranges))
    return sorted({parent(each) for each in ranges if depth(each) == low}) if low else []


def hashes(range_id: int) -> tuple[int, int]:
    """Return the lowest and the highest hash of its keys."""
    width = 1 << (_BITS - depth(range_id))
    low = -(1 << (_BITS - 1)) + (range_id - (1 << depth(range_id))) * width
    return low, low + width - 1


def parts(range_id: int, count: int) -> range:
    """Return the parts with keys of the range, of `count` equal parts of all hashes (a power of two)."""
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
    """Return SQL for the hash of a row's key, as Spark computes it in UTC.

    Keys that are equal have one hash, also when their type was widened between: numbers count by their value as
    doubles, and so do texts that are one; a date by itself is its midnight.
    """
    return f"xxhash64({', '.join(part for name in key for part in _canonical(quoted(name)))})"


def _canonical(column: str) -> tuple[str, str]:
    text = f"CAST({column} AS STRING)"
    return f"try_cast({text} AS DOUBLE)", f"IF(try_cast({text} AS DOUBLE) IS NULL, replace({text}, ' 00:00:00'), NULL)"


def condition_sql(key: Sequence[str], range_id: int) -> str:
    """Return the condition, in Spark's SQL, that rows of the range meet; empty: all do."""
    if range_id == WHOLE:
        return ""
    low, high = hashes(range_id)
    return f"{hash_sql(key)} BETWEEN {low}L AND {high}L"
