"""A job that waits for tables that are behind says so once, and checks them now and then; it is no failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.spec.spec_parsing import WAITS_FOR_S
from iscp.model.values.watermark import SourceMark, SourceMarks, Watermark
from iscp.schedule.iteration_outcomes import WAIT_CHECK_S
from tests.fakes.timetable import URI, Timetable, job, outcome, specified

OTHER = "/tables/t-2"


def marks(own: int, other: int) -> SourceMarks:
    return {URI: SourceMark("t-1", Watermark(own, 1.0)), OTHER: SourceMark("t-2", Watermark(other, 1.0))}


def view() -> JobRow:
    consumer = {"kind": "view", "target": "/v", "options": {"sql": "…", "tables": {"a": URI, "b": OTHER}}}
    row = specified(job("v", 7), iteration={"consumer": consumer})
    return row._replace(status_json=JobStatus(sources=marks(7, 3)).to_json())


@pytest.fixture
def table() -> Timetable:
    """A view whose own table has a commit that it does not apply, as its other table is behind."""
    made = Timetable()
    made.source.commit(URI, 8)
    made.source.commit(OTHER, 4)
    made.start(view())
    made.wait(2_000)
    made.forget()
    made.source.commit(URI)
    made.notify()
    put_off(made)
    return made


def put_off(table: Timetable, wait_s: float = WAITS_FOR_S) -> None:
    """The iteration that runs ends, and its view waits."""
    (row,) = table.last.jobs
    found = replace(outcome(row, 7, committed=False), sources=marks(7, 3), waits_for="b (is behind)", wait_s=wait_s)
    table.end(table.last.number, found)


def applied(row: JobRow, other: int) -> JobOutcome:
    return replace(outcome(row, 8), sources=marks(8, other))


def test_it_says_what_it_waits_for_once_and_checks_that_now_and_then(table: Timetable) -> None:
    assert table.told("v")[-1] == ("completed", "none")
    status = table.reports[-1].status
    assert status is not None
    assert (status.waits_for, status.waits_until_s) == ("b (is behind)", table.clock.now_s() + WAITS_FOR_S)
    reported = len(table.told("v"))
    for passed in range(1, 5):
        assert not table.running
        table.wait(WAIT_CHECK_S)
        assert len(table.submitted) == 1 + passed
        put_off(table, WAITS_FOR_S - passed * WAIT_CHECK_S)
    assert len(table.told("v")) == reported
    assert not table.history


def test_it_runs_at_once_when_one_of_its_tables_moves(table: Timetable) -> None:
    table.source.commit(OTHER)
    table.notify()
    assert table.now_running == [(("v",), None)]
    put_off(table)
    table.source.commit(URI)
    table.notify()
    assert table.now_running == [(("v",), None)]


def test_it_does_not_wait_any_longer_than_it_may(table: Timetable) -> None:
    table.wait(WAIT_CHECK_S)
    put_off(table, 0.25)
    table.wait(0.25)
    (row,) = table.last.jobs
    table.end(table.last.number, applied(row, 3))
    status = table.reports[-1].status
    assert status is not None
    assert (status.waits_for, status.waits_until_s) == ("", 0.0)
    table.forget()
    table.wait(60)
    assert not table.submitted


def test_that_nothing_is_waited_for_any_more_is_reported_though_nothing_was_written(table: Timetable) -> None:
    table.wait(WAIT_CHECK_S)
    (row,) = table.last.jobs
    table.end(table.last.number, replace(outcome(row, 8, committed=False), sources=marks(8, 3)))
    status = table.reports[-1].status
    assert status is not None
    assert status.waits_for == ""


def test_a_failure_while_it_waits_is_retried_as_any_other(table: Timetable) -> None:
    table.wait(WAIT_CHECK_S)
    table.fail(table.last.number)
    table.source.commit(OTHER)
    table.notify()
    assert not table.running
    assert table.told("v")[-1] == ("error", "retrying")
