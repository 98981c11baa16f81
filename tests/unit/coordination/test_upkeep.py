"""What has to be done again and again: each at its time, once at a time, and later after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.upkeep import STALE_MAX, UpkeepHeap
from iscp.core.config import BackoffConfig

INTERVAL_S = 10.0


@pytest.fixture
def heap() -> UpkeepHeap[str]:
    return new_heap()


def new_heap() -> UpkeepHeap[str]:
    return UpkeepHeap(INTERVAL_S, BackoffConfig(base_s=20.0, cap_s=60.0), lambda: 0.0)


def test_what_is_new_is_due_at_once_and_then_at_its_time(heap: UpkeepHeap[str]) -> None:
    heap.add("a", 0.0)
    assert heap.take_due(0.0) == ["a"]
    assert heap.take_due(100.0) == []  # it is being done
    heap.done("a", 30.0, 5.0)
    assert heap.next_due_s() == 35.0
    assert heap.take_due(34.9) == []
    assert heap.take_due(35.0) == ["a"]


def test_however_soon_it_wants_to_come_again_it_waits_for_the_interval(heap: UpkeepHeap[str]) -> None:
    heap.add("a", 0.0)
    heap.take_due(0.0)
    heap.done("a", 0.001, 0.0)
    assert heap.next_due_s() == INTERVAL_S


def test_failures_wait_twice_as_long_each_time_up_to_the_cap_and_a_success_forgets_them(heap: UpkeepHeap[str]) -> None:
    heap.add("a", 0.0)
    now_s, waits = 0.0, []
    for _ in range(4):
        assert heap.take_due(now_s) == ["a"]
        waits.append(heap.failed("a", now_s))
        now_s += waits[-1]
    assert waits == [20.0, 40.0, 60.0, 60.0]
    heap.take_due(now_s)
    heap.done("a", 15.0, now_s)
    assert heap.take_due(now_s + 15.0) == ["a"]
    assert heap.failed("a", now_s) == 20.0


def test_one_that_fails_holds_up_no_other(heap: UpkeepHeap[str]) -> None:
    for item in ("a", "b"):
        heap.add(item, 0.0)
    assert heap.take_due(0.0) == ["a", "b"]
    heap.failed("a", 0.0)
    heap.done("b", 11.0, 0.0)
    assert heap.take_due(11.0) == ["b"]


def test_what_is_hastened_is_due_after_the_interval_unless_it_failed_or_is_being_done(heap: UpkeepHeap[str]) -> None:
    for item in ("waits", "fails", "runs"):
        heap.add(item, 0.0)
    heap.take_due(0.0)
    heap.done("waits", 500.0, 0.0)
    heap.failed("fails", 0.0)
    for item in ("waits", "fails", "runs", "unknown"):
        heap.hasten(item, 1.0)
    assert heap.take_due(INTERVAL_S - 0.1) == []
    assert heap.take_due(INTERVAL_S) == ["waits"]


def test_what_is_given_up_while_it_is_done_is_forgotten_when_it_ends(heap: UpkeepHeap[str]) -> None:
    heap.add("a", 0.0)
    heap.take_due(0.0)
    heap.remove("a")
    assert "a" not in heap
    heap.done("a", 30.0, 0.0)
    assert heap.next_due_s() is None


def test_what_comes_back_while_it_is_done_is_not_done_twice_at_a_time(heap: UpkeepHeap[str]) -> None:
    heap.add("a", 0.0)
    heap.take_due(0.0)
    heap.remove("a")
    heap.add("a", 1.0)
    assert heap.take_due(1.0) == []
    heap.done("a", 30.0, 1.0)
    assert heap.take_due(31.0) == ["a"]


def test_times_that_no_longer_count_do_not_gather(heap: UpkeepHeap[str]) -> None:
    for turn in range(3 * STALE_MAX):
        heap.add("a", float(turn))
        heap.remove("a")
    assert len(heap._heap) <= STALE_MAX + 3


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "take", "done", "failed", "hasten"]), st.sampled_from("abc")),
    max_size=40,
)


@given(ACTIONS)
def test_every_wanted_item_is_being_done_or_waits_and_is_never_done_twice_at_a_time(
    actions: list[tuple[str, str]],
) -> None:
    heap, running, wanted = new_heap(), set[str](), set[str]()
    for now_s, (action, item) in enumerate(actions):
        match action:
            case "add":
                heap.add(item, now_s)
                wanted.add(item)
            case "remove":
                heap.remove(item)
                wanted.discard(item)
            case "hasten":
                heap.hasten(item, now_s)
            case "take":
                taken = heap.take_due(now_s)
                assert not running & set(taken)
                running |= set(taken)
            case _ if item in running:
                running.discard(item)
                if action == "done":
                    heap.done(item, 1.0, now_s)
                else:
                    heap.failed(item, now_s)
    assert {item for item in "abc" if item in heap} == wanted
    assert set(heap.take_due(10_000.0)) == wanted - running
