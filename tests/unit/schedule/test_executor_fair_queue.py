"""The queue of iterations serves accounts in turn, is bounded, and turns away whoever crowds it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.iteration import Iteration
from iscp.model.job.job_row import JobRow
from iscp.model.values.ids import JobKey
from iscp.schedule.executor import IterationQueue

LENGTH_MAX = 2
ACCOUNTS = ("a", "b", "c")


def work(number: int, account: str = "a", priority: int = 0, deadline_s: float = 0.0) -> Iteration:
    row = JobRow(JobKey(account, "t", "j"), "id", "{}", "t", "/t")
    return Iteration(number, "t", "/t", (row,), priority=priority, deadline_s=deadline_s)


def taken(queue: IterationQueue) -> list[int]:
    return [each.number for each in iter(queue.pop, None)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "pop", "finish", "remove"]),
        st.sampled_from(ACCOUNTS),
        st.integers(-1, 1),
        st.integers(0, 2),
    ),
    min_size=16,
    max_size=40,
)


@given(STEPS)
def test_whatever_comes_the_next_is_that_of_the_account_with_least_at_work(
    steps: Sequence[tuple[str, str, int, int]],
) -> None:
    """`waiting` are those in the queue, in the order in which they came; `served` is when an account had its turn."""
    queue = IterationQueue(LENGTH_MAX)
    waiting: dict[int, Iteration] = {}
    running: list[Iteration] = []
    served: defaultdict[str, int] = defaultdict(int)
    for number, (deed, account, priority, deadline_s) in enumerate(steps, start=1):
        busy = Counter(each.account for each in running)
        counts = Counter(each.account for each in waiting.values())
        match deed:
            case "put":
                new = work(number, account, priority, deadline_s)
                out = queue.put(new)
                waiting[number] = new
                assert (out is None) == (len(waiting) <= LENGTH_MAX)
                if out is not None:
                    del waiting[out.number]
                    check_turned_away(out, new, list(waiting.values()), counts)
            case "pop":
                got = queue.pop()
                assert (got is None) == (not waiting)
                if got is not None:
                    assert busy[got.account] == min(busy[each] for each in counts)
                    assert served[got.account] == min(
                        served[each] for each in counts if busy[each] == busy[got.account]
                    )
                    mine = [each for each in waiting.values() if each.account == got.account]
                    assert got is min(mine, key=lambda each: (-each.priority, each.deadline_s, each.number))
                    del waiting[got.number]
                    running.append(got)
                    served[got.account] = number
            case "finish" if running:
                queue.finish(running.pop(0))
            case _:
                number = min(waiting, default=0)
                gone = waiting.pop(number, None)
                assert queue.remove(number) == (gone is not None)
                assert not queue.remove(number)
        for idle in served.keys() - {each.account for each in (*running, *waiting.values())}:
            del served[idle]  # an account that has nothing here is not remembered
        assert len(queue) == len(waiting)
    assert {each.number for each in queue.drain()} == waiting.keys()
    assert (len(queue), queue.pop()) == (0, None)


def check_turned_away(out: Iteration, new: Iteration, left: list[Iteration], counts: Counter[str]) -> None:
    """`counts`: what waited of each account before the newcomer."""
    if out.account == new.account:
        assert max(counts.values()) <= counts[new.account] + 1
    else:
        assert counts[out.account] == max(counts.values()) > counts[new.account] + 1
    behind = [each for each in left if each.account == out.account]
    assert all(
        (-each.priority, each.deadline_s, each.number) < (-out.priority, out.deadline_s, out.number) for each in behind
    )


def test_accounts_take_turns_whoever_came_first() -> None:
    queue = IterationQueue(10)
    for number, account in enumerate("aaabbc", start=1):
        queue.put(work(number, account))
    assert taken(queue) == [1, 4, 6, 2, 5, 3]


def test_an_account_with_less_at_work_goes_first() -> None:
    queue = IterationQueue(10)
    first = work(1)
    queue.put(first)
    assert queue.pop() is first
    for number, account in ((2, "a"), (3, "b"), (4, "b")):
        queue.put(work(number, account, priority=9 if account == "a" else 0))
    assert taken(queue) == [3, 2, 4]


@pytest.mark.parametrize(("priority", "stays"), [(0, False), (1, True)])
def test_in_a_queue_full_of_its_own_only_what_goes_before_others_gets_a_place(priority: int, stays: bool) -> None:
    queue = IterationQueue(2)
    one, other, new = work(1), work(2), work(3, priority=priority)
    assert (queue.put(one), queue.put(other)) == (None, None)
    assert queue.put(new) is (other if stays else new)
    assert taken(queue) == ([3, 1] if stays else [1, 2])


def test_what_is_removed_leaves_no_traces_however_much_it_is() -> None:
    queue = IterationQueue(1_000)
    for number in range(200):
        queue.put(work(number))
    assert all(queue.remove(number) for number in range(1, 200))
    queue.put(work(200))
    assert taken(queue) == [0, 200]


def test_an_account_that_replaces_its_only_one_keeps_its_turn() -> None:
    queue = IterationQueue(2)
    queue.put(work(1, "a"))
    assert queue.pop() is not None
    one, other = work(2, "a"), work(3, "b")
    queue.put(one)
    queue.finish(work(1, "a"))
    queue.put(work(4, "c"))
    assert queue.put(work(5, "a", priority=1)) is one
    assert queue.remove(4)
    queue.put(other)
    assert taken(queue) == [3, 5]
