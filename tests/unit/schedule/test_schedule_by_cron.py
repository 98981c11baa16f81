"""A job with times by cron starts at these, if something is outstanding then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from iscp.model.job.job_row import JobRow, JobStatus
from tests.fakes.timetable import URI, Timetable, job, specified

HOUR_S = 3_600.0


def by_cron(row: JobRow, cron: str = "0 0 * * * ?") -> JobRow:
    return specified(row, trigger={"job_type": "periodic", "schedule": {"cron": cron}})


def to_next_hour_s(table: Timetable) -> float:
    return HOUR_S - table.clock.now_s() % HOUR_S


@pytest.fixture
def table() -> Timetable:
    """A view with a time each hour, up to date; it is a minute past."""
    made = Timetable()
    made.source.commit(URI, 8, at_s=made.clock.now_s())
    made.start(by_cron(job("v")))
    assert made.now_running == [(("v",), None)], "a new job does not wait"
    made.succeed(made.last.number)
    made.wait(to_next_hour_s(made) + 60)
    made.forget()
    return made


def test_what_came_since_the_last_time_waits_for_the_next(table: Timetable) -> None:
    table.wait(3 * HOUR_S)
    assert not table.submitted, "nothing was outstanding"
    table.source.commit(URI, at_s=table.clock.now_s())
    table.notify()
    left_s = to_next_hour_s(table)
    table.wait(left_s - 1)
    assert not table.submitted, "though times have passed since it was applied last"
    table.wait(1.1)
    assert table.now_running == [(("v",), None)]
    table.succeed(table.last.number)
    table.forget()
    table.wait(5 * HOUR_S)
    assert not table.submitted


def test_a_commit_that_is_noticed_after_the_time_counts_by_when_it_was_made(table: Timetable) -> None:
    table.source.commit(URI, at_s=table.clock.now_s())
    table.clock.advance(to_next_hour_s(table) + 5)
    table.notify()
    assert table.now_running == [(("v",), None)]


def test_times_that_were_missed_while_no_node_had_it_are_one_refresh() -> None:
    table = Timetable()
    ended_s = table.clock.now_s() - 10 * HOUR_S
    table.source.commit(URI, 9, at_s=ended_s + 30)
    table.start(by_cron(job("v", 7)._replace(status_json=JobStatus(7, 7, ended_s, ended_s).to_json())))
    assert table.now_running == [(("v",), None)]
    table.succeed(table.last.number)
    table.forget()
    table.wait(5 * HOUR_S)
    assert not table.submitted


def test_a_node_that_takes_over_before_the_time_waits_for_it() -> None:
    table = Timetable()
    table.clock.advance(to_next_hour_s(table) + 600)
    ended_s = table.clock.now_s() - 300
    table.source.commit(URI, 9, at_s=ended_s + 30)
    table.start(by_cron(job("v", 7)._replace(status_json=JobStatus(7, 7, ended_s, ended_s).to_json())))
    table.wait(to_next_hour_s(table) - 1)
    assert not table.submitted
    table.wait(1.1)
    assert table.now_running == [(("v",), None)]


def test_one_that_depends_on_the_time_is_refreshed_at_its_times_alone(table: Timetable) -> None:
    due_s = (datetime.fromtimestamp(table.clock.now_s(), UTC) + timedelta(minutes=1)).timestamp()
    table.start(
        by_cron(job("w", 7))._replace(status_json=JobStatus(7, 7, due_at_s=due_s, end_at_s=due_s - 60).to_json())
    )
    left_s = to_next_hour_s(table)
    table.wait(left_s - 1)
    assert not table.submitted
    table.wait(1.1)
    assert table.now_running == [(("w",), None)]


DAY_S = 24 * HOUR_S


def test_a_run_by_a_clock_that_was_ahead_holds_it_no_longer_than_to_the_next_time() -> None:
    table = Timetable()
    ended_s = table.clock.now_s() + 30 * DAY_S
    table.source.commit(URI, 9, at_s=table.clock.now_s())
    table.start(by_cron(job("v", 7)._replace(status_json=JobStatus(7, 7, ended_s, ended_s).to_json())))
    assert not table.submitted
    table.wait(to_next_hour_s(table) + 1)
    assert table.now_running == [(("v",), None)]


def test_a_clock_that_is_put_right_holds_nothing_back(table: Timetable) -> None:
    table.clock.step(30 * DAY_S)
    table.source.commit(URI, at_s=table.clock.now_s())
    table.wait(HOUR_S + 1)
    assert table.now_running == [(("v",), None)]
    table.succeed(table.last.number)
    table.forget()
    table.clock.step(-30 * DAY_S)
    table.source.commit(URI, at_s=table.clock.now_s())
    table.wait(HOUR_S + 1)
    assert table.now_running == [(("v",), None)]


def test_a_commit_of_the_future_does_not_hold_it_until_then(table: Timetable) -> None:
    table.source.commit(URI, at_s=table.clock.now_s() + 7 * DAY_S)
    table.notify()
    assert not table.submitted
    table.wait(to_next_hour_s(table) + 1)
    assert table.now_running == [(("v",), None)]
