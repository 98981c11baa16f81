"""Which iterations the schedule starts, which jobs share one, their backoff, and the end of a shard.

What the schedule reports of an iteration, and when.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.job.iteration import Usage
from iscp.model.job.job_row import JobState, JobStatus, Reason, apply_report
from iscp.model.protocol.events import HoldIterations, ShardStarted, StartShard, StopAllShards
from iscp.model.values.errors import EngineError, ErrorCode, InvariantBroken, IscpError, LeaseLost, StorageError
from iscp.model.values.ids import ShardId
from iscp.schedule.schedule_events import JobCommitted
from tests.fakes.timetable import BACKOFF, EPOCH, SHARD, URI, Timetable, job, outcome, periodic, specified, stopped


def test_an_iteration_is_of_the_epoch_under_which_its_shard_was_started(world: Timetable) -> None:
    world.step(StartShard(SHARD, EPOCH, (job("x"),), 4))
    assert [each.epoch for each in world.submitted] == [4]
    world.step(StopAllShards())
    world.end_cancelled(world.last.number)
    world.step(StartShard(SHARD, EPOCH, (job("x"),), 5))
    assert [each.epoch for each in world.submitted] == [4, 5]


def test_a_new_job_starts_without_a_probe_and_joins_the_others(world: Timetable) -> None:
    world.start(job("x", 3))
    world.hold_probes = True
    world.update(job("x", 3), job("new"))
    assert world.now_running == [(("new",), 3)]
    world.hold_probes = False
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("new",), 3), (("x",), None)], "the others are not held up"
    world.succeed(2)
    world.source.commit(URI)
    world.succeed(1)
    assert world.now_running == [(("new",), 4)], "one catching up, and then they go on together"
    world.succeed(3)
    assert world.now_running == [(("x", "new"), None)]


def test_several_new_jobs_end_up_together(world: Timetable) -> None:
    world.start(job("x"), job("y"), job("z"))
    assert [goal for _, goal in world.now_running] == [None] * 3
    world.succeed(1)
    world.source.commit(URI)
    world.succeed(2)
    world.source.commit(URI)
    world.succeed(3)
    for _ in range(10):
        for number in list(world.running):
            world.succeed(number)
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x", "y", "z"), None)]


def test_accounts_never_share_an_iteration(world: Timetable) -> None:
    world.start(job("x", 2), job("y", 2, account="b"))
    assert world.now_running == [(("x",), None), (("y",), None)]


def test_a_failing_job_is_retried_alone_and_never_holds_up_the_others(world: Timetable) -> None:
    world.start(job("good", 2), job("bad", 2))
    world.fail(1, names=["bad"])
    assert world.told("bad") == [("error", "retrying")]
    world.source.commit(URI)
    world.wait(4.9)
    assert world.running == {}
    world.notify()
    assert world.now_running == [(("good",), None)]
    world.succeed(2)
    world.wait(0.2)
    assert world.now_running == [(("bad",), 4)]
    world.succeed(3)
    assert world.told("bad")[-1] == ("completed", "none")
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("good", "bad"), None)]


def test_waits_double_until_the_job_is_quarantined(world: Timetable) -> None:
    world.start(job("x", 2))
    waits = []
    for number in range(1, 7):
        world.fail(number)
        before_s = world.clock.monotonic_s()
        while not world.running:
            world.wait(1)
        waits.append(round(world.clock.monotonic_s() - before_s))
    assert waits == [5, 10, 20, 3_600, 3_600, 3_600]
    assert [reason for _, reason in world.told("x")] == ["retrying"] * 3 + ["quarantined"] * 3
    world.succeed(7)
    assert world.told("x")[-1] == ("completed", "none")


def test_a_job_that_the_node_has_died_of_again_and_again_is_quarantined_at_once(world: Timetable) -> None:
    world.start(job("x", 2))
    world.fail(1, code=ErrorCode.NODE_KILLED)
    assert world.told("x") == [("error", "quarantined")]
    world.wait(3_500)
    assert world.running == {}
    world.wait(101)
    assert world.now_running == [(("x",), None)]


def test_a_log_that_is_damaged_is_tried_again_as_often_as_one_that_has_just_failed(world: Timetable) -> None:
    """Its repair shows in no new version."""
    world.start(job("x", 2))
    for number in range(1, 8):
        world.fail(number, code=ErrorCode.LOG_CORRUPT)
        world.wait(BACKOFF.cap_s + 1)
        assert world.now_running == [(("x",), None)]
    assert {reason for _, reason in world.told("x")} == {"retrying"}


@pytest.mark.parametrize(("code", "attempts"), [(ErrorCode.FILE_LOST, 1), (ErrorCode.ENGINE, 0)])
def test_a_quarantine_for_a_lost_file_ends_soon_after_the_source_moves(
    world: Timetable, code: ErrorCode, attempts: int
) -> None:
    world.start(job("x", 2))
    for number in range(1, 5):
        world.fail(number, code=code)
        world.wait(25 if number < 4 else 900)
    assert world.told("x")[-1] == ("error", "quarantined")
    assert world.running == {}
    for _ in range(20):  # however often it moves
        world.source.commit(URI)
        world.notify()
        world.wait(BACKOFF.cap_s / 10)
        for number in [*world.running]:
            world.fail(number, code=code)
    assert len(world.submitted) == 4 + 2 * attempts


def test_a_permanent_error_waits_for_a_person(world: Timetable) -> None:
    world.start(job("x", 2))
    world.fail(1, code=ErrorCode.DUPLICATE_KEY)
    assert world.told("x") == [("error", "none")]
    world.source.commit(URI)
    world.wait(7_200)
    assert world.running == {}
    world.update(job("x", 2)._replace(state=JobState.ERROR))
    assert world.running == {}
    world.update(job("x", 2))
    assert world.now_running == [(("x",), None)], "resumed"


def test_a_quarantined_job_that_is_resumed_starts_at_once(world: Timetable) -> None:
    world.start(job("x", 2)._replace(state=JobState.ERROR, reason=Reason.QUARANTINED))
    world.fail(1)
    assert world.told("x") == [("error", "quarantined")], "it goes on where it was"
    world.update(job("x", 2))
    assert world.now_running == [(("x",), None)]


def test_a_job_that_is_retried_starts_at_once_when_it_is_resumed(world: Timetable) -> None:
    world.start(job("x", 2))
    world.fail(1)
    assert world.running == {}
    failed = JobStatus(error_code=ErrorCode.STORAGE, error_msg="the disk is full")
    world.update(job("x", 2)._replace(status_json=failed.to_json()))
    assert world.now_running == [(("x",), None)]


def test_a_row_from_before_its_first_failure_does_not_zero_the_backoff(world: Timetable) -> None:
    world.start(job("x", 2))
    world.fail(1)
    world.update(job("x", 2), job("y", 3))
    assert world.running == {}


def test_progress_that_a_new_owner_does_not_know_of_is_reported_again(world: Timetable) -> None:
    """The owner before ended with it in memory; the source stays idle, so that no iteration would report it."""
    row = job("x", 2)
    world.start(row)
    world.succeed(1)
    (told,) = world.reports
    world.forget()
    world.update(row)
    (again,) = world.reports
    assert (again.watermark, again.seq, again.state) == (told.watermark, told.seq, told.state)
    world.forget()
    world.update(row._replace(watermark=told.watermark, seq=told.seq))
    assert world.reports == [], "once it is known it is not reported again"


def test_a_table_that_an_iteration_cannot_find_is_not_given_up(world: Timetable) -> None:
    world.start(job("x"))
    world.fail(1, code=ErrorCode.TABLE_NOT_FOUND)
    assert world.told("x") == [("error", "retrying")]
    world.wait(5)
    assert world.now_running == [(("x",), None)]


def test_an_iteration_without_progress_is_a_fault_not_a_loop(world: Timetable) -> None:
    world.start(job("x", 2))
    world.succeed(1, version=2)
    assert world.running == {}
    assert world.told("x") == [("error", "retrying")]


def test_a_paused_job_starts_nothing_but_may_finish(world: Timetable) -> None:
    world.start(job("x", 2))
    world.update(job("x", 2)._replace(reason=Reason.PAUSED))
    assert world.cancelled == []
    world.succeed(1)
    assert world.reports[-1].watermark.version == 3
    world.source.commit(URI)
    world.wait(600)
    assert world.running == {}
    world.update(job("x", 2))
    assert world.now_running == [(("x",), None)]
    assert world.last.jobs[0].watermark.version == 3, "a row that lies behind does not set the job back"


def test_a_removed_jobs_iteration_is_cancelled_and_the_others_start_over(world: Timetable) -> None:
    world.start(job("x", 2), job("y", 2))
    world.update(job("y", 2))
    assert world.cancelled == [1]
    world.end_cancelled(1)
    assert world.now_running == [(("y",), None)]
    assert world.reports == []


def test_a_new_spec_waits_for_the_iteration_that_is_under_way(world: Timetable) -> None:
    world.start(job("x", 2))
    changed = specified(job("x", 2), target_lag=5)
    world.update(changed)
    assert world.cancelled == []
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    assert world.last.jobs[0].spec_json == changed.spec_json


@pytest.mark.parametrize("first", ["order", "spec"])
def test_an_interrupted_iteration_ends_when_the_new_spec_is_here_and_starts_over_by_it(
    world: Timetable, first: str
) -> None:
    changed = specified(job("x", 2), target_lag=5)
    world.start(job("x", 2), job("y", 2))
    if first == "order":
        world.interrupt(changed)
        assert world.cancelled == [], "it would start over by the spec before"
        world.update(changed, job("y", 2))
    else:
        world.update(changed, job("y", 2))
        world.interrupt(changed)
    assert world.cancelled == [1]
    assert list(world.running) == [1], "not before the other one has really ended"
    world.end_cancelled(1)
    assert world.now_running == [(("x", "y"), None)]
    assert world.last.jobs[0].spec_json == changed.spec_json
    world.interrupt(changed)
    assert world.cancelled == [1], "what runs by the new spec goes on"
    world.succeed(2)
    assert world.reports[-1].watermark.version == 3


def test_an_interrupt_for_a_job_that_is_idle_or_unknown_changes_nothing(world: Timetable) -> None:
    world.start(job("x", 3))
    changed = specified(job("x", 3), target_lag=5)
    world.interrupt(job("unknown"))
    world.interrupt(changed)
    world.source.commit(URI)
    world.update(changed)
    assert world.now_running == [(("x",), None)]
    assert world.cancelled == []


def test_a_job_recreated_waits_until_the_old_one_has_really_ended(world: Timetable) -> None:
    world.start(job("x", 2))
    world.update(job("x", job_id="second"))
    assert world.cancelled == [1]
    assert list(world.running) == [1]
    world.succeed(1)
    assert world.reports == [], "a late success of the old one says nothing of the new one"
    assert [(i.jobs[0].job_id, i.to_version) for i in world.running.values()] == [("second", None)]


def test_what_was_turned_away_comes_again_and_is_no_failure(world: Timetable) -> None:
    world.start(job("x", 2))
    world.reject(1)
    assert world.running == {}
    assert world.reports == []
    world.wait(5)
    assert world.now_running == [(("x",), None)]


def test_a_lost_lease_is_no_fault_of_the_job(world: Timetable) -> None:
    world.start(job("x", 2))
    world.end(1, error=LeaseLost("gone"))
    assert world.reports == []
    assert world.running == {}
    world.wait(5)
    assert world.now_running == [(("x",), None)]


def test_while_held_nothing_starts_and_afterwards_nothing_is_forgotten(world: Timetable) -> None:
    world.step(HoldIterations(True))
    world.start(job("x", 2))
    world.step(HoldIterations(True))
    world.wait(600)
    assert world.submitted == []
    world.step(HoldIterations(False))
    world.wait(0)
    assert world.now_running == [(("x",), None)]


def test_a_job_that_fails_while_held_is_retried_afterwards(world: Timetable) -> None:
    world.start(job("x", 2))
    world.step(HoldIterations(True))
    world.fail(1)
    world.wait(600)
    assert world.running == {}
    world.step(HoldIterations(False))
    world.wait(0)
    assert world.now_running == [(("x",), None)]


def test_copies_that_share_an_id_are_tables_of_their_own(world: Timetable) -> None:
    world.source.commit("/copy", 8)
    world.start(job("x", 2), job("y", 2, uri="/copy"))
    assert {(i.table_uri, len(i.jobs)) for i in world.running.values()} == {(URI, 1), ("/copy", 1)}


def test_the_higher_priority_of_the_jobs_counts(world: Timetable) -> None:
    spec = '{"iteration":{"priority":7,"consumer":{"kind":"replica","target":"/x"}}}'
    world.start(job("x", 2), job("y", 2)._replace(spec_json=spec))
    assert world.last.priority == 7


def test_a_shard_has_stopped_when_its_last_iteration_has_ended(world: Timetable) -> None:
    world.start(job("x", 2), job("new"))
    world.stop()
    world.stop()
    assert sorted(world.cancelled) == [1, 2]
    assert stopped(world) == []
    world.end_cancelled(1)
    assert stopped(world) == []
    world.succeed(2)
    assert stopped(world) == [SHARD]
    assert [report.watermark.version for report in world.reports] == [3], "what was committed is reported before"
    assert world.running == {}
    world.wait(3_600)
    assert world.running == {}


def test_stopping_an_idle_or_unknown_shard_is_answered_at_once(world: Timetable) -> None:
    world.start(job("x", 3))
    world.stop()
    world.stop(ShardId("unknown"))
    assert stopped(world) == [SHARD, ShardId("unknown")]
    world.wait(3_600)
    assert world.submitted == []


def test_a_shard_is_not_started_while_it_stops(world: Timetable) -> None:
    world.start(job("x", 2))
    world.stop()
    with pytest.raises(InvariantBroken):
        world.start(job("x", 2))


def test_all_shards_stop_and_may_come_back(world: Timetable) -> None:
    other = ShardId("t-2")
    world.source.commit("/tables/t-2")
    world.start(job("x", 2))
    world.start(job("y", 0, uri="/tables/t-2", shard=other), shard=other)
    world.step(StopAllShards())
    assert stopped(world) == [other]
    world.end(1, error=LeaseLost("gone"))
    assert stopped(world) == [other, SHARD]
    world.start(job("x", 2))
    assert world.now_running == [(("x",), None)]
    assert [news.shard for news in world.news if isinstance(news, ShardStarted)] == [SHARD, other, SHARD]


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
