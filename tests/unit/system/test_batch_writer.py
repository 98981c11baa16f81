"""Batches of entries: their order, whom they call, and what happens to those that cannot be written.

What cannot be held is found alone, and its neighbours are appended in order and in few commits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from iscp.model.values.errors import InvalidRequest, IscpError, StorageError
from iscp.system.batch_writer import BatchLimits, BatchWriter, Chore, Outlet, append_in_halves
from tests.fakes.clock import FakeClock

LIMITS = BatchLimits(batch_max=3, retry_s=0.5, retry_max_s=4.0, close_s=5.0)


class Table:
    """Cannot store negative numbers; fails as often as it is given failures."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.failures: list[IscpError] = []
        self.refused: list[int] = []
        self.lost: list[int] = []
        self.chores = 0
        self.clock = FakeClock()

    def append(self, entries: Sequence[int]) -> None:
        if min(entries) < 0:
            raise InvalidRequest("negative")
        if self.failures:
            raise self.failures.pop()
        self.rows.extend(entries)

    def do_chore(self) -> None:
        self.chores += 1

    def writer(self, limits: BatchLimits = LIMITS) -> BatchWriter[int]:
        outlet: Outlet[int] = Outlet(
            append=self.append,
            refuse=lambda entry, error: self.refused.append(entry),
            on_failure=lambda error: 0.0,
            lose=lambda entries, why: self.lost.extend(entries),
            weigh=abs,
        )
        return BatchWriter("numbers", outlet, limits, Chore(self.do_chore, 60.0, self.clock))


def test_each_is_notified_once_its_entries_and_those_before_are_written() -> None:
    table, called = Table(), list[str]()
    writer = table.writer()
    writer.add([1, 2], lambda: called.append("a"))
    writer.add([3, 4], lambda: called.append("b"))
    writer.add([], lambda: called.append("c"))
    assert writer.turn()
    assert (table.rows, called, writer.waiting()) == ([1, 2, 3], ["a"], [4])
    assert writer.turn()
    assert (called, writer.waiting()) == (["a", "b", "c"], [])
    writer.add([], lambda: called.append("d"))
    assert called[-1] == "d"


def test_what_was_written_of_a_batch_that_failed_is_not_written_again() -> None:
    table = Table()
    writer = table.writer()
    writer.add([-1, 2, 3])
    table.failures = [StorageError("full")]
    assert not writer.turn()
    assert (table.refused, writer.waiting()) == ([-1], [2, 3])
    assert writer.turn()
    assert (table.rows, table.refused) == ([2, 3], [-1])


def test_while_nobody_shall_wait_all_are_notified_and_the_newest_stay() -> None:
    table, called = Table(), list[str]()
    writer = table.writer()
    writer.add([1, 2, 3, 4], lambda: called.append("a"))
    assert writer.delay(entries_max=2) == 2
    writer.add([5], lambda: called.append("b"))
    assert (called, writer.waiting()) == (["a", "b"], [3, 4, 5])
    assert writer.turn()
    writer.add([6], lambda: called.append("c"))
    assert called == ["a", "b"]
    assert writer.turn()
    assert (called, table.rows) == (["a", "b", "c"], [3, 4, 5, 6])


def test_the_queue_is_bounded_by_count_and_by_weight() -> None:
    table = Table()
    writer = table.writer(BatchLimits(3, 0.5, 4.0, 5.0, queue_max=2, weight_max=10))
    writer.add([6, 5, 4, 0])
    assert (writer.waiting(), table.lost) == ([6, 4], [5, 0])


def test_the_chore_is_done_when_it_is_due_and_what_waits_at_the_end_is_lost() -> None:
    table = Table()
    writer = table.writer()
    writer.turn()
    assert table.chores == 0
    table.clock.advance(61.0)
    writer.turn()
    assert table.chores == 1
    writer.add([1])
    writer.close()
    writer.add([2])
    assert (table.rows, table.lost) == ([], [1, 2])


def test_neighbours_of_what_is_refused_are_appended_in_order_and_few_commits() -> None:
    commits: list[Sequence[int]] = []
    refused: list[int] = []

    def append(batch: Sequence[int]) -> None:
        if 5 in batch:
            raise InvalidRequest("5 cannot be held")
        commits.append(batch)

    append_in_halves(range(16), append, lambda entry, error: refused.append(entry))
    assert refused == [5]
    assert [each for batch in commits for each in batch] == [*range(5), *range(6, 16)]
    assert len(commits) == 4


def test_another_fault_is_the_callers() -> None:
    def fail(batch: Sequence[int]) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        append_in_halves([1, 2], fail, lambda entry, error: None)
