"""The schedule as a pure machine: when it asks, what it starts, what it reports, and when a shard has stopped."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.coordination.protocol.effects import HoldIterations, StartShard, StopAllShards
from iscp.coordination.protocol.events import Seen, ShardStarted, ShardStopped, Tick
from iscp.coordination.schedule.schedule_events import JobCommitted
from iscp.coordination.schedule.schedule_machine import ScheduleTimes
from iscp.coordination.schedule.table_state import TARGETS_EVERY_S
from iscp.core.custom_trigger import NotBefore, StartNow, TriggerFacts
from iscp.core.errors import ErrorCode, InvariantBroken, IscpError, LeaseLost, StorageError, TemporaryError
from iscp.core.ids import ShardId
from iscp.core.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.start_rule import TARGET_LAG_S
from tests.fakes.timetable import BACKOFF, EPOCH, PROBE, SHARD, URI, Timetable, job, outcome


@pytest.fixture
def world() -> Timetable:
    made = Timetable()
    made.source.commit(URI, 4)
    return made


def seen(world: Timetable) -> list[tuple[int, float]]:
    return [(news.seen.source_version, news.seen.lag_s) for news in world.news if isinstance(news, Seen)]


# --- noticing ----------------------------------------------------------------------------------------------------


def test_an_idle_table_is_asked_ever_more_rarely_and_starts_nothing(world: Timetable) -> None:
    world.start(job("x", 3))
    times = []
    for second in range(1, 1_600):
        before = world.source.looks[URI]
        world.wait(1)
        if world.source.looks[URI] > before:
            times.append(second)
    assert times == [10, 30, 70, 150, 310, 610, 910, 1_210, 1_510]
    assert world.submitted == []


def test_an_iteration_is_of_the_epoch_under_which_its_shard_was_started(world: Timetable) -> None:
    world.step(StartShard(SHARD, EPOCH, (job("x"),), 4))
    assert [each.epoch for each in world.submitted] == [4]
    world.step(StopAllShards())
    world.end_cancelled(world.last.number)
    world.step(StartShard(SHARD, EPOCH, (job("x"),), 5))
    assert [each.epoch for each in world.submitted] == [4, 5]


def test_a_commit_is_noticed_and_brings_the_table_back(world: Timetable) -> None:
    world.start(job("x", 3))
    world.wait(7_200)
    world.source.commit(URI)
    world.wait(PROBE.interval_max_s)
    assert world.now_running == [(("x",), None)]
    world.succeed(1)
    assert seen(world)[-1] == (4, 0.0)
    world.forget()
    world.wait(PROBE.interval_min_s)
    assert world.source.looks[URI] == 1


def test_a_notify_is_looked_after_at_once(world: Timetable) -> None:
    world.start(job("x", 3))
    world.wait(7_200)
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x",), None)]
    world.notify(ShardId("unknown"))


def test_a_notify_during_a_look_asks_again(world: Timetable) -> None:
    world.start(job("x", 3))
    world.hold_probes = True
    world.notify()
    assert len(world.probes) == 1
    stale = world.probes[0]
    world.notify()
    assert world.probes == [stale], "one look at a time"
    world.answer()
    assert len(world.probes) == 1, "the answer may be from before the change"


def test_work_left_by_bounds_and_newer_commits_go_on_at_once(world: Timetable) -> None:
    world.start(job("x", 0))
    world.succeed(1, version=2)
    assert world.now_running == [(("x",), None)]
    world.source.commit(URI)
    world.succeed(2, version=3)
    assert world.now_running == [(("x",), None)], "found by the look after the iteration"


def test_a_job_that_is_ahead_of_what_was_seen_waits(world: Timetable) -> None:
    world.start(job("x", 2))
    world.source.commit(URI)
    world.succeed(1, version=4)
    assert world.running == {}


def test_a_source_made_anew_is_read_once(world: Timetable) -> None:
    world.start(job("x", 3), job("y", 3))
    world.source.anew(URI, version=1)
    world.notify()
    assert world.now_running == [(("x", "y"), None)]
    world.succeed(1, version=1)
    world.wait(3_600)
    assert len(world.submitted) == 1
    world.source.anew(URI, version=1)
    world.notify()
    assert len(world.submitted) == 2, "though the version is the same"


def test_a_notify_that_doubts_the_targets_starts_an_iteration_though_nothing_moved(world: Timetable) -> None:
    world.start(job("x", 3), job("y", 3))
    world.update(job("x", 3), job("y", 3)._replace(reason=Reason.PAUSED))
    world.notify()
    assert world.running == {}
    world.notify(targets=True)
    assert world.now_running == [(("x",), None)]
    world.notify(targets=True)
    world.succeed(1)
    assert world.now_running == [(("x",), None)], "the damage may be younger than the look"
    world.succeed(2)
    world.wait(7_200)
    assert world.running == {}
    assert world.history == []
    world.update(job("x", 3), job("y", 3))
    assert world.now_running == [(("x", "y"), None)], "it was paused then"


def test_targets_of_a_table_that_stands_still_are_looked_at_once_a_day(world: Timetable) -> None:
    """So that what their logs will lose is said anew."""
    world.start(job("x", 3), job("y", 3))
    world.update(job("x", 3), job("y", 3)._replace(reason=Reason.PAUSED))
    world.wait(TARGETS_EVERY_S / 2 - 600)
    assert world.submitted == []
    world.wait(1_200)
    assert world.now_running == [(("x",), None)], "at a time of its own"
    world.succeed(1)
    world.wait(TARGETS_EVERY_S - 2_400)
    assert world.running == {}
    world.wait(2_400)
    assert world.now_running == [(("x",), None)]
    world.succeed(2)
    assert world.history == []


def test_a_doubt_outlives_an_iteration_that_was_turned_away(world: Timetable) -> None:
    world.start(job("x", 3))
    world.notify(targets=True)
    world.reject(1)
    world.wait(BACKOFF.base_s)
    assert world.now_running == [(("x",), None)]
    world.end(2, error=LeaseLost("away"))
    world.wait(BACKOFF.base_s)
    assert world.now_running == [(("x",), None)]
    world.succeed(3)
    world.wait(7_200)
    assert len(world.submitted) == 3


def test_a_source_made_anew_while_nobody_looked_is_noticed_at_the_start(world: Timetable) -> None:
    world.source.anew(URI, version=1)
    world.start(job("x", 3))
    assert world.now_running == [(("x",), None)]


def test_a_missing_table_is_a_temporary_error_of_all_its_jobs(world: Timetable) -> None:
    del world.source.versions[URI]
    world.start(job("x", 3), job("y", 3))
    assert world.told("x") == world.told("y") == [("error", "retrying")]
    assert world.reports[0].status is not None
    assert world.reports[0].status.error_code == ErrorCode.STORAGE
    world.wait(7_200)
    assert len(world.reports) == 2, "told once"
    assert 20 < world.source.looks[URI] < 40, "with backoff"
    world.source.commit(URI, 4)
    world.wait(300)
    assert world.told("x")[-1] == world.told("y")[-1] == ("completed", "none")
    assert world.submitted == []


def test_lag_is_the_age_of_the_oldest_commit_not_applied(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.commit(URI)
    world.notify()
    began_s = world.clock.now_s()
    world.wait(61)
    world.notify()
    version, lag_s = seen(world)[-1]
    assert version == 4
    assert 60 <= lag_s <= world.clock.now_s() - began_s
    world.succeed(1)
    assert seen(world)[-1] == (4, 0.0)


def test_an_idle_table_is_told_of_now_and_then_only(world: Timetable) -> None:
    world.start(job("x", 3))
    world.forget()
    world.wait(1_200)
    assert 2 <= len(seen(world)) <= 8


def test_what_is_told_of_a_source_is_as_of_when_it_was_asked(world: Timetable) -> None:
    """Not of when the answer came, nor of an iteration's end: it may have moved since."""
    world.start(job("x", 3))
    world.forget()
    world.hold_probes = True
    world.source.commit(URI, 5)
    world.wait(BACKOFF.base_s)
    asked_at_s = world.clock.now_s()
    world.notify()
    world.clock.advance(7.0)
    world.answer()
    world.clock.advance(7.0)
    world.succeed(world.last.number)
    told = [news.seen for news in world.news if isinstance(news, Seen)]
    assert told
    assert {seen.checked_at_s for seen in told} == {asked_at_s}


def test_a_wall_clock_that_steps_back_stalls_nothing(world: Timetable) -> None:
    world.start(job("x", 3))
    world.clock.step(-86_400)
    world.source.commit(URI)
    world.wait(10)
    assert world.now_running == [(("x",), None)]


# --- running -----------------------------------------------------------------------------------------------------


def test_a_new_job_starts_without_a_look_and_joins_the_others(world: Timetable) -> None:
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


def test_a_row_from_before_its_first_failure_does_not_zero_the_backoff(world: Timetable) -> None:
    world.start(job("x", 2))
    world.fail(1)
    world.update(job("x", 2), job("y", 3))
    assert world.running == {}


def test_progress_that_a_new_owner_does_not_know_of_is_told_again(world: Timetable) -> None:
    """The owner before ended with it in memory; the source stays idle, so that no iteration would tell."""
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
    assert world.reports == [], "once it is known it is not told again"


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


def specified(row: JobRow, **spec: object) -> JobRow:
    return row._replace(spec_json=json.dumps(json.loads(row.spec_json) | spec))


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


def test_a_job_made_anew_waits_until_the_old_one_has_really_ended(world: Timetable) -> None:
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


# --- triggers ----------------------------------------------------------------------------------------------------


def greedy(row: JobRow) -> JobRow:
    return specified(row, trigger={"job_type": "greedy"})


def periodic(row: JobRow, interval_s: float = 60.0, *, share: bool = False) -> JobRow:
    return specified(row, trigger={"job_type": "periodic", "schedule": {"interval": interval_s, "share": share}})


def commits_every(world: Timetable, wait_s: float, until_s: float) -> None:
    """Commits come and are told of, and iterations take no time."""
    for _ in range(int(until_s / wait_s)):
        world.source.commit(URI)
        world.notify()
        for number in list(world.running):
            world.succeed(number)
        world.wait(wait_s)
        for number in list(world.running):
            world.succeed(number)


@pytest.mark.parametrize("alone", [greedy, lambda row: specified(row, independent=True)])
def test_a_job_that_goes_alone_neither_waits_nor_is_waited_for(
    world: Timetable, alone: Callable[[JobRow], JobRow]
) -> None:
    world.start(job("x", 2), job("y", 2), alone(job("own", 2)))
    assert world.now_running == [(("x", "y"), None), (("own",), None)]
    world.succeed(2)
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x", "y"), None), (("own",), None)], "though the others' iteration still runs"
    world.succeed(1, version=3)
    assert world.now_running == [(("own",), None), (("x", "y"), None)], "though its own still runs"
    world.update(job("x", 2), job("y", 2), alone(job("own", 2)), alone(job("new")))
    assert world.now_running[-1] == (("new",), None), "to now, not to the others' watermark"


def test_a_periodic_job_starts_at_most_once_in_its_interval(world: Timetable) -> None:
    world.start(periodic(job("x")))
    assert world.now_running == [(("x",), None)], "a new job does not wait"
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    assert world.running == {}
    world.wait(59.9)
    assert world.running == {}
    world.wait(0.1)
    assert world.now_running == [(("x",), None)]
    world.succeed(2)
    world.forget()
    commits_every(world, 7, 700)
    assert len(world.submitted) == pytest.approx(700 / 60, abs=2)


def test_a_periodic_job_whose_source_stands_still_costs_nothing_and_starts_at_once_afterwards(
    world: Timetable,
) -> None:
    world.start(periodic(job("x"), 0.01))
    world.succeed(1)
    before = world.source.looks[URI]
    world.wait(7_200)
    assert len(world.submitted) == 1
    assert world.source.looks[URI] - before < 30
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x",), None)], "its interval is long over"


def test_a_periodic_job_that_bounds_have_cut_off_goes_on_at_once_and_one_that_failed_by_its_backoff(
    world: Timetable,
) -> None:
    world.start(periodic(job("x", 0)))
    world.succeed(1, version=2)
    assert world.now_running == [(("x",), None)]
    world.fail(2)
    world.wait(BACKOFF.base_s)
    assert world.now_running == [(("x",), None)]
    world.succeed(3)
    world.source.commit(URI)
    world.wait(59)
    assert world.running == {}


def test_a_node_that_takes_a_periodic_job_over_goes_on_with_its_wait(world: Timetable) -> None:
    ended = JobStatus(-1, 2, end_at_s=world.clock.now_s() - 45)
    world.start(periodic(job("x", 2)._replace(status_json=ended.to_json())))
    assert world.running == {}
    world.wait(15)
    assert world.now_running == [(("x",), None)]


def test_periodic_jobs_that_share_come_together_whenever_they_were_made(world: Timetable) -> None:
    rows = [periodic(job(name), share=True) for name in "xyz"] + [periodic(job("alone"))]
    for number in range(4):
        world.update(*rows[: number + 1]) if number else world.start(rows[0])
        world.source.commit(URI)
        world.succeed(world.last.number)
        world.wait(13)
    for _ in range(2):
        world.forget()
        world.source.commit(URI)
        world.notify()
        world.wait(60)
        for number in list(world.running):
            world.succeed(number)
        world.wait(0.01)
    names = [tuple(row.key.job_name for row in iteration.jobs) for iteration in world.submitted]
    assert sorted(names) == [("alone",), ("x", "y", "z")]


def test_a_wall_clock_that_steps_back_delays_periodic_jobs_by_an_interval_at_the_most(world: Timetable) -> None:
    world.start(periodic(job("x"), share=True), periodic(job("y")))
    for number in list(world.running):
        world.succeed(number)
    world.clock.step(-86_400)
    world.source.commit(URI)
    world.notify()
    world.wait(60)
    assert sorted(world.now_running) == [(("x",), None), (("y",), None)]


def test_a_new_trigger_takes_effect_after_the_current_iteration(world: Timetable) -> None:
    world.start(periodic(job("x"), 3_600))
    world.source.commit(URI)
    world.update(greedy(job("x")))
    assert len(world.running) == 1
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x",), None)]


def custom(row: JobRow, name: str = "own", **options: object) -> JobRow:
    return specified(row, trigger={"job_type": "custom", "name": name, "options": options})


def test_a_custom_trigger_is_asked_when_there_is_something_to_do_and_starts_the_job_alone(world: Timetable) -> None:
    world.triggers["own"] = lambda facts: StartNow()
    world.start(custom(job("x", 2), hour=3), job("y", 2))
    assert world.now_running == [(("y",), None), (("x",), None)]
    (facts,) = world.asked
    assert (facts.account, facts.table, facts.job, facts.options) == ("a", "t", "x", {"hour": 3})
    assert (facts.applied_version, facts.source_version, facts.now_s) == (2, 3, world.clock.now_s())
    world.started(2)
    world.wait(5)
    world.succeed(2)
    world.wait(7_200)
    assert len(world.asked) == 1, "the source stands still"
    world.source.commit(URI)
    world.notify()
    last = world.asked[-1]
    assert (last.last_end_at_s - last.last_start_at_s, last.applied_at_s) == (5.0, 3.0)


def test_a_custom_trigger_is_asked_again_at_its_time_and_when_something_happens(world: Timetable) -> None:
    at_s = world.clock.now_s() + 1_000
    world.triggers["own"] = lambda facts: StartNow() if facts.now_s >= at_s else NotBefore(at_s)
    world.start(custom(job("x")))
    assert world.now_running == [(("x",), None)], "a new job does not wait"
    assert world.asked == []
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    world.notify()
    assert world.running == {}
    asked = len(world.asked)
    world.wait(999)
    assert (world.running, len(world.asked)) == ({}, asked)
    world.wait(1)
    assert world.now_running == [(("x",), None)]


def raising(facts: TriggerFacts) -> object:
    raise TemporaryError("ValueError: broken", code=ErrorCode.TRIGGER_FAILED)


@pytest.mark.parametrize("wrong", [raising, lambda facts: None, lambda facts: NotBefore(facts.now_s - 1)])
def test_a_custom_trigger_that_fails_is_asked_again_by_backoff_and_holds_up_nobody(
    world: Timetable, wrong: Callable[[TriggerFacts], object]
) -> None:
    world.triggers["own"] = wrong
    world.start(custom(job("x", 2)), job("y", 2))
    assert world.now_running == [(("y",), None)]
    world.succeed(1)
    (report,) = [report for report in world.reports if report.key.job_name == "x"]
    assert report.status is not None
    assert (report.status.error_code, report.reason) == (ErrorCode.TRIGGER_FAILED, Reason.RETRYING)
    assert report.status.error_msg.startswith("trigger 'own': ")
    waits = []
    for _ in range(5):
        asked, before_s = len(world.asked), world.clock.monotonic_s()
        while len(world.asked) == asked:
            world.wait(1)
        waits.append(round(world.clock.monotonic_s() - before_s))
    assert waits == [5, 10, 20, 3_600, 3_600]
    assert world.told("x")[-1] == ("error", "quarantined")
    assert world.running == {}
    world.triggers["own"] = lambda facts: NotBefore(facts.now_s + 60)
    world.update(custom(job("x", 2)), job("y", 3))
    assert world.running == {}, "resumed, and it answers again"
    world.triggers["own"] = lambda facts: StartNow()
    world.wait(60)
    assert world.now_running == [(("x",), None)]


def test_a_node_that_takes_over_a_job_whose_trigger_failed_asks_it_first(world: Timetable) -> None:
    failed = JobStatus(2, 2, error_code=ErrorCode.TRIGGER_FAILED)
    world.triggers["own"] = lambda facts: NotBefore(facts.now_s + 60)
    row = custom(job("x", 2)._replace(state=JobState.ERROR, reason=Reason.RETRYING, status_json=failed.to_json()))
    world.start(row)
    assert world.running == {}
    assert world.told("x") == [("completed", "none")]


def test_a_custom_job_that_fails_is_retried_by_its_backoff_whatever_its_trigger_says(world: Timetable) -> None:
    world.triggers["own"] = lambda facts: StartNow()
    world.start(custom(job("x", 2)))
    world.triggers["own"] = lambda facts: NotBefore(facts.now_s + 3_600)
    world.fail(1)
    world.wait(BACKOFF.base_s)
    assert world.now_running == [(("x",), None)]


def test_a_paused_periodic_job_is_waited_for_by_nobody(world: Timetable) -> None:
    world.start(periodic(job("x")), job("y", 3))
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    world.update(periodic(job("x", 4))._replace(reason=Reason.PAUSED), job("y", 3))
    world.wait(600)
    assert [names for names, _ in world.now_running] == [("y",)]


def test_while_held_a_periodic_job_that_comes_due_does_not_spin(world: Timetable) -> None:
    world.start(periodic(job("x")))
    world.succeed(1)
    world.source.commit(URI)
    world.notify()
    world.step(HoldIterations(True))
    world.wait(600)
    assert world.running == {}
    world.step(HoldIterations(False))
    world.wait(0)
    assert world.now_running == [(("x",), None)]


def test_deadlines_are_the_oldest_change_not_applied_and_the_smallest_target_lag(world: Timetable) -> None:
    world.start(specified(greedy(job("slow", 3)), target_lag=600), specified(greedy(job("fast", 3)), target_lag=5))
    world.start(job("plain", 3, uri="/other"), shard=ShardId("other"))
    world.source.commit("/other", 5)
    world.source.commit(URI)
    at_s = world.clock.now_s()
    world.notify()
    world.notify(ShardId("other"))
    deadlines = {iteration.jobs[0].key.job_name: iteration.deadline_s - at_s for iteration in world.submitted}
    assert deadlines == {"slow": 600.0, "fast": 5.0, "plain": TARGET_LAG_S}


def test_a_source_is_asked_at_least_twice_in_the_smallest_target_lag(world: Timetable) -> None:
    def looks(*rows: JobRow) -> int:
        world.update(*rows)
        world.wait(600)
        world.forget()
        world.wait(600)
        return world.source.looks[URI]

    world.start(job("x", 3))
    assert looks(specified(job("x", 3), target_lag=60), job("y", 3)) == 20
    assert looks(specified(job("x", 3), target_lag=4), specified(job("y", 3), target_lag=60)) == 300
    assert looks(specified(job("x", 3), target_lag=0.001)) <= 6_001, "but not without end"
    assert looks(specified(job("x", 3), target_lag=4)._replace(reason=Reason.PAUSED), job("y", 3)) == 2


# --- stopping ----------------------------------------------------------------------------------------------------


def stopped(world: Timetable) -> list[ShardId]:
    return [news.shard for news in world.news if isinstance(news, ShardStopped)]


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
    assert world.schedule.next_due_s() is None or world.wait(3_600) is None


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


# --- reports -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("error", [None, LeaseLost("the rest was given up")])
def test_who_has_committed_is_told_of_at_once_and_only_once_while_the_others_of_the_iteration_go_on(
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


def test_what_a_former_registration_has_committed_is_not_told_of_the_one_that_waits_for_its_end(
    world: Timetable,
) -> None:
    world.start(job("x"))
    former = world.last.jobs[0]
    world.update(job("x", job_id="anew"))
    world.step(JobCommitted(outcome(former, 4)))
    assert (world.reports, world.history) == ([], [])


def test_a_failure_says_which_and_when(world: Timetable) -> None:
    world.start(job("x", 2))
    world.started(1)
    at_s = world.clock.now_s()
    world.wait(0.5)
    world.end(1, error=StorageError("disk full", code=ErrorCode.NO_SPACE))
    (report,) = world.reports
    assert report.status == JobStatus(-1, 2, at_s, at_s + 0.5, ErrorCode.NO_SPACE, "disk full")
    assert [entry.error_code for entry in world.history] == [ErrorCode.NO_SPACE]


# --- cost --------------------------------------------------------------------------------------------------------


def test_a_tick_looks_at_a_bounded_number_of_tables() -> None:
    world = Timetable(ScheduleTimes(due_max=10))
    for n in range(35):
        shard = ShardId(f"t-{n}")
        world.source.commit(f"/{n}", 4)
        world.start(job("x", 3, uri=f"/{n}", shard=shard), shard=shard)
    world.clock.advance(10)
    effects = []
    while (due_s := world.schedule.next_due_s()) is not None and due_s <= world.clock.monotonic_s():
        effects.append(len(world.step(Tick())))
    assert effects == [10, 10, 10, 5]


# --- anything in any order ---------------------------------------------------------------------------------------

NAMES = ("x", "y", "z")


class Anything:
    """Drives a timetable by random actions, and checks after each what must always hold."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.world = Timetable(draw=draw)
        self.world.source.commit(URI, 2)
        self.rows: dict[str, JobRow] = {"x": job("x"), "y": job("y", account="b")}
        self.ids = 0
        self.missing: int | None = None
        self.world.start(*self.rows.values())

    def dispatch(self) -> None:
        self.world.update(*self.rows.values())

    def registered(self, name: str) -> JobRow:
        self.ids += 1
        return job(name, job_id=f"{name}-{self.ids}", account="b" if name == "y" else "a")

    def act(self, action: str, pick: int) -> None:
        getattr(self, action)(pick)
        self.check()

    def pick_running(self, pick: int) -> int | None:
        numbers = sorted(self.world.running)
        return numbers[pick % len(numbers)] if numbers else None

    @property
    def newest(self) -> int | None:
        return self.world.source.versions.get(URI)

    def respecify(self, pick: int) -> None:
        name, kind = NAMES[pick % len(NAMES)], pick // len(NAMES)
        if name in self.rows:
            plain = self.rows[name]._replace(spec_json=job(name).spec_json)
            self.rows[name] = [plain, greedy(plain), periodic(plain, 30.0), periodic(plain, 30.0, share=True)][kind]
            self.dispatch()
            if pick % 2:
                self.world.interrupt(self.rows[name])

    # The source

    def commit(self, pick: int) -> None:
        if self.newest is not None:
            self.world.source.commit(URI, 1 + pick % 2)

    def anew(self, pick: int) -> None:
        if self.newest is not None:
            self.world.source.anew(URI, self.newest)

    def vanish(self, pick: int) -> None:
        if self.newest is not None:
            self.missing = self.world.source.versions.pop(URI)

    def reappear(self, pick: int) -> None:
        if self.newest is None and self.missing is not None:
            self.world.source.versions[URI] = self.missing

    # The node

    def notify(self, pick: int) -> None:
        self.world.notify(targets=pick % 2 == 0)

    def wait(self, pick: int) -> None:
        self.world.wait([0.5, 10, 400][pick % 3])

    def hold(self, pick: int) -> None:
        self.world.step(HoldIterations(pick % 2 == 0))

    def slow_probes(self, pick: int) -> None:
        self.world.hold_probes = not self.world.hold_probes
        while self.world.probes and not self.world.hold_probes:
            self.world.answer()

    # Iterations

    def succeed(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            self.world.started(number)
            self.world.succeed(number)

    def succeed_partly(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            version = self.world.running[number].jobs[0].watermark.version
            self.world.succeed(number, version=min(self.newest, max(0, version + 1)))

    def fail(self, pick: int) -> None:
        if number := self.pick_running(pick):
            self.world.fail(number, code=[ErrorCode.ENGINE, ErrorCode.TABLE_NOT_FOUND, ErrorCode.TIMEOUT][pick % 3])

    def fail_x(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and self.newest is not None:
            self.world.fail(number, names=["x"])

    def turn_away(self, pick: int) -> None:
        if number := self.pick_running(pick):
            self.world.reject(number)

    def end_cancelled(self, pick: int) -> None:
        number = self.pick_running(pick)
        if number and number in self.world.cancelled:
            self.world.end_cancelled(number)

    # Jobs

    def add(self, pick: int) -> None:
        name = NAMES[pick % len(NAMES)]
        self.rows[name] = self.rows.get(name) or self.registered(name)
        self.dispatch()

    def remove(self, pick: int) -> None:
        self.rows.pop(NAMES[pick % len(NAMES)], None)
        self.dispatch()

    def recreate(self, pick: int) -> None:
        self.rows[NAMES[pick % len(NAMES)]] = self.registered(NAMES[pick % len(NAMES)])
        self.dispatch()

    def pause(self, pick: int) -> None:
        name = NAMES[pick % len(NAMES)]
        if name in self.rows:
            self.rows[name] = self.rows[name]._replace(reason=[Reason.PAUSED, Reason.NONE][pick // 3 % 2])
            self.dispatch()

    def restart(self, pick: int) -> None:
        """The shard is moved away and comes back with what was reported."""
        self.world.stop()
        for number in list(self.world.running):
            self.check()
            self.world.end_cancelled(number)
        assert stopped(self.world)
        for report in self.world.reports:
            row = self.rows.get(report.key.job_name)
            if row is not None and row.job_id == report.job_id:
                self.rows[report.key.job_name] = row._replace(watermark=report.watermark, seq=report.seq)
        self.world.forget()
        self.world.start(*self.rows.values())

    def check(self) -> None:
        world = self.world
        keys = [row.key for iteration in world.running.values() for row in iteration.jobs]
        assert len(keys) == len(set(keys)), "a job is in two iterations"
        for iteration in world.running.values():
            assert len({row.key.account for row in iteration.jobs}) == 1
        due_s = world.schedule.next_due_s()
        if self.rows and not world.probes:
            assert due_s is not None or world.running, "the table would be forgotten"

    def settle(self) -> None:
        """From now on everything succeeds, and nothing new happens."""
        world = self.world
        world.hold_probes = False
        while world.probes:
            world.answer()
        self.reappear(0)
        world.step(HoldIterations(False))
        for name in list(self.rows):
            self.rows[name] = self.rows[name]._replace(reason=Reason.NONE)
        self.dispatch()
        for _ in range(200):
            world.wait(400)
            self.check()
            if not world.running:
                if world.schedule.next_due_s() is not None:
                    world.wait(4_000)
                if not world.running:
                    break
            for number in list(world.running):
                world.succeed(number)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("commit", "anew", "vanish", "reappear", "notify", "wait", "hold", "slow_probes"),
                *("succeed", "succeed_partly", "fail", "fail_x", "turn_away", "end_cancelled"),
                *("add", "remove", "recreate", "pause", "restart", "respecify"),
            )
        ),
        st.integers(0, 11),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(ACTIONS, st.randoms(use_true_random=False))
def test_whatever_happened_each_job_reaches_the_newest_version(actions: list[tuple[str, int]], random: object) -> None:
    anything = Anything(random.random)  # type: ignore[attr-defined]
    for action, pick in actions:
        anything.act(action, pick)
    anything.settle()
    world = anything.world
    assert world.running == {}
    world.source.commit(URI)
    world.notify()
    for _ in range(10):
        world.wait(60)
        for number in list(world.running):
            world.succeed(number)
    newest = world.source.versions[URI]
    reached = {report.job_id: report.watermark.version for report in world.reports}
    for row in anything.rows.values():
        assert reached.get(row.job_id, row.watermark.version) == newest


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["commit", "wait", "notify"]), st.integers(0, 2)), max_size=40))
def test_a_job_that_always_fails_never_holds_up_another(actions: list[tuple[str, int]]) -> None:
    world = Timetable()
    world.source.commit(URI, 2)
    world.start(job("good"), job("bad"))

    def run() -> None:
        for number in list(world.running):
            world.fail(number, names=["bad"])

    for action, pick in actions:
        if action == "commit":
            world.source.commit(URI)
        elif action == "wait":
            world.wait([0.5, 10, 400][pick % 3])
        elif action == "notify":
            world.notify()
        run()
        run()
        world.notify()
        run()
        good = [report for report in world.reports if report.key.job_name == "good"]
        assert good[-1].watermark.version == world.source.versions[URI]
