"""What is kept of views is bounded, by their number and by the JVM's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from iscp.consumers.view.recent_views import HEAP_SHARE_MAX, RECENT_VIEWS_MAX, RecentViews

if TYPE_CHECKING:
    from pyspark import SparkContext


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


def test_half_of_them_are_dropped_where_the_heap_is_full() -> None:
    heap = Heap()
    views, kept = filled(heap, 9)
    heap.share = HEAP_SHARE_MAX
    assert views.of(8) is kept[8], "the one that is refreshed stays"
    heap.share = 0.0
    assert [views.of(number) is kept[number] for number in range(9)] == [False] * 4 + [True] * 5


def test_no_more_are_dropped_before_the_next_collection() -> None:
    heap = Heap()
    views, kept = filled(heap, 9)
    heap.share = 0.9
    for _ in range(5):
        views.of(8)  # what is dropped at first is in the JVM until it collects
    heap.share = 0.91
    views.of(8)
    heap.share = 0.0
    assert [views.of(number) is kept[number] for number in range(9)] == [False] * 6 + [True] * 3


def test_a_view_that_was_never_refreshed_needs_no_heap() -> None:
    heap = Heap()
    views, kept = filled(heap, 3)
    heap.share = 1.0
    views.of("new")
    heap.share = 0.0
    assert [views.of(number) is kept[number] for number in range(3)] == [True] * 3
