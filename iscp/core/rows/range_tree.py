"""Ranges as they are cut in halves and put together again, whatever is in them (after ScyllaDB's tablets).

A binary tree: 1 is the whole, n is cut into 2n and 2n+1, and those two are put together again as n.
"""

from __future__ import annotations

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
