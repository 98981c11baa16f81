from __future__ import annotations

import threading
from contextlib import suppress
from contextvars import copy_context

import pytest

from iscp.model.job.iteration import SECONDS_MOST, SparkNeed, Usage, UsagePart
from iscp.model.values.errors import Conflict
from iscp.model.values.untrusted_values import COUNT_MOST
from iscp.ports.engine import (
    UsageTally,
    charge_by_now,
    charge_rest_as,
    charged_as,
    charging,
    count_work,
    invested_s,
    investing,
    leave_to_spark,
    note_spark,
    working_for,
)
from tests.fakes.clock import FakeClock

READ, COMPUTE, COMMIT = UsagePart.READ, UsagePart.COMPUTE, UsagePart.COMMIT


def test_each_moment_is_charged_to_the_innermost_part() -> None:
    clock, tally = FakeClock(), UsageTally()

    @charged_as(COMMIT)
    def commit(rows_s: float) -> str:
        clock.advance(rows_s)
        return read()

    @charged_as(READ)
    def read() -> str:
        clock.advance(0.25)
        return "read"

    with working_for(clock, [tally]):
        clock.advance(1.0)
        assert commit(4.0) == "read"
        clock.advance(2.0)
        assert read() == "read"
    assert tally.usage(7) == Usage(read_s=0.5, compute_s=3.0, commit_s=4.0, rows_written=7)


def test_what_several_jobs_share_is_charged_to_each_and_their_own_work_to_one() -> None:
    clock, first, second = FakeClock(), UsageTally(), UsageTally()
    with working_for(clock, [first, second], READ):
        clock.advance(3.0)
        count_work(rows_read=10, bytes_read=100)
        with working_for(clock, []):  # both of them wait for each other's turn
            for number, tally in enumerate((first, second), start=1):
                clock.advance(50.0)
                with working_for(clock, [tally]):
                    clock.advance(number)
                    count_work(bytes_written=number)
        clock.advance(1.0)
    assert first.usage(0) == Usage(read_s=4.0, compute_s=1.0, rows_read=10, bytes_read=100, bytes_written=1)
    assert second.usage(0) == Usage(read_s=4.0, compute_s=2.0, rows_read=10, bytes_read=100, bytes_written=2)


def test_the_rest_of_the_work_may_be_another_part() -> None:
    clock, tally = FakeClock(), UsageTally()
    with working_for(clock, [tally]):
        clock.advance(1.0)
        charge_rest_as(COMMIT)
        clock.advance(2.0)
        with charging(READ):
            clock.advance(4.0)
        clock.advance(8.0)
        charge_by_now()
        assert tally.usage(0) == Usage(read_s=4.0, compute_s=1.0, commit_s=10.0)
        clock.advance(16.0)
    assert tally.usage(0).commit_s == 26.0


def test_what_fails_is_charged_too_and_the_part_around_it_goes_on() -> None:
    clock, tally = FakeClock(), UsageTally()

    @charged_as(COMMIT)
    def fail() -> None:
        clock.advance(2.0)
        raise Conflict("another was first")

    with working_for(clock, [tally]):
        with pytest.raises(Conflict):
            fail()
        clock.advance(1.0)
    assert tally.usage(0) == Usage(compute_s=1.0, commit_s=2.0)


def test_a_thread_that_works_for_nobody_measures_nothing() -> None:
    clock, tally = FakeClock(), UsageTally()

    def work() -> None:
        with charging(READ):
            clock.advance(5.0)
        charge_rest_as(COMMIT)
        charge_by_now()
        count_work(rows_read=5)

    work()
    with working_for(clock, [tally]):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert tally.usage(0) == Usage(compute_s=5.0), "the thread that waits for it works"


def test_nothing_is_counted_that_nobody_knows_or_could_store() -> None:
    clock, tally = FakeClock(), UsageTally()
    with working_for(clock, [tally]):
        count_work(rows_read=-1, bytes_read=COUNT_MOST)
        count_work(rows_read=5, bytes_read=COUNT_MOST)
        clock.advance(2 * SECONDS_MOST)
    assert tally.usage(0) == Usage(compute_s=SECONDS_MOST, rows_read=5, bytes_read=COUNT_MOST)


def test_a_thread_with_a_copied_context_charges_nobody() -> None:
    """A thread of a consumer may get the context of its iteration, as `asyncio.to_thread` gives it, and outlive it."""
    clock, tally = FakeClock(), UsageTally()
    entered, end = threading.Event(), threading.Event()

    def read() -> None:
        with charging(READ):
            count_work(rows_read=5)
            charge_rest_as(READ)
            entered.set()
            end.wait(10.0)

    with working_for(clock, [tally]):
        clock.advance(1.0)
        thread = threading.Thread(target=copy_context().run, args=(read,))
        thread.start()
        assert entered.wait(10.0)
        clock.advance(2.0)
    end.set()
    thread.join()
    assert tally.usage(0) == Usage(compute_s=3.0)


def test_a_use_of_spark_is_noted_for_whom_the_thread_works_by_the_reason_said_last() -> None:
    clock, first, second = FakeClock(), UsageTally(), UsageTally()
    with working_for(clock, [first, second]):
        leave_to_spark("it was thought to be large")
        leave_to_spark("it is large")
        leave_to_spark("nobody knows", unless_known=True)
        note_spark()
        note_spark(started=True)
        with working_for(clock, [second]):
            leave_to_spark("nobody knows", unless_known=True)
            note_spark()
            leave_to_spark("a filter")
            note_spark()
            note_spark()
    assert first.spark == SparkNeed(("it is large",), started=True)
    assert second.spark == SparkNeed(("it is large", "a filter"), started=True)


def test_a_reason_without_a_use_is_none_and_a_use_without_a_reason_is_one() -> None:
    clock, idle, silent = FakeClock(), UsageTally(), UsageTally()
    with working_for(clock, [idle]):
        leave_to_spark("it is large")
    with working_for(clock, [silent]):
        note_spark()
    assert (idle.spark, silent.spark) == (None, SparkNeed())
    leave_to_spark("nobody works here")
    note_spark()


def test_a_use_on_another_thread_is_not_noted_for_this_ones_jobs() -> None:
    clock, tally = FakeClock(), UsageTally()
    with working_for(clock, [tally]):
        thread = threading.Thread(target=copy_context().run, args=(note_spark,))
        thread.start()
        thread.join()
    assert tally.spark is None


def test_what_is_invested_is_counted_once_for_each_thread_however_it_ends() -> None:
    clock, before_s = FakeClock(), invested_s()
    with suppress(ValueError), investing(clock):
        clock.advance(2.0)
        with investing(clock):
            clock.advance(3.0)
        raise ValueError
    clock.advance(10.0)
    others = list[float]()
    thread = threading.Thread(target=lambda: others.append(invested_s()))
    thread.start()
    thread.join()
    assert (invested_s() - before_s, others) == (5.0, [0.0])
