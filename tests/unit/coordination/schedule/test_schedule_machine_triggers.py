"""When jobs may start by their triggers: greedy, periodic, the users' own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.coordination.protocol.effects import HoldIterations
from iscp.core.job.custom_trigger import NotBefore, StartNow, TriggerFacts
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.job.start_rule import TARGET_LAG_S
from iscp.core.values.errors import ErrorCode, TemporaryError
from iscp.core.values.ids import ShardId
from tests.fakes.timetable import BACKOFF, URI, Timetable, custom, greedy, job, periodic, specified


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
