"""A job whose rows depend on the time runs when these may be others, though no table has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, JobStatus, Reason
from tests.fakes.timetable import URI, Timetable, job, outcome, periodic, seen


def done(table: Timetable, row: JobRow, version: int, *, due_in_s: float, committed: bool = True) -> JobOutcome:
    """Its rows stay as they are for so long."""
    return replace(outcome(row, version, committed=committed), due_at_s=table.clock.now_s() + due_in_s)


@pytest.fixture
def table() -> Timetable:
    """A view by the time that is due in 60 s, beside a replica; both are up to date."""
    made = Timetable()
    made.source.commit(URI, 8)
    made.start(job("v", 6), job("copy", 7))
    (row,) = made.last.jobs
    made.end(made.last.number, done(made, row, 7, due_in_s=60))
    made.wait(1)
    made.forget()
    return made


def test_it_runs_when_it_is_due_alone_and_not_before(table: Timetable) -> None:
    table.wait(58.9)
    assert not table.submitted
    table.wait(0.2)
    assert table.now_running == [(("v",), None)]


def test_that_time_passed_is_no_lag(table: Timetable) -> None:
    table.wait(58)
    assert all(lag_s == 0 for _, lag_s in seen(table))


def test_it_is_due_again_as_each_refresh_says_whether_or_not_that_wrote(table: Timetable) -> None:
    for _ in range(3):
        table.forget()
        table.wait(61)
        (row,) = table.last.jobs
        table.end(table.last.number, done(table, row, 7, due_in_s=60, committed=False))
        assert table.running == {}
    table.forget()
    table.wait(61)
    table.end(table.last.number, outcome(table.last.jobs[0], 7))
    table.forget()
    table.wait(3_600)
    assert not table.submitted, "its query does not depend on the time any more"


def test_a_refresh_that_takes_longer_than_it_is_good_for_does_not_lead_to_another_at_once(table: Timetable) -> None:
    table.wait(60)
    table.wait(300)
    (row,) = table.last.jobs
    table.end(table.last.number, done(table, row, 7, due_in_s=60))
    assert table.running == {}


def test_one_that_fails_is_retried_and_puts_no_target_in_doubt(table: Timetable) -> None:
    table.wait(60)
    table.fail(table.last.number)
    status = table.reports[-1].status
    assert status is not None
    assert status.doubted_at_s == 0
    assert status.due_at_s > 0, "so that a node that takes over knows it"
    table.forget()
    table.wait(20)
    assert table.now_running == [(("v",), None)]


@pytest.mark.parametrize("late_s", [-30.0, 500.0])
def test_a_node_that_takes_over_goes_on_with_what_was_due(late_s: float) -> None:
    table = Timetable()
    table.source.commit(URI, 8)
    status = JobStatus(7, 7, due_at_s=table.clock.now_s() - late_s)
    table.start(job("v", 7)._replace(status_json=status.to_json()), job("copy", 7))
    if late_s < 0:
        table.wait(29)
        assert not table.submitted
    table.wait(2)
    assert table.now_running == [(("v",), None)], "once, however many times were missed"


def test_a_paused_one_waits_until_it_is_resumed(table: Timetable) -> None:
    row = job("v", 7)
    table.update(row._replace(reason=Reason.PAUSED), job("copy", 7))
    table.wait(600)
    assert not table.submitted
    table.update(row, job("copy", 7))
    assert table.now_running == [(("v",), None)]


def test_with_an_interval_it_runs_at_that(table: Timetable) -> None:
    table.update(periodic(job("v", 7)), job("copy", 7))
    table.wait(61)
    (row,) = table.last.jobs
    table.end(table.last.number, done(table, row, 7, due_in_s=5))
    table.forget()
    table.wait(58)
    assert not table.submitted
    table.wait(3)
    assert table.now_running == [(("v",), None)]


def test_what_a_clock_that_was_ahead_has_said_is_due_at_once() -> None:
    table = Timetable()
    table.source.commit(URI, 7)
    ended_s = table.clock.now_s() + 30 * 86_400
    status = JobStatus(7, 7, ended_s - 1, ended_s, due_at_s=ended_s + 60)
    table.start(job("v", 7)._replace(status_json=status.to_json()))
    table.wait(1)
    assert table.now_running == [(("v",), None)]
