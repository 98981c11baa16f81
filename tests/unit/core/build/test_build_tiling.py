"""Whatever was split, merged and staged late, what is published has each piece once, and nothing is missed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.core.build.build_task import covers, depth
from iscp.core.build.build_tiling import is_staged, tiling
from iscp.core.rows.range_tree import WHOLE, children, parent

DEEPEST = 6
LEAVES = range(1 << DEEPEST, 2 << DEEPEST)
HISTORY = st.lists(st.tuples(st.sampled_from(["split", "merge", "stage", "late"]), st.integers(0, 999)), max_size=60)


def played(history: list[tuple[str, int]]) -> tuple[set[int], list[int]]:
    """What is staged, and the ranges that are to be built now. Late results are of ranges from any time before."""
    live, known, there = [WHOLE], [WHOLE], set[int]()
    for what, draw in history:
        tile = live[draw % len(live)]
        if what == "split" and depth(tile) < DEEPEST:
            live.remove(tile)
            live += children(tile)
        elif what == "merge" and tile > WHOLE and tile ^ 1 in live:
            live.remove(tile)
            live.remove(tile ^ 1)
            live.append(parent(tile))
        elif what == "stage":
            there.add(tile)
        elif what == "late":
            there.add(known[draw % len(known)])
        known += [each for each in live if each not in known]
    return there, live


@given(HISTORY)
def test_what_is_chosen_and_what_lacks_tile_the_whole(history: list[tuple[str, int]]) -> None:
    there, _ = played(history)
    found = tiling(there)
    assert set(found.chosen) <= there
    for leaf in LEAVES:
        assert sum(covers(each, leaf) for each in (*found.chosen, *found.lacking)) == 1
    for each in found.lacking:
        assert not any(covers(each, other) and is_staged(each, there) for other in there)
        assert each == WHOLE or any(covers(parent(each), other) for other in there), "the largest that lack"


@given(HISTORY)
def test_the_largest_win(history: list[tuple[str, int]]) -> None:
    there, _ = played(history)
    for each in tiling(there).chosen:
        assert not any(covers(other, each) for other in there if other != each)


@given(HISTORY)
def test_once_all_that_is_to_be_built_is_there_nothing_lacks(history: list[tuple[str, int]]) -> None:
    there, live = played(history)
    assert tiling(there | set(live)).whole


@given(HISTORY, st.integers(WHOLE, (2 << DEEPEST) - 1))
def test_a_range_is_staged_where_none_of_its_leaves_lacks(history: list[tuple[str, int]], range_id: int) -> None:
    there, _ = played(history)
    leaves = [leaf for leaf in LEAVES if covers(range_id, leaf)]
    assert is_staged(range_id, there) == all(any(covers(each, leaf) for each in there) for leaf in leaves)


def test_nothing_is_there_at_first() -> None:
    assert tiling(()).lacking == (WHOLE,)
    assert tiling({2}).lacking == (3,)
    assert tiling({2, 6}).lacking == (7,)
    assert tiling({2, 3}).chosen == (2, 3)
    assert tiling({1, 2, 6}).chosen == (1,)
