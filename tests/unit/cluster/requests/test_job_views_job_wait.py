"""Waits until a job is fresh: they end when it is, when it cannot be, and when nobody waits any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.job_log_writer import LogLimits
from iscp.cluster.requests.job_views import ALIVE_LOOK_S
from iscp.model.api.api_requests import JobFilter, JobName
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.values.errors import (
    ErrorCode,
    JobFailed,
    JobNotFound,
    OutcomeUnknown,
    TableNotFound,
    TargetLost,
    TimedOut,
    Unavailable,
)
from iscp.model.values.ids import ShardId
from tests.fakes.desk import TABLE, Desk, Waiter, X, asked, fail, request
from tests.fakes.waiting import until


def test_a_wait_for_what_is_applied_returns_at_once(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    for version in (None, 0, 7):
        assert desk.admin.wait(X, version, 0.0, lambda: True).applied_version == 7
    until(lambda: desk.notified == [(ShardId("t-1"), False)] * 3)  # the node is notified to probe now


def test_a_wait_does_not_answer_from_memory_while_the_target_is_gone(desk: Desk) -> None:
    """The job's node is notified to probe its targets, and the wait goes on until they are right."""
    row = desk.running()
    desk.reach(row, 7)
    desk.targets.faults["x"] = TargetLost("the target /targets/x is not there")
    with pytest.raises(TimedOut, match="/targets/x is not there"):
        desk.admin.wait(X, 7, 0.0, lambda: True)
    until(lambda: (ShardId("t-1"), True) in desk.notified)
    desk.notified.clear()
    waiter = Waiter(desk, 7)
    assert waiter.waits()
    until(lambda: (ShardId("t-1"), True) in desk.notified)
    desk.world.report(row, 7, JobState.RUNNING, Reason.NONE, JobStatus(doubted_at_s=1.0))
    assert not waiter.answer.done()
    del desk.targets.faults["x"]
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, JobStatus())
    assert waiter.answer.result(10.0).applied_version == 7
    assert desk.notified.count((ShardId("t-1"), True)) == 1


def test_a_paused_job_whose_target_is_gone_is_not_fresh(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    desk.targets.faults["x"] = TargetLost("the target /targets/x is not there")
    with pytest.raises(JobFailed, match="is paused, and the target /targets/x is not there"):
        desk.admin.wait(X, 7, 0.0, lambda: True)


def test_a_target_in_doubt_lags_since_the_doubt(desk: Desk) -> None:
    row = desk.running()
    doubted_at_s = desk.world.clock.now_s() - 30.0
    desk.reach(row, 7, JobState.ERROR, Reason.RETRYING, JobStatus(doubted_at_s=doubted_at_s))
    desk.world.see(7)
    until(lambda: desk.admin.status(X).lag_s >= 30.0)


def test_a_wait_returns_when_the_version_is_applied_and_not_before(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk, None)  # the table's newest: 7
    assert waiter.waits()
    desk.world.report(row, 6)
    until(lambda: desk.admin.status(X).applied_version == 6)
    assert waiter.waits()
    began_s = time.monotonic()
    desk.world.report(row, 8)
    assert waiter.answer.result(10.0).applied_version == 8
    assert time.monotonic() - began_s < ALIVE_LOOK_S  # woken, not found by looking


def test_a_wait_does_not_wait_for_the_log(desk: Desk) -> None:
    row = desk.running()
    desk.admin.register([request("y")])
    waiter = Waiter(desk)
    assert waiter.waits()
    log = desk.world.logs[-1]
    log.faults.append(OutcomeUnknown("the storage does not answer"))
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(asked, desk, "pause", JobName(TABLE.uri, "y"))
        until(lambda: not log.faults)
        began_s = time.monotonic()
        desk.world.report(row, 7)
        assert waiter.answer.result(10.0).applied_version == 7
        assert time.monotonic() - began_s < ALIVE_LOOK_S
        # Whoever reads the job after the wait sees what the wait has seen.
        (listed,) = desk.admin.list_jobs(JobFilter(name_pattern="x"))
        assert (desk.admin.status(X).applied_version, listed.applied_version) == (7, 7)
        assert not pausing.done()
        desk.world.pass_s(LogLimits().retry_s)

        def paused_meanwhile() -> bool:
            desk.world.pass_s(1.0)
            return pausing.done()

        until(paused_meanwhile)


def test_a_wait_ends_when_its_time_is_up(desk: Desk) -> None:
    desk.reach(desk.running(), 5)
    with pytest.raises(TimedOut, match=r"version 7 was not applied within 0 s; the job is at version 5, late on n-1"):
        desk.admin.wait(X, None, 0.0, lambda: True)
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.clock.advance(60.0)
    with pytest.raises(TimedOut):
        waiter.answer.result(10.0)


def test_a_wait_whose_time_is_up_says_what_holds_the_job_up(desk: Desk) -> None:
    failed = JobStatus(error_code=ErrorCode.STORAGE, error_msg="the disk is full")
    desk.world.report(desk.running(), -1, JobState.ERROR, Reason.QUARANTINED, failed)
    until(lambda: desk.admin.status(X).state is JobState.ERROR)
    words = r"has applied nothing yet, retrying on n-1; its last error: 9 the disk is full"
    with pytest.raises(TimedOut, match=words):
        desk.admin.wait(X, None, 0.0, lambda: True)


def pause(desk: Desk, row: JobRow) -> None:
    asked(desk, "pause", X)


def drop(desk: Desk, row: JobRow) -> None:
    asked(desk, "unregister", X)


@pytest.mark.parametrize(("event", "why"), [(pause, "is paused"), (drop, "was dropped"), (fail, "rows share a key")])
def test_a_wait_that_cannot_end_well_fails(desk: Desk, event: Callable[[Desk, JobRow], None], why: str) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    event(desk, row)
    with pytest.raises(JobFailed, match=why):
        waiter.answer.result(10.0)


def test_a_job_that_fails_for_now_is_waited_for(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.report(row, 5, JobState.ERROR, Reason.RETRYING, JobStatus(error_code=ErrorCode.STORAGE))
    until(lambda: desk.admin.status(X).state is JobState.ERROR)
    assert not waiter.answer.done()
    desk.world.report(row, 7, JobState.COMPLETED, Reason.NONE, JobStatus())
    assert waiter.answer.result(10.0).applied_version == 7


def test_a_paused_job_that_has_come_far_enough_is_no_failure(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    assert desk.admin.wait(X, 7, 0.0, lambda: True).reason is Reason.PAUSED


def test_a_job_that_was_dropped_and_made_again_is_another_one(desk: Desk) -> None:
    desk.running()
    go_on = threading.Event()
    waiter = Waiter(desk, alive=lambda: go_on.wait(10.0))
    assert waiter.waits()
    asked(desk, "unregister", X)
    desk.admin.register([request()])
    go_on.set()  # it has not seen that there was none in between
    with pytest.raises(JobFailed, match="was dropped"):
        waiter.answer.result(10.0)


def test_a_wait_is_given_up_when_nobody_waits_any_more_or_the_node_stops(desk: Desk) -> None:
    desk.running()
    gone = Waiter(desk, alive=lambda: False)
    with pytest.raises(Unavailable):
        gone.answer.result(10.0)
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.moved.close()
    with pytest.raises(Unavailable):
        waiter.answer.result(10.0)


def test_a_wait_outlasts_a_change_of_the_owner(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.etcd.depose()
    until(lambda: desk.admin.cluster().owner_rev == 2)
    assert waiter.waits()
    desk.world.pass_s(1.0)
    until(desk.world.runs)
    desk.reach(row, 7)
    assert waiter.answer.result(10.0).applied_version == 7


def test_waiting_for_what_does_not_exist_is_refused(desk: Desk) -> None:
    desk.admin.register([request()])
    with pytest.raises(JobNotFound):
        desk.admin.wait(JobName(TABLE.uri, "none"), 1, 0.0, lambda: True)
    with pytest.raises(TableNotFound):
        desk.admin.wait(JobName("/tables/none", "x"), 1, 0.0, lambda: True)


def test_moves_that_came_before_the_wait_are_not_missed() -> None:
    moved = ProgressSignal()
    since = moved.count()
    moved.notify()
    began_s = time.monotonic()
    moved.wait(since, 30.0)
    assert time.monotonic() - began_s < 10.0


def test_who_waits_is_woken() -> None:
    moved = ProgressSignal()
    waiting = threading.Thread(target=moved.wait, args=(moved.count(), 30.0))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    moved.notify()
    waiting.join(10.0)
    assert not waiting.is_alive()
