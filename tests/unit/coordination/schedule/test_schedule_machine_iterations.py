"""Which iterations the schedule starts, which jobs share one, their backoff, and the end of a shard."""

from __future__ import annotations

import pytest

from iscp.coordination.protocol.effects import HoldIterations, StartShard, StopAllShards
from iscp.coordination.protocol.events import ShardStarted
from iscp.core.job.job_row import JobState, JobStatus, Reason
from iscp.core.values.errors import ErrorCode, InvariantBroken, LeaseLost
from iscp.core.values.ids import ShardId
from tests.fakes.timetable import BACKOFF, EPOCH, SHARD, URI, Timetable, job, specified, stopped


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
