"""What the schedule reports of an iteration, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.coordination.schedule.schedule_events import JobCommitted
from iscp.core.job.job_row import JobState, JobStatus, Reason, apply_report
from iscp.core.job.usage import Usage
from iscp.core.values.errors import EngineError, ErrorCode, IscpError, LeaseLost, StorageError
from tests.fakes.timetable import BACKOFF, URI, Timetable, job, outcome, periodic


def test_a_short_iteration_is_reported_once(world: Timetable) -> None:
    world.start(job("x", 2))
    world.started(1)
    world.wait(0.9)
    world.succeed(1)
    world.wait(5)
    assert world.told("x") == [("completed", "none")]
    (entry,) = world.history
    assert (entry.from_version, entry.to_version, entry.seq, entry.node_id) == (2, 3, 4, "n-1")


def test_a_long_one_is_pending_then_running_then_completed(world: Timetable) -> None:
    world.start(job("x", 2))
    world.wait(3)
    assert world.told("x") == [("pending", "none")]
    world.started(1)
    world.wait(3)
    world.succeed(1)
    assert world.told("x") == [("pending", "none"), ("running", "none"), ("completed", "none")]


def test_what_was_announced_and_then_interrupted_is_canceled(world: Timetable) -> None:
    world.start(job("x", 2))
    world.started(1)
    world.wait(2)
    world.stop()
    world.end_cancelled(1)
    assert world.told("x") == [("running", "none"), ("canceled", "none")]


def test_a_row_that_still_says_running_is_put_right(world: Timetable) -> None:
    world.start(job("x", 3)._replace(state=JobState.RUNNING), job("y", 3)._replace(state=JobState.ERROR))
    assert world.told("x") == [("completed", "none")]
    assert world.told("y") == []


def test_a_commit_without_rows_moves_only_the_watermark(world: Timetable) -> None:
    world.start(job("x", 2))
    row = world.running[1].jobs[0]
    world.end(1, outcome(row, 3, committed=False))
    (report,) = world.reports
    assert (report.watermark.version, report.seq, report.state, report.status) == (3, 3, None, None)
    assert world.history == []


def test_anothers_commit_that_is_found_is_reported_and_is_not_in_the_history_twice(world: Timetable) -> None:
    world.start(job("x", 2))
    found = replace(outcome(world.running[1].jobs[0], 3), committed=False)
    world.end(1, found)
    (report,) = world.reports
    assert (report.watermark.version, report.seq, report.state) == (3, 4, JobState.COMPLETED)
    assert world.history == []


@pytest.mark.parametrize("error", [None, LeaseLost("the rest was given up")])
def test_who_has_committed_is_reported_at_once_and_only_once_while_the_others_of_the_iteration_go_on(
    world: Timetable, error: IscpError | None
) -> None:
    world.start(job("x", 3), job("y", 3))
    world.source.commit(URI)
    world.notify()
    world.started(1)
    x, y = world.last.jobs
    world.step(JobCommitted(outcome(x, 4)))
    assert (world.told("x"), world.told("y")) == ([("completed", "none")], [])
    assert [(entry.job_name, entry.to_version) for entry in world.history] == [("x", 4)]
    world.source.commit(URI)
    world.notify()
    world.wait(2)
    assert (world.told("x"), world.told("y")) == ([("completed", "none")], [("running", "none")])
    assert len(world.submitted) == 1, "it is in that iteration until that ends"
    world.end(1, *(() if error else (outcome(x, 4), outcome(y, 4))), error=error)
    assert world.told("x") == [("completed", "none")]
    assert [entry.job_name for entry in world.history] == (["x"] if error else ["x", "y"])
    assert max(report.watermark.version for report in world.reports if report.key == x.key) == 4


def test_what_a_former_registration_has_committed_is_not_reported_of_the_one_that_waits_for_its_end(
    world: Timetable,
) -> None:
    world.start(job("x"))
    former = world.last.jobs[0]
    world.update(job("x", job_id="anew"))
    world.step(JobCommitted(outcome(former, 4)))
    assert (world.reports, world.history) == ([], [])


def test_a_failure_says_how_many_there_were_in_a_row_and_when_the_next_retry_is_due(world: Timetable) -> None:
    world.start(job("x", 2))
    for failures, wait_s in ((1, 5.0), (2, 10.0)):
        world.fail(failures)
        *_, report = world.reports
        assert report.status is not None
        assert (report.status.failures, report.status.retry_at_s) == (failures, world.clock.now_s() + wait_s)
        world.wait(wait_s)
        assert world.now_running == [(("x",), None)]
    world.succeed(3)
    *_, report = world.reports
    assert report.status is not None
    assert (report.status.failures, report.status.retry_at_s) == (0, 0.0)


def test_a_node_that_takes_over_a_failing_job_goes_on_counting(world: Timetable) -> None:
    failed = JobStatus(error_code=ErrorCode.STORAGE, failures=4).to_json()
    world.start(job("x", 2)._replace(state=JobState.ERROR, reason=Reason.RETRYING, status_json=failed))
    world.fail(1)
    *_, report = world.reports
    assert report.status is not None
    assert report.status.failures == 5


def test_a_failure_says_which_and_when(world: Timetable) -> None:
    world.start(job("x", 2))
    world.started(1)
    at_s = world.clock.now_s()
    world.wait(0.5)
    world.end(1, error=StorageError("disk full", code=ErrorCode.NO_SPACE))
    (report,) = world.reports
    assert report.status == JobStatus(
        -1, 2, at_s, at_s + 0.5, ErrorCode.NO_SPACE, "disk full", failures=1, retry_at_s=at_s + 5.5
    )
    assert [entry.error_code for entry in world.history] == [ErrorCode.NO_SPACE]


def test_a_failure_for_good_that_no_owner_has_written_down_is_reported_until_one_has(world: Timetable) -> None:
    """Or the job would be shown as one that is retried, and nothing would run it."""
    world.start(job("x", 2))
    world.fail(1)
    retried = apply_report(job("x", 2), world.reports[-1])
    assert retried is not None
    world.wait(5.1)
    world.fail(2, ErrorCode.SCHEMA_CHANGED)
    for _ in range(2):
        world.forget()
        world.update(retried)
        assert len(world.reports) == 1
    written = apply_report(retried, world.reports[-1])
    assert written is not None
    assert written.failed_for_good
    world.forget()
    world.update(written)
    assert world.reports == []
    assert not world.running
    world.update(written._replace(state=JobState.PENDING))
    assert world.running, "somebody has resumed it"


def waits(world: Timetable) -> list[float]:
    """How long the iterations waited that were recorded since this was read last."""
    found = [entry.usage.wait_s if entry.usage else -1.0 for entry in world.history]
    world.history.clear()
    return found


def play(world: Timetable, number: int, wait_s: float = 0.0) -> None:
    """It begins after so long in the queue, and succeeds."""
    world.clock.advance(wait_s)
    world.started(number)
    world.succeed(number)


def test_an_iteration_waits_from_the_notice_to_its_begin(world: Timetable) -> None:
    world.start(job("x"))
    play(world, 1, 2.0)
    assert waits(world) == [2.0], "of a new job, since it came"
    world.source.commit(URI)
    world.hold_probes = True
    world.notify()
    world.clock.advance(3.0)
    world.answer()
    play(world, 2, 1.0)
    assert waits(world) == [4.0], "the probe that the notice led to is part of the wait"


def test_what_is_noticed_while_an_iteration_runs_waits_for_its_end(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    world.started(1)
    world.source.commit(URI)
    world.clock.advance(10.0)
    world.notify()
    world.clock.advance(20.0)
    world.succeed(1, 4)
    play(world, 2, 5.0)
    assert waits(world) == [0.0, 25.0]


def test_a_notice_of_nothing_starts_no_wait(world: Timetable) -> None:
    world.start(job("x", 3))
    world.notify()
    world.clock.advance(1_000.0)
    world.source.commit(URI)
    world.notify()
    play(world, 1, 0.5)
    assert waits(world) == [0.5]


def test_what_an_iteration_has_applied_already_waits_no_more(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    world.started(1)
    world.source.commit(URI)
    world.notify()
    world.clock.advance(30.0)
    world.succeed(1, 5)
    assert not world.running
    world.clock.advance(600.0)
    world.source.commit(URI)
    world.notify()
    play(world, 2, 1.0)
    assert waits(world) == [0.0, 1.0]


def test_a_retry_is_due_when_its_backoff_is_over_and_says_how_often_it_failed(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    for number in (1, 2):
        world.started(number)
        world.fail(number)
        world.wait(60.0)
    play(world, 3, 2.0)
    assert [entry.usage.retries if entry.usage else -1 for entry in world.history] == [0, 1, 2]
    assert waits(world)[2] == 62.0 - BACKOFF.base_s * 2


def test_a_periodic_job_is_due_when_its_trigger_lets_it(world: Timetable) -> None:
    world.start(periodic(job("x", 3), 60.0))
    world.source.commit(URI)
    world.notify()
    play(world, 1)
    world.source.commit(URI)
    world.notify()
    world.wait(60.0)
    play(world, 2, 1.5)
    assert waits(world) == [0.0, 1.5]


def test_what_a_node_has_measured_is_recorded_with_the_wait(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    world.clock.advance(1.0)
    world.started(1)
    measured = Usage(read_s=1.0, compute_s=2.0, commit_s=3.0, rows_read=4, rows_written=5, conflicts=6)
    world.end(1, replace(outcome(world.last.jobs[0], 4), usage=measured))
    assert [entry.usage for entry in world.history] == [replace(measured, wait_s=1.0)]


def test_an_iteration_that_was_cut_off_has_waited_all_the_same(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    world.clock.advance(1.0)
    world.started(1)
    world.end(1, error=EngineError("the JVM died"))
    assert [entry.usage for entry in world.history] == [Usage(wait_s=1.0)]
