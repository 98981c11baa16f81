"""When the schedule probes a source, and what it makes of the answer.

When jobs may start by their triggers: greedy, periodic, the users' own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.job.start_rule import TARGET_LAG_S, NotBefore, StartNow, TriggerFacts
from iscp.model.protocol.events import HoldIterations, Seen, Tick
from iscp.model.values.errors import ErrorCode, LeaseLost, TemporaryError
from iscp.model.values.ids import ShardId
from iscp.schedule.iteration_outcomes import ScheduleTimes
from iscp.schedule.table_state import TARGETS_EVERY_S
from tests.fakes.timetable import (
    BACKOFF,
    PROBE,
    URI,
    Timetable,
    custom,
    greedy,
    job,
    periodic,
    repairs,
    seen,
    specified,
)


def test_an_idle_table_is_probed_ever_more_rarely_and_starts_nothing(world: Timetable) -> None:
    world.start(job("x", 3))
    times = []
    for second in range(1, 200):
        before = world.source.looks[URI]
        world.wait(1)
        if world.source.looks[URI] > before:
            times.append(second)
    assert times == [10, *range(30, 200, 30)], "half of the target lag of a job that has none"
    assert world.submitted == []


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


def test_a_notify_is_handled_at_once(world: Timetable) -> None:
    world.start(job("x", 3))
    world.wait(7_200)
    world.source.commit(URI)
    world.notify()
    assert world.now_running == [(("x",), None)]
    world.notify(ShardId("unknown"))


def test_a_notify_during_a_probe_probes_again(world: Timetable) -> None:
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


def test_a_source_recreated_is_read_once(world: Timetable) -> None:
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


def test_targets_of_a_table_that_does_not_move_are_probed_once_a_day(world: Timetable) -> None:
    """So that a position is recorded again before log cleanup deletes its commit."""
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


def test_a_source_recreated_while_nobody_probed_is_noticed_at_the_start(world: Timetable) -> None:
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


def test_a_repair_is_reported_until_every_job_that_is_built_and_not_paused_has_applied_it(world: Timetable) -> None:
    world.start(job("x", 3), job("y", 3), job("z", 1)._replace(reason=Reason.PAUSED), job("new"))
    world.forget()
    world.source.repairs.add(5)
    world.source.commit(URI, 3)
    world.notify()
    assert (seen(world)[-1][0], repairs(world)[-1]) == (6, 5)
    world.source.commit(URI)
    world.notify()
    assert repairs(world)[-1] == 5, "what comes after it is none"
    for number in list(world.running):
        world.succeed(number, 5)
    assert repairs(world)[-1] == 0


def test_of_a_table_that_is_recreated_no_repair_is_known(world: Timetable) -> None:
    world.start(job("x", 3))
    world.source.repairs.add(4)
    world.source.commit(URI)
    world.notify()
    assert repairs(world)[-1] == 4
    world.source.anew(URI, 4)
    world.notify()
    assert repairs(world)[-1] == 0


def test_a_table_that_does_not_move_is_not_read_for_repairs_and_each_commit_is_once(world: Timetable) -> None:
    world.start(job("x", 3))
    world.wait(600)
    assert world.source.read == []
    world.source.commit(URI, 2)
    world.notify()
    world.wait(600)
    assert world.source.read == [4, 5]


def test_an_idle_table_is_reported_so_often_that_it_is_known_to_be_in_time_and_not_more(world: Timetable) -> None:
    row = specified(job("x", 3), target_lag=400)
    world.start(row)
    world.forget()
    world.wait(1_200)
    assert 6 <= len(seen(world)) <= 8
    world.update(specified(row, target_lag=20))
    world.wait(10)
    world.forget()
    world.wait(1_200)
    assert len(seen(world)) == world.source.looks[URI] == 120


def test_what_is_reported_of_a_source_is_as_of_when_it_was_probed(world: Timetable) -> None:
    """Neither as of the answer nor as of an iteration's end: the source may have moved since."""
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


def test_a_source_is_probed_at_least_twice_in_the_smallest_target_lag(world: Timetable) -> None:
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
    assert looks(specified(job("x", 3), target_lag=4)._replace(reason=Reason.PAUSED), job("y", 3)) == 20


def test_a_tick_visits_a_bounded_number_of_tables() -> None:
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


def commits_every(world: Timetable, wait_s: float, until_s: float) -> None:
    """Commits come and are notified, and iterations take no time."""
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


def test_a_periodic_job_whose_source_does_not_move_costs_nothing_and_starts_at_once_afterwards(
    world: Timetable,
) -> None:
    world.start(periodic(job("x"), 0.01))
    world.succeed(1)
    before = world.source.looks[URI]
    world.wait(7_200)
    assert len(world.submitted) == 1
    assert world.source.looks[URI] - before <= 7_200 / (TARGET_LAG_S / 2) + 1, "and the first, which comes sooner"
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


def test_a_custom_trigger_is_evaluated_when_there_is_something_to_do_and_starts_the_job_alone(world: Timetable) -> None:
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


def test_a_custom_trigger_is_evaluated_again_at_its_time_and_when_something_happens(world: Timetable) -> None:
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
def test_a_custom_trigger_that_fails_is_evaluated_again_by_backoff_and_holds_up_nobody(
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


def test_a_node_that_takes_over_a_job_whose_trigger_failed_evaluates_it_first(world: Timetable) -> None:
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
