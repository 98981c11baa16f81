"""Targets of idle sources are probed; a job whose target is in doubt runs, reports it, and does not count as fresh."""

from __future__ import annotations

import pytest

from iscp.model.job.job_row import JobReport, JobState, JobStatus, Reason
from iscp.model.job.start_rule import TARGET_LAG_S
from iscp.model.values.errors import ErrorCode, StorageError, TargetLost
from tests.fakes.timetable import URI, Timetable, job

LOST = TargetLost("the target /x is not there")


@pytest.fixture
def table() -> Timetable:
    """One job that is up to date with its source, and has rested for a while."""
    made = Timetable()
    made.source.commit(URI, 8)
    made.start(job("a", 7))
    made.wait(100)
    made.forget()
    return made


def status_of(report: JobReport) -> JobStatus:
    assert report.status is not None
    return report.status


def test_a_target_is_probed_as_rarely_as_its_source(table: Timetable) -> None:
    table.wait(3_600)
    assert table.targets.looks["a"] == table.source.looks[URI] <= 3_600 / (TARGET_LAG_S / 2)
    assert not table.submitted
    assert not table.reports


def test_a_source_that_moves_does_not_have_its_targets_probed(table: Timetable) -> None:
    """Each iteration begins by reading its target's position."""
    for _ in range(5):
        table.source.commit(URI)
        table.notify()
        table.succeed(table.last.number)
    assert not table.targets.looks


def test_a_lost_target_is_reported_and_the_job_runs_though_its_source_does_not_move(table: Timetable) -> None:
    table.targets.faults["a"] = LOST
    table.wait(400)
    (report,) = table.reports[:1]
    assert (report.state, report.reason) == (JobState.ERROR, Reason.RETRYING)
    assert status_of(report).error_code == ErrorCode.TARGET_LOST
    assert "not there" in status_of(report).error_msg
    assert status_of(report).doubted_at_s > 0
    assert [iteration.to_version for iteration in table.submitted] == [None]
    del table.targets.faults["a"]
    table.succeed(table.last.number)
    assert table.told("a")[-1] == ("completed", "none")
    assert status_of([each for each in table.reports if each.status][-1]).doubted_at_s == 0
    table.forget()
    table.wait(3_600)
    assert not table.submitted


def test_while_it_cannot_be_rebuilt_the_job_stays_in_doubt_since_it_was_found(table: Timetable) -> None:
    table.targets.faults["a"] = StorageError("the directory of the target /x is not there")
    table.wait(400)
    doubted_at_s = status_of(table.reports[0]).doubted_at_s
    for _ in range(3):
        table.fail(table.last.number, ErrorCode.STORAGE)
        table.wait(400)
    last = [report for report in table.reports if report.state is JobState.ERROR][-1]
    assert status_of(last).doubted_at_s == doubted_at_s
    assert len(table.submitted) == 4, "it is tried again"


def test_a_doubt_outlives_the_node(table: Timetable) -> None:
    status = JobStatus(7, 7, error_code=ErrorCode.TARGET_LOST, error_msg="gone", doubted_at_s=5.0)
    for state, reason in ((JobState.ERROR, Reason.RETRYING), (JobState.RUNNING, Reason.NONE)):
        other = Timetable()
        other.source.commit(URI, 8)
        other.start(job("a", 7)._replace(state=state, reason=reason, status_json=status.to_json()))
        assert len(other.submitted) == 1


def test_an_iteration_that_had_nothing_to_apply_and_failed_leaves_the_target_in_doubt(table: Timetable) -> None:
    table.notify(targets=True)
    table.fail(table.last.number, ErrorCode.LOG_CORRUPT)
    assert status_of(table.reports[-1]).doubted_at_s > 0


def test_an_iteration_that_failed_behind_its_source_says_nothing_of_the_target(table: Timetable) -> None:
    table.source.commit(URI)
    table.notify()
    table.fail(table.last.number)
    assert status_of(table.reports[-1]).doubted_at_s == 0


def test_one_lost_target_is_its_jobs_own_trouble() -> None:
    table = Timetable()
    table.source.commit(URI, 8)
    table.start(job("a", 7), job("b", 7, account="other"))
    table.wait(100)
    table.forget()
    table.targets.faults["a"] = LOST
    table.wait(400)
    assert {report.key.job_name for report in table.reports} == {"a"}
    assert table.now_running == [(("a",), None)]
