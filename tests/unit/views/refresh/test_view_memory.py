"""What is kept of groups is written again only where that has paid off.

What is kept of views is bounded, by their number and by the JVM's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from iscp.views.refresh.view_memory import (
    COLLECTIONS,
    HEAP_SHARE_MAX,
    RECENT_VIEWS_MAX,
    SERVED_LEAST,
    RecentViews,
    StoringWorth,
)

if TYPE_CHECKING:
    from pyspark import SparkContext


def test_it_is_written_again_once_it_has_served_often_enough_on_average() -> None:
    worth = StoringWorth()
    assert worth.write()
    worth.served += SERVED_LEAST - 1
    assert not worth.write()
    worth.served += 1
    assert worth.write()
    assert not worth.write(), "both of them have to have paid off"
    worth.served += SERVED_LEAST
    assert worth.write()


class Heap:
    """`share`: in use, as the last full collection found."""

    def __init__(self) -> None:
        self.share = 0.0

    def share_of(self, context: SparkContext) -> float:
        return self.share


def filled(heap: Heap, count: int) -> tuple[RecentViews, list[object]]:
    """The views, longest unrefreshed first."""
    views, kept = RecentViews(heap.share_of), list[object]()
    for number in range(count):
        view = views.of(number)
        view.context = cast("SparkContext", object())  # as once it was refreshed
        kept.append(view)
    return views, kept


def test_the_longest_unrefreshed_is_dropped() -> None:
    views, kept = filled(Heap(), RECENT_VIEWS_MAX)
    assert views.of(0) is kept[0]
    views.of("one more")
    assert views.of(0) is kept[0]
    assert views.of(1) is not kept[1]


def collect(heap: Heap, views: RecentViews, shares: Sequence[float]) -> None:
    """One view is refreshed after each collection, and once more before the next."""
    for share in shares:
        heap.share = share
        views.of(8)
        views.of(8)


FULL = [HEAP_SHARE_MAX + 0.01 * number for number in range(COLLECTIONS)]


def test_half_of_them_are_dropped_where_the_heap_stays_full() -> None:
    heap = Heap()
    views, kept = filled(heap, 9)
    collect(heap, views, FULL)
    assert views.of(8) is kept[8], "the one that is refreshed stays"
    assert [views.of(number) is kept[number] for number in range(9)] == [False] * 4 + [True] * 5


def test_a_collection_in_the_middle_of_a_large_query_drops_none() -> None:
    heap = Heap()
    views, kept = filled(heap, 9)
    collect(heap, views, [*FULL[:-1], 0.5, *FULL[:-1]])
    assert all(views.of(number) is kept[number] for number in range(9))


def test_more_are_dropped_once_it_was_full_again_for_as_long() -> None:
    heap = Heap()
    views, kept = filled(heap, 9)
    collect(heap, views, FULL)
    collect(heap, views, FULL[:-1])
    collect(heap, views, [0.95, 0.96])
    assert [views.of(number) is kept[number] for number in range(9)] == [False] * 6 + [True] * 3


def test_a_view_that_was_never_refreshed_needs_no_heap() -> None:
    heap = Heap()
    views, kept = filled(heap, 3)
    for share in FULL:
        heap.share = share
        views.of(f"new {share}")
    assert [views.of(number) is kept[number] for number in range(3)] == [True] * 3
