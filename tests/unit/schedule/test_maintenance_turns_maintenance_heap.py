"""Recurring work: each item runs at its time, once at a time, and with backoff after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.settings.config import BackoffConfig
from iscp.model.values.errors import PermanentError, TemporaryError, TimedOut
from iscp.schedule.maintenance_turns import STALE_MAX, MaintenanceHeap

INTERVAL_S = 10.0


@pytest.fixture
def heap() -> MaintenanceHeap[str]:
    return new_heap()


AWAY, BROKEN = TemporaryError("away"), PermanentError("broken")


def new_heap() -> MaintenanceHeap[str]:
    return MaintenanceHeap(INTERVAL_S, BackoffConfig(base_s=20.0, cap_s=60.0, quarantine_after=6), lambda: 0.0)


def begun(heap: MaintenanceHeap[str], now_s: float) -> list[str]:
    """All that are due have their turn at once."""
    return [item for item in heap.take_due(now_s) if heap.begin(item)]


def test_what_is_new_is_due_at_once_and_then_at_its_time(heap: MaintenanceHeap[str]) -> None:
    heap.add("a", 0.0)
    assert begun(heap, 0.0) == ["a"]
    assert begun(heap, 100.0) == []  # it is being done
    heap.complete("a", 30.0, 5.0)
    assert heap.next_due_s() == 35.0
    assert begun(heap, 34.9) == []
    assert begun(heap, 35.0) == ["a"]


def test_however_soon_it_wants_to_come_again_it_waits_for_the_interval(heap: MaintenanceHeap[str]) -> None:
    heap.add("a", 0.0)
    begun(heap, 0.0)
    heap.complete("a", 0.001, 0.0)
    assert heap.next_due_s() == INTERVAL_S


def test_failures_wait_twice_as_long_each_time_up_to_the_cap_and_a_success_forgets_them(
    heap: MaintenanceHeap[str],
) -> None:
    heap.add("a", 0.0)
    now_s, waits = 0.0, []
    for _ in range(4):
        assert begun(heap, now_s) == ["a"]
        waits.append(heap.fail("a", AWAY, now_s))
        now_s += waits[-1]
    assert waits == [20.0, 40.0, 60.0, 60.0]
    begun(heap, now_s)
    heap.complete("a", 15.0, now_s)
    assert begun(heap, now_s + 15.0) == ["a"]
    assert heap.fail("a", AWAY, now_s) == 20.0


def test_one_that_fails_holds_up_no_other(heap: MaintenanceHeap[str]) -> None:
    for item in ("a", "b"):
        heap.add(item, 0.0)
    assert begun(heap, 0.0) == ["a", "b"]
    heap.fail("a", AWAY, 0.0)
    heap.complete("b", 11.0, 0.0)
    assert begun(heap, 11.0) == ["b"]


def test_what_is_hastened_is_due_after_the_interval_unless_it_failed_or_is_being_done(
    heap: MaintenanceHeap[str],
) -> None:
    for item in ("waits", "fails", "runs"):
        heap.add(item, 0.0)
    begun(heap, 0.0)
    heap.complete("waits", 500.0, 0.0)
    heap.fail("fails", AWAY, 0.0)
    for item in ("waits", "fails", "runs", "unknown"):
        heap.hasten(item, 1.0)
    assert begun(heap, INTERVAL_S - 0.1) == []
    assert begun(heap, INTERVAL_S) == ["waits"]


def test_what_is_given_up_while_it_is_done_is_forgotten_when_it_ends(heap: MaintenanceHeap[str]) -> None:
    heap.add("a", 0.0)
    begun(heap, 0.0)
    heap.remove("a")
    assert "a" not in heap
    heap.complete("a", 30.0, 0.0)
    assert heap.next_due_s() is None


def test_what_comes_back_while_it_is_done_is_not_done_twice_at_a_time(heap: MaintenanceHeap[str]) -> None:
    heap.add("a", 0.0)
    begun(heap, 0.0)
    heap.remove("a")
    heap.add("a", 1.0)
    assert begun(heap, 1.0) == []
    heap.complete("a", 30.0, 1.0)
    assert begun(heap, 31.0) == ["a"]


def test_times_that_no_longer_count_do_not_gather(heap: MaintenanceHeap[str]) -> None:
    for turn in range(3 * STALE_MAX):
        heap.add("a", float(turn))
        heap.remove("a")
    assert len(heap._heap) <= STALE_MAX + 3


def test_what_keeps_failing_or_failed_for_good_is_tried_rarely_until_it_is_changed(heap: MaintenanceHeap[str]) -> None:
    for item in ("often", "for good"):
        heap.add(item, 0.0)
    begun(heap, 0.0)
    assert heap.fail("for good", BROKEN, 0.0) == 3_600.0
    now_s, waits = 0.0, []
    for _ in range(6):
        waits.append(heap.fail("often", AWAY, now_s))
        now_s += waits[-1]
        begun(heap, min(now_s, 3_599.0))
    assert waits == [20.0, 40.0, 60.0, 60.0, 60.0, 3_600.0]
    figures = heap.figures("for good", now_s, 1_000.0)
    assert figures is not None
    assert (figures.quarantined, figures.error_msg, figures.failed) == (True, "broken", 1)
    heap.renew("for good", 100.0)
    assert begun(heap, 100.0) == ["for good"]


def test_one_that_was_given_up_is_begun_again_only_when_it_has_ended(heap: MaintenanceHeap[str]) -> None:
    heap.add("a", 0.0)
    begun(heap, 0.0)
    heap.give_up("a", TimedOut("too long"))
    assert begun(heap, 10_000.0) == []
    told = heap.figures("a", 10_000.0, 0.0)
    assert told is not None
    assert (told.running, told.hanging, told.timeout, told.error_msg) == (True, True, 1, "too long")
    assert heap.end_late("a", 10_000.0) == 20.0
    assert begun(heap, 10_020.0) == ["a"]
    heap.complete("a", 50.0, 10_020.0)
    told = heap.figures("a", 10_030.0, 500.0)
    assert told is not None
    assert (told.submitted, told.completed, told.error_code, told.next_at_s) == (2, 1, 0, 540.0)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "take", "done", "failed", "hasten", "hang"]), st.sampled_from("abc")),
    max_size=40,
)


@given(ACTIONS)
def test_every_wanted_item_is_being_done_or_waits_and_is_never_done_twice_at_a_time(
    actions: list[tuple[str, str]],
) -> None:
    heap, running, hanging, wanted = new_heap(), set[str](), set[str](), set[str]()
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
                taken = begun(heap, now_s)
                assert not (running | hanging) & set(taken)
                running |= set(taken)
            case "hang" if item in running:
                running.discard(item)
                hanging.add(item)
                heap.give_up(item, TimedOut("too long"))
            case _ if item in hanging and action == "done":
                hanging.discard(item)
                heap.end_late(item, now_s)
            case _ if item in running and action in ("done", "failed"):
                running.discard(item)
                if action == "done":
                    heap.complete(item, 1.0, now_s)
                else:
                    heap.fail(item, AWAY, now_s)
    assert {item for item in "abc" if item in heap} == wanted
    assert set(begun(heap, 10_000.0)) == wanted - running - hanging
