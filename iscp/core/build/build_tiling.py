"""Choose the staged ranges that make up the whole snapshot, each piece once.

A range may be there beside its halves, or one half beside the whole: splits, merges and results that come late leave
any of them behind. All of them were read of one version, so that either way gives the same rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from iscp.core.build.build_task import covers
from iscp.core.rows.range_tree import WHOLE, children, parent


@dataclass(frozen=True, slots=True)
class Tiling:
    """Ranges that are `chosen`, and the largest ranges of which nothing is there (`lacking`).

    Both together tile the whole: no two of them have a piece in common, and every piece is in one of them.
    """

    chosen: tuple[int, ...]
    lacking: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return not self.lacking


def tiling(there: Collection[int]) -> Tiling:
    """Choose from the ranges that are `there`; the largest win over what they were cut into."""
    cut = _above(there)
    chosen: list[int] = []
    lacking: list[int] = []
    waiting = [WHOLE]
    while waiting:
        range_id = waiting.pop()
        if range_id in there:
            chosen.append(range_id)
        elif range_id in cut:
            waiting += reversed(children(range_id))
        else:
            lacking.append(range_id)
    return Tiling(tuple(chosen), tuple(lacking))


def is_staged(range_id: int, there: Collection[int]) -> bool:
    """Return whether nothing of the range is left to be built: it is there itself, or what it was cut from, or all its
    parts.
    """
    found = tiling(there)
    return not any(covers(range_id, each) or covers(each, range_id) for each in found.lacking)


def _above(there: Collection[int]) -> set[int]:
    """Return all ranges that one of these was cut from."""
    found: set[int] = set()
    for each in there:
        while each > WHOLE and (each := parent(each)) not in found:
            found.add(each)
    return found
